"""One exception class per phase of bringing up a backend, so that a program can tell them apart.

Every text starts with ``horovod: backend``, says what was found and what to do.
"""


class BackendError(RuntimeError):
    """A backend was asked for and cannot be used. Never retried automatically."""


class BackendNotInstalled(BackendError):
    """Discovery: no installed backend has the name."""


class BackendDescribeError(BackendError):
    """Description: what the backend says about itself is broken."""


class BackendUnavailable(BackendError):
    """Probe: installed, but it cannot work in this job or on this machine."""


class BackendLoadError(BackendError):
    """Load: its shared object is missing, does not open, or fails the handshake."""


class BackendDisagreement(BackendError):
    """Agreement: the ranks of the job have chosen different backends, or some have none."""


class BackendOpenError(BackendError):
    """Open: its devices or communicators cannot be made."""
