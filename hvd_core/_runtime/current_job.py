"""The job that this process is in, and its one engine. runtime.init() sets it, shutdown() clears it.

Process sets, front ends and the NumPy API look up the engine here. It imports no native code, so that a program
can make process sets where the engine cannot be loaded (on a Spark driver, for instance). Any thread may read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hvd_core.errors import NotInitializedError

if TYPE_CHECKING:
    from hvd_core._bootstrap.world import World
    from hvd_core._core import Engine
    from hvd_core._runtime.process_sets import ProcessSets
    from hvd_core.backends._selection.plan import BackendPlan

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class Job:
    """The results of one init(): the job as the bootstrap found it, the engine, the choice of backends
    (selection.at_init.JobBackends)."""

    process_sets: ProcessSets
    """Set by init(), before other code can see the job."""

    def __init__(self, world: World, engine: Engine, backends: Any) -> None:
        self.world, self.engine, self.backends = world, engine, backends
        self.pid = os.getpid()
        # (process set, name) of the requests whose weights were announced. See _frontend/initial_weights.py.
        self.announced: set[tuple[int, str]] = set()
        # In an elastic job, the ids of the workers by rank, once they are known. See process_sets.py.
        self.workers: list[int] | None = None

    @property
    def plan(self) -> BackendPlan:
        """The backends chosen so far."""
        plan: BackendPlan = self.backends.plan
        return plan

    def is_parents(self) -> bool:
        """Whether this process is a forked child, which must not touch the engine."""
        return self.pid != os.getpid()


_job: Job | None = None
_called_after_the_job: list[Callable[[], None]] = []


def set_current(job: Job | None) -> None:
    """Called by runtime.init() and shutdown() only, which take turns."""
    global _job
    _job = job


def call_after_the_job(forget: Callable[[], None]) -> None:
    """Have ``forget`` called by each shutdown(). For front ends that keep something for each handle: handles of an ended
    job mean nothing to the next one."""
    _called_after_the_job.append(forget)


def forget_the_job() -> None:
    """Called by shutdown(), after the engine has ended."""
    for forget in _called_after_the_job:
        forget()


def current() -> Job | None:
    """The job; None before init() and after shutdown()."""
    return _job


def get() -> Job:
    """The job. Raises ValueError before init()."""
    job = _job
    if job is None:
        raise NotInitializedError(NOT_INITIALIZED)
    return job


def is_initialized() -> bool:
    """Whether init() has been called, and shutdown() has not."""
    return _job is not None


def engine() -> Engine:
    """The engine. Raises ValueError before init()."""
    # Every operation calls this, so it does not call get().
    job = _job
    if job is None:
        raise NotInitializedError(NOT_INITIALIZED)
    return job.engine


def world() -> World:
    """The job as the bootstrap found it. Raises ValueError before init()."""
    return get().world


def rank() -> int:
    """Rank of this process in the job, from 0. Raises ValueError before init()."""
    return get().world.rank


def size() -> int:
    """Number of processes in the job. Raises ValueError before init()."""
    return get().world.size
