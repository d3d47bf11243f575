"""``register_python_backend``: makes a backend class of the running program available by its name. Any thread."""

from __future__ import annotations

import threading
from typing import Any

from hvd_core.backends.candidate import PYTHON, Candidate
from hvd_core.backends.discovery import registry
from hvd_core.backends.discovery.installed_backend import InstalledBackend
from hvd_core.backends.python.backend import PythonBackend, RegisteredBackend, entry_of

_lock = threading.RLock()
_registered: dict[type, RegisteredBackend] = {}


def register_python_backend(cls: type[PythonBackend]) -> RegisteredBackend:
    """Make the backend class ``cls`` available by its name, in this process. The same class gives the same object.

    Raises ValueError if ``cls`` is not a subclass of PythonBackend, or if its name is not valid or already taken.
    """
    with _lock:
        if cls in _registered:
            return _registered[cls]
        for other in registry.local():
            if other.name == getattr(cls, "name", ""):
                raise ValueError(
                    f"register_python_backend({cls.__qualname__}): the backend name '{cls.name}' is taken already "
                    f"({other.origin}); give the class another name"
                )
        registered = entry_of(cls)
        registry.add(_RegisteredPythonBackend(registered))
        _registered[cls] = registered
        return registered


class _RegisteredPythonBackend(InstalledBackend):
    """A registered class as an installed backend."""

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
