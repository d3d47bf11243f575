"""What a backend's package says about itself: the value that its entry point's function returns.

A plugin's module imports this and nothing heavier, so it stays free of NumPy and of the compiled engine. Immutable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Available:
    """A probe's yes. ``detail`` is for people: ``libx.so 3.1.0, 2 devices``."""

    detail: str = ""


@dataclass(frozen=True)
class Unavailable:
    """A probe's no: what is missing on this machine, and what its user can do about it."""

    reason: str
    fix: str = ""


def always() -> Available:
    """The probe of a backend that needs nothing but itself."""
    return Available()


@dataclass(frozen=True)
class BackendDescriptor:
    """One backend of a package. Entry point: group ``hvd_core.backends``, named as the backend, a function without
    arguments that returns this. Making it loads no library and asks no device; that is the probe's part.
    """

    name: str
    """1 to 32 characters of a-z, 0-9, '_', '-'; the same as the entry point's and the library's own."""
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
    """For people, in messages: ``libx.so >= 3.1``."""
    probe: Callable[[], Available | Unavailable] = always
    """Can it work on this machine? Below a second, opens no device; may open the vendor's library. Called by a thread."""
    spans_hosts: bool = True
    """Whether one communicator can reach ranks on several hosts."""
    python: str | None = None
    """``package.module:Class``, a subclass of PythonBackend, in place of a library. Never chosen automatically."""
    launchers: tuple[str, ...] = ()
    """Those whose jobs it belongs to, by the names of ``World.launcher`` ("openmpi", "mpich", ...): its library finds
    the other ranks only there. Then it is chosen automatically between the hosts of such a job, and nowhere else."""
    launch: Callable[[int], list[str]] | None = None
    """For such a backend: the words of a command that starts so many processes of one job on this machine, to be followed
    by a program. LookupError, with what to do, where there is no launcher. Tools use it, such as the conformance kit."""
