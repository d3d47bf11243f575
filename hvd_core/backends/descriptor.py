"""The descriptor of a backend: the value that the function of its entry point returns.

A plugin's module needs only this file of hvd-core, so it imports neither NumPy nor the compiled engine. Immutable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_core.backends._candidate import SUFFIX, read_file


@dataclass(frozen=True)
class Available:
    """The probe's answer if the backend works on this machine. ``detail`` is for people: ``libx.so 3.1.0, 2 devices``.
    ``library``: the vendor's library that the probe has found; the backend's own library gets it as its option
    ``library``, unless the user has set that option."""

    detail: str = ""
    library: str = ""


@dataclass(frozen=True)
class Unavailable:
    """The probe's answer if the backend does not work on this machine. ``reason``: what is missing; ``fix``: what the
    user can do about it."""

    reason: str
    fix: str = ""


def always() -> Available:
    """The probe of a backend that has no requirements."""
    return Available()


@dataclass(frozen=True)
class BackendDescriptor:
    """One backend of a package.

    The entry point in group ``hvd_core.backends`` has the backend's name, and is a function without arguments that
    returns a descriptor. Making a descriptor must not load a library or look for a device; the probe does that.
    """

    name: str
    """1 to 32 characters of a-z, 0-9, '_', '-'. Equal to the entry point's name and to the name in the library's
    table."""
    abi: tuple[int, int]
    """(major, minor) of the backend ABI that the library was built against."""
    devices: tuple[str, ...]
    """The device types whose memory it serves; "cpu" is host memory."""
    provides: frozenset[str]
    """The tables that it has: "device", "comm" or both."""
    library: Path | None
    """Absolute path of the shared object; None for a backend in Python."""
    priority: int = 50
    """For the automatic choice only; the higher one goes first."""
    requires: tuple[str, ...] = ()
    """The libraries that it needs, for messages: ``libx.so >= 3.1``."""
    probe: Callable[[], Available | Unavailable] = always
    """Returns whether the backend works on this machine. Must take less than a second and open no device; may open the
    vendor's library. Called on a thread of its own."""
    spans_hosts: bool = True
    """Whether one communicator can reach ranks on several hosts."""
    python: str | None = None
    """``package.module:Class``, a subclass of PythonBackend, in place of a library. Never chosen automatically."""
    launchers: tuple[str, ...] = ()
    """The launchers in whose jobs alone the backend's library finds the other ranks, by the names of ``World.launcher``
    ("openmpi", "mpich", ...). The automatic choice then uses it between the hosts of jobs of these launchers only."""
    launch: Callable[[int], list[str]] | None = None
    """For a backend with ``launchers``: returns the words of a command that starts the given number of processes as one
    job on this machine; a program and its arguments are appended. Raises LookupError, with the fix, if no launcher is
    installed. The conformance kit uses it."""

    @classmethod
    def from_file(cls, file: str | Path, **more: Any) -> BackendDescriptor:
        """The descriptor whose name, ABI, devices, tables, priority, reach and launchers stand in ``file``, the wheel's
        ``NAME.hvd.toml``. ``more``: the other fields, and fields that replace those of the file.

        Raises ValueError if the file's name or its contents cannot be read; OSError.
        """
        path = Path(file)
        if not path.name.endswith(SUFFIX):
            raise ValueError(f"{path}: the file must be called NAME{SUFFIX}, with the backend's name")
        found = read_file(path)
        known: dict[str, Any] = {
            "name": path.name.removesuffix(SUFFIX),
            "abi": found.abi,
            "devices": found.devices,
            "provides": found.provides,
            "priority": found.priority,
            "spans_hosts": found.spans_hosts,
            "launchers": found.launchers,
        }
        return cls(**(known | {"library": None} | more))
