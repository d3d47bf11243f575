"""The limit of a plugin's phases in a job. A phase that does not come back within the start timeout ends this process,
with a message that names the plugin and the phase, before the other ranks give up waiting for this one.

The compiled part keeps the time, because a plugin may hang with Python's lock (engine/bind/plugin_phases.cc). It also
restores the thread's floating-point control after the phases.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from hvd_core.backends import _phases

if TYPE_CHECKING:
    from hvd_core._bootstrap import World

# Of the start timeout, so that this rank speaks before those that wait for it.
_SHARE = 0.9

_job: tuple[ModuleType, World, float] | None = None


def limit(compiled: ModuleType, world: World, start_timeout_s: float) -> None:
    """Limit the phases that run in this job."""
    global _job
    _job = (compiled, world, _SHARE * start_timeout_s)
    _phases.listen(_note)


def end() -> None:
    """The job has ended."""
    global _job
    _job = None


def _note(now: _phases.Running) -> None:
    if _job is not None:
        compiled, world, seconds = _job
        compiled.limit_phase(
            _phases.in_words(now), seconds, world.segment_fd, world.segment_bytes, world.rank
        )
