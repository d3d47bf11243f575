"""From a backend's name to what the ranks open: through discovery like hvd.init(), or from a path that was given."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Target:
    """``path`` is the library's, ``python`` the class of a backend written in Python. ``entry`` is the entry point
    ("module:attribute"), ``descriptor`` what it returned; None for a library that is not packaged."""

    name: str
    path: str
    origin: str
    python: str | None = None
    entry: str | None = None
    descriptor: Any = None


def resolve(name: str, library: str | os.PathLike | None = None) -> Target:
    """The target of a run. Raises BackendError of the phase that failed, FileNotFoundError for ``library``."""
    if library is not None:
        path = Path(library).resolve()
        if not path.is_file():
            raise FileNotFoundError(f"horovod: conformance: there is no library {path}")
        return Target(name, str(path), "--library")
    from hvd_core.backends import registry
    from hvd_core.backends.errors import BackendNotInstalled

    for backend in registry.installed():
        if backend.name == name:
            return Target(name, str(backend.path()), backend.origin)
    raise BackendNotInstalled(
        f"horovod: backend '{name}' is not installed.\n"
        f"  installed: {registry.describe_installed(registry.installed())}\n  list: hvd plugin list"
    )
