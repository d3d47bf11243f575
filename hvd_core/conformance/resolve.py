"""Finds the library that the ranks open: by a backend's name, through discovery as in hvd.init(), or by a path."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Target:
    """``path`` is the library's; ``python`` the class ("module:Class") of a backend written in Python. ``entry`` is the
    entry point ("module:attribute"), ``descriptor`` what it returned; None for a backend that is not in a wheel.
    ``version``: the wheel's."""

    name: str
    path: str
    origin: str
    python: str | None = None
    entry: str | None = None
    descriptor: Any = None
    version: str = ""


def resolve(name: str, library: str | os.PathLike | None = None) -> Target:
    """The target of a run. ``name`` is a backend's, or "module:Class" of one in Python that is not installed; ``library``
    replaces the installed one.

    Raises BackendError of the phase that failed, FileNotFoundError for ``library``, ImportError, AttributeError.
    """
    if library is not None:
        path = Path(library).resolve()
        if not path.is_file():
            raise FileNotFoundError(f"horovod: conformance: the library {path} does not exist")
        return Target(name, str(path), "--library")
    if ":" in name:
        module, _, attribute = name.partition(":")
        return Target(getattr(importlib.import_module(module), attribute).name, "", "a class", python=name)
    from hvd_core.backends._discovery import lookup

    backend = lookup(name, "hvd_core.conformance")
    descriptor = backend.descriptor
    entry = backend.candidate.entry
    version = (backend.candidate.version or "") if descriptor is not None else ""
    if descriptor is not None and descriptor.python is not None:
        return Target(backend.name, "", backend.origin, descriptor.python, entry, descriptor, version)
    return Target(backend.name, str(backend.path()), backend.origin, None, entry, descriptor, version)
