"""The loop around the training function of an elastic job, for all frameworks. elastic_states.py has the states.

A front end's `hvd.elastic.run` decorates the training function with run_fn(). When ranks die, or are added or removed,
the function is left by an exception. The process takes its place in the next world
(hvd_core._runtime.runtime.restart), and the
function is called again with the state of the last commit. docs/elastic.md describes it for users. One thread of a rank
calls all of this.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import hvd_core
from horovod.common import _elastic_job, _elastic_state
from horovod.common._elastic_state import (
    HostUpdateResult,
    ObjectState,
    State,
    WorkerNotificationManager,
    commit_async,
    notification_manager,
)
from horovod.common.basics import runtime
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt, JobEndedError
from hvd_core._bootstrap.driver_channel import DriverChannel, channel
from hvd_core._runtime import current_job
from hvd_core._runtime.process_sets import Workers as workers
from hvd_core._runtime.process_sets import worker_id

__all__ = [
    "HostUpdateResult",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "commit_async",
    "notification_manager",
    "restart",
    "run_fn",
    "worker_id",
    "workers",
]

_log = logging.getLogger("horovod")


def restart() -> None:
    """End the engine and start it again, with the arguments of the last init(): the `reset` of run_fn()."""
    if channel() is None:
        runtime().restart()
        return
    _elastic_job.remember_sets()
    runtime().restart()
    _elastic_job.repeat_outer_sets()


def run_fn(
    func: Callable[..., Any],
    reset: Callable[[], None],
    may_be_of_operation: Callable[[Exception], bool] | None = None,
) -> Callable[..., Any]:
    """`func(state, ...)` as a function that is called again whenever the ranks have changed.

    Args:
        func: the training function; its first parameter is a State.
        reset: ends the engine and starts it again, as restart() does.
        may_be_of_operation: whether an exception is of the kind in which an operation in a compiled program fails when
            the job ends. Frameworks raise exceptions of their own there.

    Returns:
        A function that is called as `func`, and returns its value. It raises what `func` raises, except
        HostsUpdatedInterrupt, the end of the job (JobEndedError) and a plain HorovodInternalError. The other kinds of
        HorovodInternalError are mistakes of the program, which a repetition would meet again.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        driver = channel()
        if driver is not None:
            driver.begin()
        else:
            _elastic_job.warn_once()
        notification_manager.init()
        notification_manager.register_listener(state)
        _elastic_job.begin_run()
        left: BaseException | None = None
        try:
            while True:
                try:
                    if left is not None:
                        _reset(reset, left, driver)
                        _drop_frames(left)
                        state.on_reset()
                    if driver is not None:
                        _elastic_job.exchange()
                    if _sync_is_needed(left, driver):
                        _sync(state, driver, left)
                    with _elastic_job.within_run():
                        value = func(state, *args, **kwargs)
                    if driver is not None:
                        driver.done()
                    return value
                except HostsUpdatedInterrupt as update:
                    left = update
                    if driver is not None:
                        driver.updated = True
                except Exception as error:
                    if not _is_repeated(error, may_be_of_operation):
                        raise
                    left = error
                    state.restore()
        finally:
            notification_manager.remove_listener(state)

    return wrapper


def _is_repeated(error: Exception, may_be_of_operation: Callable[[Exception], bool] | None) -> bool:
    """Whether the training function is called again after this exception."""
    if isinstance(error, JobEndedError) or type(error) is HorovodInternalError:
        return True
    if may_be_of_operation is None or not may_be_of_operation(error):
        return False
    job = current_job.current()
    return job is not None and job.engine.stopped  # it stops before its operations fail


def _reset(reset: Callable[[], None], left: BaseException, driver: DriverChannel | None) -> None:
    if driver is not None:
        _log.info("horovod: this rank leaves its world: %s", left or "the hosts have changed")
        return reset()
    try:
        reset()
    except Exception as failed:
        _log.error("%s", _elastic_job.explanation(os.environ))
        raise left from failed


def _drop_frames(error: BaseException) -> None:
    """The frames of a traceback hold the tensors of the interrupted step, and the engine of the world that has ended."""
    error.__traceback__ = error.__cause__ = error.__context__ = None


def _sync_is_needed(left: BaseException | None, driver: DriverChannel | None) -> bool:
    if left is None:
        # This function has just begun, perhaps as the second one of the program in the same world.
        return True
    if driver is not None and driver.place is not None:
        return driver.place.sync  # the driver has sent all ranks the same
    return not getattr(left, "skip_sync", False)


def _sync(state: State, driver: DriverChannel | None, left: BaseException | None) -> None:
    durable = getattr(state, "_durable", None)
    # A rank that has restored its last commit has what another rank with as many commits has.
    restored = left is not None and not isinstance(left, HostsUpdatedInterrupt)
    commits = np.array(
        [[0 if driver is None else driver.commits, 0 if durable is None else durable.commits, restored]],
        np.int64,
    )
    of_ranks = hvd_core.allgather(commits, "horovod.elastic.commits")
    in_step = bool((of_ranks == of_ranks[0]).all() and of_ranks[0][2])
    with _elastic_state.syncing(in_step):
        state.sync()
    if durable is not None:
        durable.commits = int(of_ranks[0][1])
    if driver is not None:
        driver.commits = int(of_ranks[0][0])
