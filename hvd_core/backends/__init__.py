"""Which communication backends there are, and which one a job uses.

Nothing here loads a library or imports a framework: the result is a name and a path, which the engine's C++
loader opens. A plugin's module imports ``BackendDescriptor`` and its companions from here, which costs next to nothing:
every name below comes from its module when it is asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_core.backends.candidate import Candidate
    from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable, always
    from hvd_core.backends.discovery import installed
    from hvd_core.backends.errors import (
        BackendCallError,
        BackendDescribeError,
        BackendDisagreement,
        BackendDuplicate,
        BackendError,
        BackendLoadError,
        BackendNotInstalled,
        BackendOpenError,
        BackendUnavailable,
        BackendVersionMismatch,
    )
    from hvd_core.backends.installed_backend import InstalledBackend
    from hvd_core.backends.plan import Plan, Usable
    from hvd_core.backends.python_backend import PythonBackend, PythonCommunicator
    from hvd_core.backends.python_options import Option
    from hvd_core.backends.registering import register_python_backend
    from hvd_core.backends.selection import choose
    from hvd_core.backends.stock import BackendVetoed

_HOMES = {
    "candidate": ("Candidate",),
    "descriptor": ("Available", "BackendDescriptor", "Unavailable", "always"),
    "errors": (
        "BackendCallError",
        "BackendDescribeError",
        "BackendDisagreement",
        "BackendDuplicate",
        "BackendError",
        "BackendLoadError",
        "BackendNotInstalled",
        "BackendOpenError",
        "BackendUnavailable",
        "BackendVersionMismatch",
    ),
    "python_options": ("Option",),
    "python_backend": ("PythonBackend", "PythonCommunicator"),
    "registering": ("register_python_backend",),
    "discovery": ("installed",),
    "installed_backend": ("InstalledBackend",),
    "plan": ("Plan", "Usable"),
    "selection": ("choose",),
    "stock": ("BackendVetoed",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name):
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Available",
    "BackendCallError",
    "BackendDescribeError",
    "BackendDescriptor",
    "BackendDisagreement",
    "BackendDuplicate",
    "BackendError",
    "BackendLoadError",
    "BackendNotInstalled",
    "BackendOpenError",
    "BackendUnavailable",
    "BackendVersionMismatch",
    "BackendVetoed",
    "Candidate",
    "InstalledBackend",
    "Option",
    "Plan",
    "PythonBackend",
    "PythonCommunicator",
    "Unavailable",
    "Usable",
    "always",
    "choose",
    "installed",
    "register_python_backend",
]
