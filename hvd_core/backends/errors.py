"""One exception class per phase of bringing up a backend, so that a program can tell them apart.

Every text starts with ``horovod: backend``, says what was found and what to do.
"""


class BackendError(RuntimeError):
    """A backend was asked for and cannot be used. Never retried automatically."""


class BackendNotInstalled(BackendError):
    """Discovery: the name does not lead to one installed backend."""


class BackendDuplicate(BackendNotInstalled):
    """Discovery: two installed distributions have a backend of this name, and nothing says which is meant."""


class BackendVersionMismatch(BackendNotInstalled):
    """Discovery: this host has another version of the backend's distribution than the launcher found, or has none."""


class BackendDescribeError(BackendError):
    """Description: what the backend says about itself is broken, or cannot be had."""


class BackendUnavailable(BackendError):
    """Probe: installed, but it cannot work in this job or on this machine."""


class BackendLoadError(BackendError):
    """Load: its shared object is missing, does not open, or fails the handshake."""


class BackendDisagreement(BackendError):
    """Agreement: the ranks of the job have chosen different backends, or some have none."""


class BackendOpenError(BackendError):
    """Open: its devices or communicators cannot be made."""


class BackendCallError(BackendError):
    """Run: a call into a backend failed. What a backend written in Python raises to choose the code that others see.

    ``code`` is the ABI's number (HVD_E_*), ``name`` its name; either makes one.
    """

    NAMES = (
        *("INVALID", "UNSUPPORTED", "UNAVAILABLE", "NOMEM", "TIMEOUT", "ABORTED", "REMOTE", "DEVICE"),
        *("INTERNAL", "ABI"),
    )

    def __init__(self, code: int | str, text: str) -> None:
        super().__init__(text)
        if isinstance(code, str):
            self.code = self.NAMES.index(code) + 2
        else:
            self.code = code if 2 <= code < 2 + len(self.NAMES) else self.NAMES.index("INTERNAL") + 2
        self.name = self.NAMES[self.code - 2]

    def __reduce__(self):
        return (type(self), (self.code, str(self)))
