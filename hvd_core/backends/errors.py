"""One exception class per phase of starting a backend, so that a program can tell the phases apart.

Every text starts with ``horovod: backend``, and tells what was found and what to do.
"""

from __future__ import annotations


class BackendError(RuntimeError):
    """A backend that was selected cannot be used. Never retried automatically."""


class BackendNotInstalled(BackendError):
    """Discovery: the name does not lead to one installed backend."""


class BackendDuplicate(BackendNotInstalled):
    """Discovery: two installed distributions have a backend of this name, and plugins.toml does not decide between
    them."""


class BackendVersionMismatch(BackendNotInstalled):
    """Discovery: this host has another version of the backend's distribution than the launcher found, or lacks it."""


class BackendDescribeError(BackendError):
    """Description: the backend's descriptor has faults, or its module or function raised."""


class BackendUnavailable(BackendError):
    """Probe: installed, but it cannot work in this job or on this machine."""


class BackendLoadError(BackendError):
    """Load: the backend's library is missing, does not open, or fails the handshake."""


class BackendDisagreement(BackendError):
    """Agreement: the ranks of the job have chosen different backends, or the choice failed on some ranks."""


class BackendOpenError(BackendError):
    """Open: the backend's devices or communicators cannot be made."""


class BackendCallError(BackendError):
    """Run: a call into a backend failed. A backend written in Python raises this to choose the error code.

    ``code`` is the ABI's number (HVD_E_*), ``name`` its name. The constructor takes either.
    """

    NAMES = (
        *("INVALID", "UNSUPPORTED", "UNAVAILABLE", "NOMEM", "TIMEOUT", "ABORTED", "REMOTE", "DEVICE"),
        *("INTERNAL", "ABI"),
    )

    def __init__(self, code: int | str, text: str) -> None:
        super().__init__(text)
        if isinstance(code, str):
            self.code: int = self.NAMES.index(code) + 2
        else:
            self.code = code if 2 <= code < 2 + len(self.NAMES) else self.NAMES.index("INTERNAL") + 2
        self.name: str = self.NAMES[self.code - 2]

    def __reduce__(self) -> tuple[type[BackendCallError], tuple[int, str]]:
        return (type(self), (self.code, str(self)))
