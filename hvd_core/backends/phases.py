"""The phases that a backend goes through, and a listener that is told which one runs: for commands that must say in which
phase a plugin has ended their process, and for the ranks of `horovodrun` (hvd_core/last_call.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

DISCOVER, DESCRIBE, PROBE, LOAD, OPEN = "discover", "describe", "probe", "load", "open"

Running = tuple[str, str] | None
"""(backend, phase); None between phases."""

_LEFT = "hvd_left"  # the attribute of an exception that has left a phase

_listener: Callable[[Running], None] | None = None
_running: Running = None


@contextmanager
def running(backend: str, phase: str) -> Iterator[None]:
    """Code of ``backend`` runs inside of the block, in ``phase``. Phases may be nested: loading may ask the probe."""
    global _running
    if _listener is None:
        yield
        return
    outer, _running = _running, (backend, phase)
    _listener(_running)
    try:
        yield
    except BaseException as error:
        error.__dict__.setdefault(_LEFT, (backend, phase))
        raise
    finally:
        _running = outer
        _listener(outer)


def left_by(error: BaseException) -> Running:
    """The phase that this exception has left, of those that a listener was told."""
    return getattr(error, _LEFT, None)


def listen(listener: Callable[[Running], None]) -> None:
    """Call ``listener`` at every begin and end of a phase from now on, on the thread that runs the phase."""
    global _listener
    _listener = listener
