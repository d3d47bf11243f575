"""The phases that a backend goes through, and listeners that are told which one runs: for commands that must say in which
phase a plugin has ended their process, for the ranks of `horovodrun` (hvd_core/_runtime/crash_reports.py), and for
the limit of the phases in a job (hvd_core/_runtime/engine_start.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

DISCOVER, DESCRIBE, PROBE, LOAD, OPEN = "discover", "describe", "probe", "load", "open"

Running = tuple[str, str] | None
"""(backend, phase); None between phases."""

_LEFT = "hvd_left"  # the attribute of an exception that has left a phase

_listeners: list[Callable[[Running], None]] = []
_running: Running = None


@contextmanager
def running(backend: str, phase: str) -> Iterator[None]:
    """Code of ``backend`` runs inside of the block, in ``phase``. Phases may be nested: loading may ask the probe."""
    global _running
    if not _listeners:
        yield
        return
    outer, _running = _running, (backend, phase)
    _tell(_running)
    try:
        yield
    except BaseException as error:
        error.__dict__.setdefault(_LEFT, (backend, phase))
        raise
    finally:
        _running = outer
        _tell(outer)


def _tell(now: Running) -> None:
    for listener in _listeners:
        listener(now)


def in_words(now: Running) -> str:
    """``the phase load of backend 'x'``; "" between phases."""
    return f"the phase {now[1]} of backend '{now[0]}'" if now else ""


def left_by(error: BaseException) -> Running:
    """The phase that this exception has left, of those that a listener was told."""
    return getattr(error, _LEFT, None)


def listen(listener: Callable[[Running], None]) -> None:
    """Call ``listener`` at every begin and end of a phase from now on, on the thread that runs the phase."""
    if listener not in _listeners:
        _listeners.append(listener)
