"""Which communication backends are installed, and which one a job uses.

Nothing here loads a library or imports a framework: the result is a name and a path, which the engine's C++
loader opens. Called from the thread that runs ``hvd.init()``.
"""

from hvd_core.backends.errors import (
    BackendCallError,
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


def __getattr__(name):
    # Backends in Python need NumPy and the compiled module; whoever only selects needs neither.
    if name in ("PythonBackend", "PythonCommunicator", "register_python_backend"):
        from hvd_core.backends import python_backend

        return getattr(python_backend, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BackendCallError",
    "BackendDescribeError",
    "BackendDisagreement",
    "BackendError",
    "BackendLoadError",
    "BackendNotInstalled",
    "BackendOpenError",
    "BackendUnavailable",
    "InstalledBackend",
    "PythonBackend",
    "PythonCommunicator",
    "Selection",
    "installed",
    "register_python_backend",
    "select",
]
