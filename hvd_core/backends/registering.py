"""Makes a backend class of the running program findable by its name, like an installed one. Any thread."""

from __future__ import annotations

import threading
from typing import Any

from hvd_core.backends import registry
from hvd_core.backends.candidate import PYTHON, Candidate
from hvd_core.backends.installed_backend import InstalledBackend
from hvd_core.backends.python_backend import PythonBackend, RegisteredBackend, entry_of

_lock = threading.RLock()
_registered: dict[type, RegisteredBackend] = {}


def register_python_backend(cls: type[PythonBackend]) -> RegisteredBackend:
    """Make a backend class usable by its name, on this process. The same class gives the same object.

    Raises ValueError for a class that is none, and for a name that is not one or is taken.
    """
    with _lock:
        if cls in _registered:
            return _registered[cls]
        for other in registry.local():
            if other.name == getattr(cls, "name", ""):
                raise ValueError(f"the backend name '{cls.name}' is taken already ({other.origin})")
        made = entry_of(cls)
        registry.add(_InPython(made))
        _registered[cls] = made
        return made


class _InPython(InstalledBackend):
    """A registered class among the installed backends."""

    def __init__(self, registered: RegisteredBackend) -> None:
        candidate = Candidate(registered.name, PYTHON)
        super().__init__(
            registered.name,
            "",
            candidate.describe_origin(),
            spans_hosts=not registered.backend.one_host,
            automatic=False,
            provides=frozenset({"comm"}),
            version=str(registered.backend.version),
            candidate=candidate,
        )
        self.registered = registered

    def path(self) -> Any:
        return self.registered.path
