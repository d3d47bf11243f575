"""Which backend moves host memory in this job, and who said so.

First hit wins: the argument of ``init()``, ``HOROVOD_BACKEND``, legacy ``HOROVOD_CPU_OPERATIONS``, automatic.
A backend that was named is used or the job stops; only a list allows the next of its members, because its
author wrote a list. The answer depends on the environment and on what all ranks share, never on one machine.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_core.backends.errors import BackendError, BackendNotInstalled, BackendUnavailable
from hvd_core.backends.registry import InstalledBackend, describe_installed, installed

OPERATIONS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")

_HOST = "cpu"


class OneHostOnly(BackendUnavailable):
    """A backend was named that cannot reach all hosts of the job. In a list it may still serve within hosts."""


_log = logging.getLogger("horovod")
_said: set[str] = set()


@dataclass(frozen=True)
class Selection:
    """The backend for host memory: its name, its shared object, and the source of the choice.

    ``source`` reads ``HOROVOD_BACKEND``, ``init(backend=...)``, ``HOROVOD_CPU_OPERATIONS`` or ``automatic``.
    """

    name: str
    path: str
    source: str


@dataclass(frozen=True)
class _Rule:
    """One entry of a ``HOROVOD_BACKEND`` text: None for device or operation means all of them."""

    device: str | None
    operation: str | None
    name: str


def select(
    environ: Mapping[str, str],
    world: Any = None,
    argument: str | type | Sequence[str | type] | None = None,
    available: tuple[InstalledBackend, ...] | None = None,
) -> Selection:
    """Choose the backend for tensors in host memory.

    ``world`` is the job's World (``hosts``: host index of each rank, ``host_names``: one per rank, ``rank``);
    None stands for a job of one process. ``argument`` is what ``init(backend=...)`` was given: a name, a text
    in the syntax of HOROVOD_BACKEND, or a list of names; a subclass of PythonBackend stands for its name.
    ``available`` replaces the installed backends.

    Raises ValueError for a text that cannot be read, BackendNotInstalled for an unknown name,
    BackendUnavailable when no usable backend reaches all hosts of the job, BackendLoadError when the library
    file is missing.
    """
    argument = with_names(argument)
    backends = installed() if available is None else available
    for text, source in (
        (argument, "init(backend=...)"),
        (environ.get("HOROVOD_BACKEND"), "HOROVOD_BACKEND"),
    ):
        if text:
            chosen = _named(text, source, world, backends)
            if chosen is not None:
                return Selection(chosen.name, str(chosen.path()), source)
    chosen = _legacy(environ.get("HOROVOD_CPU_OPERATIONS", ""), world, backends)
    if chosen is not None:
        return Selection(chosen.name, str(chosen.path()), "HOROVOD_CPU_OPERATIONS")
    return select_automatic(world, backends)


def with_names(argument: str | type | Sequence[str | type] | None) -> str | Sequence[str] | None:
    """The argument of ``init(backend=...)`` with names instead of classes, which are registered by that."""
    if argument is None or isinstance(argument, str):
        return argument
    from hvd_core.backends.python_backend import register_python_backend

    if isinstance(argument, type):
        return register_python_backend(argument).name
    return [register_python_backend(a).name if isinstance(a, type) else a for a in argument]


def select_automatic(world: Any, backends: tuple[InstalledBackend, ...]) -> Selection:
    """What is chosen when nothing is named; ``world`` None is a job on one host."""
    chosen = _automatic(world, backends)
    return Selection(chosen.name, str(chosen.path()), "automatic")


def listed_names(environ: Mapping[str, str], argument: str | Sequence[str] | None) -> list[str]:
    """The names for host memory, in order, of the text that select() goes by; [] when it goes by none."""
    for text, source in (
        (argument, "init(backend=...)"),
        (environ.get("HOROVOD_BACKEND"), "HOROVOD_BACKEND"),
    ):
        if text:
            rules = _parse(text, source)
            host = [r.name for r in rules if r.device == _HOST and r.operation is None]
            names = host or [r.name for r in rules if r.device is None]
            if names:
                return names
    return []


def _named(
    text: str | Sequence[str], source: str, world: Any, backends: tuple[InstalledBackend, ...]
) -> InstalledBackend | None:
    """The backend that a text names for host memory; None when it speaks of other devices only."""
    rules = _parse(text, source)
    broad = [r.name for r in rules if r.device is None]
    narrow = [r for r in rules if r.device is not None]
    for rule in narrow:
        _find(rule.name, source, backends)
    host = [r for r in narrow if r.device == _HOST]
    whole = [r.name for r in host if r.operation is None]
    names = whole or broad
    chosen = _first_usable(names, source, world, backends) if names else None
    for rule in host:
        if rule.operation is None:
            continue
        # One backend serves all operations on host memory so far; anything else would be a broken promise.
        special = _first_usable([rule.name], source, world, backends)
        chosen = chosen or _automatic(world, backends)
        if special.name != chosen.name:
            raise BackendError(
                f"horovod: backend '{special.name}' (from {source}) is asked for {_HOST}.{rule.operation}, "
                f"and '{chosen.name}' for the rest; one backend must serve all operations on host memory.\n"
                f"  fix: name one backend for {_HOST}, such as HOROVOD_BACKEND={chosen.name}"
            )
    return chosen


def _parse(text: str | Sequence[str], source: str) -> list[_Rule]:
    items = text.split(",") if isinstance(text, str) else list(text)
    rules = []
    for item in items:
        key, equals, name = item.strip().lower().rpartition("=")
        device, dot, operation = key.strip().partition(".")
        name, device, operation = name.strip(), device.strip(), operation.strip()
        if not name or (equals and not device) or (dot and not operation):
            shown = text if isinstance(text, str) else ",".join(text)
            raise ValueError(
                f"horovod: {source} = '{shown}' cannot be read: '{item.strip()}' is not an entry.\n"
                "  entries: NAME, DEVICE=NAME or DEVICE.OPERATION=NAME, separated by commas; "
                "such as shm or cpu=shm"
            )
        if operation and operation not in OPERATIONS:
            raise ValueError(
                f"horovod: {source}: '{operation}' is not an operation."
                f"{_did_you_mean(operation, OPERATIONS)}\n"
                f"  operations: {', '.join(OPERATIONS)}"
            )
        rules.append(_Rule(device or None, operation or None, name))
    return rules


def _did_you_mean(word: str, words: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, words, n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def _find(name: str, source: str, backends: tuple[InstalledBackend, ...]) -> InstalledBackend:
    for backend in backends:
        if backend.name == name:
            return backend
    raise BackendNotInstalled(
        f"horovod: backend '{name}' (from {source}) is not installed."
        f"{_did_you_mean(name, [b.name for b in backends if not b.candidate.for_tests])}\n"
        f"  installed: {describe_installed(backends)}\n"
        "  list: hvd plugin list"
    )


def _first_usable(
    names: list[str], source: str, world: Any, backends: tuple[InstalledBackend, ...]
) -> InstalledBackend:
    """The first member of a list that can serve the job; the first member's error when none can."""
    first_error: BackendError | None = None
    for name in names:
        try:
            backend = _find(name, source, backends)
            _check_reach(backend, source, world, backends, alone=len(names) == 1)
        except BackendError as error:
            first_error = first_error or error
            continue
        if first_error is not None and not isinstance(first_error, OneHostOnly):
            reason = str(first_error).splitlines()[0].removeprefix("horovod: ")
            _warn_once(world, f"horovod: {reason} Using '{name}', the next that {source} lists.")
        return backend
    assert first_error is not None
    raise first_error


def _legacy(value: str, world: Any, backends: tuple[InstalledBackend, ...]) -> InstalledBackend | None:
    """HOROVOD_CPU_OPERATIONS was a build-time choice that images still export: a name we lack is no error."""
    name = value.strip().lower()
    if not name:
        return None
    for backend in backends:
        if backend.name == name:
            _check_reach(backend, "HOROVOD_CPU_OPERATIONS", world, backends, alone=True)
            return backend
    _warn_once(
        world,
        f"horovod: HOROVOD_CPU_OPERATIONS={value.strip()} names a backend that is not installed; ignored, "
        f"the choice is automatic. installed: {describe_installed(backends)}",
    )
    return None


def _automatic(world: Any, backends: tuple[InstalledBackend, ...]) -> InstalledBackend:
    spread = _host_count(world)
    for backend in backends:
        if backend.automatic and (spread == 1 or backend.spans_hosts):
            return backend
    raise BackendUnavailable(
        f"horovod: backend selection: {_spread_text(world)}, and no installed backend reaches across hosts.\n"
        f"  installed: {describe_installed(backends)}\n"
        "  fix: run all ranks on one host, or install a backend that works between hosts\n"
        "  list: hvd plugin list"
    )


def _check_reach(
    backend: InstalledBackend, source: str, world: Any, backends: tuple[InstalledBackend, ...], alone: bool
) -> None:
    if backend.spans_hosts or _host_count(world) == 1:
        return
    able = [b.name for b in backends if b.spans_hosts]
    strict = "  Not falling back, because it was named explicitly.\n" if alone else ""
    fix = f"name one that does: {', '.join(able)}" if able else "run all ranks on one host"
    raise OneHostOnly(
        f"horovod: backend '{backend.name}' (from {source}) works within one host, "
        f"but {_spread_text(world)}.\n"
        f"{strict}  fix: {fix}\n"
        f"  installed: {describe_installed(backends)}"
    )


def _host_count(world: Any) -> int:
    return len(set(world.hosts)) if world is not None else 1


def _spread_text(world: Any) -> str:
    names = list(dict.fromkeys(world.host_names))
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"this job spans {_host_count(world)} hosts ({shown})"


def _warn_once(world: Any, text: str) -> None:
    if text in _said:
        return
    _said.add(text)
    # Every rank comes to the same conclusion; one of them says it.
    if world is None or world.rank == 0:
        _log.warning(text)
