"""The communication backends: finding the installed ones, and selecting those that a job uses.

| folder | holds |
|---|---|
| discovery | from a name to a loaded library: the phases discover, describe, probe, load |
| selection | which backend serves each operation on each device type; the agreement of all ranks |
| python | backends written in Python |
| chaos | a backend in Python for tests, which fails on request |

``descriptor`` and ``errors`` are what plugins import. Importing this package is cheap: each name below is imported from
its module at its first use, and neither NumPy nor the compiled engine is loaded before that.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_core.backends.candidate import Candidate
    from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable, always
    from hvd_core.backends.discovery import installed
    from hvd_core.backends.discovery.installed_backend import InstalledBackend
    from hvd_core.backends.discovery.registering import register_python_backend
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
    from hvd_core.backends.python.backend import PythonBackend, PythonCommunicator
    from hvd_core.backends.python.options import Option
    from hvd_core.backends.selection.backend_plan import BackendPlan, Plan, Usable
    from hvd_core.backends.selection.choice import choose
    from hvd_core.backends.selection.usable_backends import BackendVetoed

_HOMES = {
    "descriptor": ("Available", "BackendDescriptor", "Unavailable", "always"),
    "candidate": ("Candidate",),
    "discovery": ("installed",),
    "discovery.installed_backend": ("InstalledBackend",),
    "discovery.registering": ("register_python_backend",),
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
    "python.backend": ("PythonBackend", "PythonCommunicator"),
    "python.options": ("Option",),
    "selection.backend_plan": ("BackendPlan", "Plan", "Usable"),
    "selection.choice": ("choose",),
    "selection.usable_backends": ("BackendVetoed",),
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
    "BackendPlan",
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
