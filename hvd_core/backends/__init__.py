"""Communication backends: what backend authors use, and the choice of backends for a job.

A backend's package describes itself with a `BackendDescriptor`, or defines a `PythonBackend`
(docs/plugins.md, docs/backend-abi.md). The errors form one tree below `BackendError`, with one class per phase.

Importing this package is cheap: apart from the errors, each name is imported at its first use. Private:
``_discovery`` leads from a name to a loaded library (discover, describe, probe, load), ``_selection`` chooses the
backend of each operation on each device type, and ``_chaos`` is a backend for tests, which fails on request.
"""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from hvd_core.backends._candidate import Candidate
    from hvd_core.backends._discovery import installed
    from hvd_core.backends._discovery.installed_backend import InstalledBackend
    from hvd_core.backends._discovery.registry import register_python_backend
    from hvd_core.backends._options import Option
    from hvd_core.backends._selection.choice import choose
    from hvd_core.backends._selection.plan import BackendPlan, Plan, Usable
    from hvd_core.backends._selection.usable import BackendVetoed
    from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable, always
    from hvd_core.backends.python_backend import PythonBackend, PythonCommunicator

_MODULES = {
    "descriptor": ("Available", "BackendDescriptor", "Unavailable", "always"),
    "python_backend": ("PythonBackend", "PythonCommunicator"),
    "_candidate": ("Candidate",),
    "_discovery": ("installed",),
    "_discovery.installed_backend": ("InstalledBackend",),
    "_discovery.registry": ("register_python_backend",),
    "_options": ("Option",),
    "_selection.choice": ("choose",),
    "_selection.plan": ("BackendPlan", "Plan", "Usable"),
    "_selection.usable": ("BackendVetoed",),
}

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


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
