"""Backends that need no search and are not plain libraries of this wheel: a library named by a variable, and classes of
this package that are written in Python. registry.py lists them. Any thread.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from hvd_core.backends.candidate import EMBEDDED, PATH, Candidate
from hvd_core.backends.descriptor import BackendDescriptor
from hvd_core.backends.discovery.installed_backend import ABI, InstalledBackend
from hvd_core.backends.discovery.loading import load
from hvd_core.backends.errors import BackendLoadError
from hvd_core.version import __version__


class LibraryBackend(InstalledBackend):
    """A library that HOROVOD_BACKEND_PATH_<NAME> names. It has no descriptor: its properties are read from its tables, so
    reading one loads the library and may raise BackendLoadError."""

    def __init__(self, name: str, library: str) -> None:
        self.candidate = Candidate(name, PATH, location=library)
        self.name, self.library, self.origin = name, library, self.candidate.describe_origin()
        self.automatic, self.priority = False, 0

    def path(self) -> Path:
        library = Path(self.library)
        if not library.is_file():
            raise BackendLoadError(
                f"horovod: backend '{self.name}' ({self.origin}) failed to load.\n"
                f"  cause: the file that {self.origin} names does not exist: {self.library}\n"
                f"  fix: build it, or unset {self.origin}"
            )
        return library.resolve()

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The result of hvd_core._core.inspect_backend()."""
        return load(self)

    @property
    def devices(self) -> tuple[str, ...]:
        own = [self.facts["device_type"], *self.facts["device_types"]]
        return tuple(dict.fromkeys(filter(None, own)))

    @property
    def provides(self) -> frozenset[str]:
        return frozenset(self.facts["slots"])

    version = property(lambda self: self.facts["version"])
    spans_hosts = property(lambda self: "ONE_HOST" not in self.facts["caps"])


class EmbeddedPythonBackend(InstalledBackend):
    """A backend class of this package. It is imported when it is chosen; only tests choose it, because it is slow."""

    def __init__(self, name: str, class_path: str) -> None:
        super().__init__(
            name,
            "",
            EMBEDDED,
            spans_hosts=True,
            automatic=False,
            provides=frozenset({"comm"}),
            version=__version__,
            candidate=Candidate(
                name, EMBEDDED, entry=f"hvd_core.backends.discovery.embedded:{name}", for_tests=True
            ),
        )
        self.descriptor = BackendDescriptor(name, ABI, self.devices, self.provides, None, python=class_path)

    def path(self) -> str | Path:
        from hvd_core.backends.python.backend import entry_of  # imports NumPy

        module, _, attribute = str(self.descriptor.python).partition(":")
        return entry_of(getattr(import_module(module), attribute)).path
