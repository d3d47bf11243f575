"""Elastic training, for all frameworks: states that are saved and restored, and the loop around a training function.

A front end's `hvd.elastic.run` decorates the training function with run_fn(). When ranks die, or are added or removed,
the function is left by an exception. The process takes its place in the next world (hvd_core.runtime.restart), and the
function is called again with the state of the last commit. docs/elastic.md describes it for users. One thread of a rank
calls all of this.
"""

from __future__ import annotations

import copy
import enum
import functools
import logging
import os
import queue
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import hvd_core
from horovod.common import elastic_launchers, elastic_sets, elastic_shared
from horovod.common.basics import runtime
from horovod.common.durable_commits import DurableCommits
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt, JobEndedError
from hvd_core import current_job
from hvd_core.bootstrap.driver_channel import DriverChannel, channel
from hvd_core.changing_ranks import Workers as workers
from hvd_core.changing_ranks import worker_id

__all__ = [
    "HostUpdateResult",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "notification_manager",
    "restart",
    "run_fn",
    "worker_id",
    "workers",
]

_log = logging.getLogger("horovod")


class HostUpdateResult(enum.IntFlag):
    """Whether hosts were added or removed."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class WorkerNotificationManager:
    """Passes the driver's word that a better world is possible on to the states that are in use."""

    def __init__(self) -> None:
        self._listeners: list[Any] = []
        self._told_world = 0

    def init(self) -> None:
        """Nothing has to be prepared; programs of the original call it."""

    def register_listener(self, listener: Any) -> None:
        """`listener.on_hosts_updated(timestamp, update_result)` is called at commits from now on."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Any) -> None:
        self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Tell all listeners that hosts have changed."""
        for listener in list(self._listeners):
            listener.on_hosts_updated(timestamp, update_res)

    def look(self) -> None:
        """Tell the listeners if the driver has said that this world should be left. It says so once in a world."""
        driver = channel()
        if driver is None or driver.place is None or self._told_world == driver.place.world:
            return
        if driver.update_wanted():
            self._told_world = driver.place.world
            self.handle_hosts_updated(time.monotonic(), HostUpdateResult.mixed)


notification_manager = WorkerNotificationManager()


class State:
    """What a training keeps when the ranks change. Subclasses define save(), restore() and sync().

    Args:
        bcast_object: a function that sends an object of rank 0 to all ranks and returns it.
        get_rank: a function that returns the rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue = queue.Queue()
        self._last_updated_timestamp = 0.0
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._durable: DurableCommits | None = None

    def keep_commits(self, path: str | os.PathLike, every: int = 1) -> bool:
        """Write every `every`-th commit to a file as well, on rank 0, and begin with the commit that the file holds. Call
        it on all ranks before the training function. Rank 0 of the first world must be able to read the file.

        The file is a pickle, which runs code when it is read: read files of your own only.

        Returns:
            Whether this rank has read a commit.

        Raises:
            ValueError: `every` is not an int of at least 1, or the file holds no commit of a state like this one.
        """
        self._durable = DurableCommits(self, path, every)
        if not self._durable.load():
            return False
        self.restore()
        return True

    def durable_parts(self) -> dict[str, Any]:
        """The last commit as values that can be pickled."""
        raise NotImplementedError(f"{type(self).__name__} has no commits that could be written to a file.")

    def set_durable_parts(self, parts: dict[str, Any]) -> None:
        """Take what durable_parts() has returned as the last commit. Raises KeyError or TypeError if it does not fit."""
        raise NotImplementedError(f"{type(self).__name__} has no commits that could be written to a file.")

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Call these functions, without arguments, after each change of the ranks: to scale the learning rate, say."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when this process has a place in a new world, before the state is synchronized."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Called at a commit if hosts have changed; all ranks leave the world in that commit then."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save the state, then check_host_updates(). After a failure, training goes on from the last commit.

        All ranks call it at the same place of their training.

        Raises:
            HostsUpdatedInterrupt: the ranks are about to change, on all ranks in the same commit.
            HorovodInternalError: a rank is gone.
        """
        self.save()
        driver = channel()
        if driver is not None:
            driver.commits += 1
        if self._durable is not None:
            self._durable.committed()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Leave the world if hosts were added or removed. It saves nothing: after it all ranks go on from rank 0's state
        as it is now. All ranks call it at the same place of their training. Raises as commit()."""
        notification_manager.look()
        found = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, result = self._host_messages.get()
            if timestamp > self._last_updated_timestamp:
                self._last_updated_timestamp = timestamp
                found |= result
        if channel() is not None:
            # The ranks read the driver's word at different moments, and must leave together.
            newest = np.array([int(found)], np.int64)
            found = HostUpdateResult(
                int(hvd_core.allreduce(newest, op=hvd_core.Max, name="horovod.elastic.update")[0])
            )
        if found:
            raise HostsUpdatedInterrupt(skip_sync=found == HostUpdateResult.removed)

    def save(self) -> None:
        """Keep a copy of the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the copy of the last save()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the state of rank 0, and save it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to another number of ranks."""


def require_same_names(own: Iterable[str], found: Iterable[str]) -> None:
    """Raises KeyError if the names of two states differ."""
    if set(own) != set(found):
        raise KeyError(f"values {sorted(found)} in place of {sorted(own)}")


class ObjectState(State):
    """A state of plain Python values, which are its attributes: ObjectState(bcast, rank, epoch=0).epoch.

    Values are copied (copy.deepcopy) when they are saved and restored, and pickled when they are sent.
    """

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = dict(kwargs)
        self._set_attrs()

    def save(self) -> None:
        self._saved_state = copy.deepcopy(self._present())

    def restore(self) -> None:
        self._set_attrs()

    def sync(self) -> None:
        if self._saved_state:
            self._saved_state = self._bcast_object(self._present())
            self._set_attrs()

    def durable_parts(self) -> dict[str, Any]:
        return {"values": self._saved_state}

    def set_durable_parts(self, parts: dict[str, Any]) -> None:
        require_same_names(self._saved_state, parts["values"])
        self._saved_state = parts["values"]

    def _present(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}

    def _set_attrs(self) -> None:
        for name, value in copy.deepcopy(self._saved_state).items():
            setattr(self, name, value)


def restart() -> None:
    """End the engine and start it again, with the arguments of the last init(): the `reset` of run_fn()."""
    if channel() is None:
        return runtime().restart()
    elastic_sets.note()
    runtime().restart()
    elastic_sets.add_outer()


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
            elastic_launchers.warn_once()
        notification_manager.init()
        notification_manager.register_listener(state)
        elastic_sets.begin_run()
        left: BaseException | None = None
        try:
            while True:
                try:
                    if left is not None:
                        _reset(reset, left, driver)
                        state.on_reset()
                    if driver is not None:
                        elastic_shared.exchange()
                    if _sync_is_needed(left, driver):
                        _sync(state, driver)
                    with elastic_shared.within_run():
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
        _log.error("%s", elastic_launchers.explanation(os.environ))
        raise left from failed


def _sync_is_needed(left: BaseException | None, driver: DriverChannel | None) -> bool:
    if left is None:
        # This function has just begun, perhaps as the second one of the program in the same world.
        return True
    if driver is not None and driver.place is not None:
        return driver.place.sync  # the driver has told all ranks the same
    return not getattr(left, "skip_sync", False)


def _sync(state: State, driver: DriverChannel | None) -> None:
    commits = np.array([0 if driver is None else driver.commits], np.int64)
    hvd_core.broadcast_(commits, 0, "horovod.elastic.commits")
    state.sync()
    if driver is not None:
        driver.commits = int(commits[0])
