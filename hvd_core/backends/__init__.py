"""Which communication backends are installed, and which one a job uses.

Nothing here loads a library or imports a framework: the result is a name and a path, which the engine's C++
loader opens. Called from the thread that runs ``hvd.init()``.
"""

from hvd_core.backends.errors import (
    BackendDescribeError,
    BackendDisagreement,
    BackendError,
    BackendLoadError,
    BackendNotInstalled,
    BackendOpenError,
    BackendUnavailable,
)
from hvd_core.backends.registry import InstalledBackend, installed
from hvd_core.backends.selection import Selection, select

__all__ = [
    "BackendDescribeError",
    "BackendDisagreement",
    "BackendError",
    "BackendLoadError",
    "BackendNotInstalled",
    "BackendOpenError",
    "BackendUnavailable",
    "InstalledBackend",
    "Selection",
    "installed",
    "select",
]
