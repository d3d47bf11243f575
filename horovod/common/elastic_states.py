"""States of elastic training, for all frameworks: what a training keeps when the ranks change.

A state is saved at commits and restored after a failure. After a change of the ranks all ranks get that of rank 0. One
thread of a rank calls all of this.
"""

from __future__ import annotations

import enum
import os
import queue
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import hvd_core
from horovod.common import elastic_step, elastic_values
from horovod.common.durable_commits import DurableCommits
from horovod.common.elastic_values import has_state
from horovod.common.exceptions import HostsUpdatedInterrupt
from hvd_core._bootstrap.driver_channel import channel
from hvd_core._runtime.refusals import reported

__all__ = [
    "HostUpdateResult",
    "ObjectState",
    "State",
    "VariablesState",
    "WorkerNotificationManager",
    "commit_async",
    "notification_manager",
    "require_same_names",
]


_PLAIN = "a plain value"
_UPDATE = "horovod.elastic.update"


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

    def _references(self) -> dict[str, Any]:
        """The objects that copies of values refer to as the values do, by names that are equal on all ranks."""
        return {"state": self}

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
            ValueError: keep_commits() was called, and a value of the state cannot be pickled. The other ranks raise
                HorovodInternalError, with this reason.
        """
        self.save()
        self._committed()

    def commit_async(self) -> None:
        """As commit(), but a state whose copies take time makes them while training goes on. Others do as in commit()."""
        self.commit()

    def wait(self) -> None:
        """Return when the copies of the last commit_async() are complete."""

    def _committed(self) -> None:
        driver = channel()
        if driver is not None:
            driver.commits += 1
        if self._durable is not None:
            # The other ranks wait in check_host_updates(), and must hear of a state that cannot be written.
            with reported("allreduce", _UPDATE, None, "allreduce"):
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
        if channel() is not None or self._durable is not None:
            # The ranks read the driver's word at different moments, and must leave together.
            newest = np.array([int(found)], np.int64)
            found = HostUpdateResult(int(hvd_core.allreduce(newest, op=hvd_core.Max, name=_UPDATE)[0]))
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

    Values with the methods state_dict() and load_state_dict() (schedulers of learning rates, samplers, data loaders) stay
    the same objects: their states are copied, restored and sent. Other values are copied (copy.deepcopy) when they are
    saved and restored, and pickled when they are sent. A copy refers to the same objects as the value does where these
    are values with a state, or the state itself; on another rank, to that rank's.

    Raises:
        TypeError: a value can neither be copied nor has a state.
    """

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        # Copies of values, and of the states of values that have one. Those values are in _owners.
        self._saved_state: dict[str, Any] = dict.fromkeys(kwargs)
        self._owners: dict[str, Any] = {}
        for name, value in kwargs.items():
            setattr(self, name, value)
        ObjectState.save(self)
        ObjectState.restore(self)

    def save(self) -> None:
        self._owners, self._saved_state = self._copies_of(self._present())

    def restore(self) -> None:
        self._set(elastic_values.copied(self._saved_state, self._references), self._owners)

    def sync(self) -> None:
        self._require_same_values()
        self._sync_values()

    def _require_same_values(self) -> None:
        """Raise ValueError on the ranks whose modules, optimizers and other values with a state are not those of rank 0.
        Only these need a counterpart: plain values are set. The other ranks go on, and notice when such a rank leaves."""
        own = self._kinds()
        of_root = self._bcast_object(own if self._rank() == 0 else None)
        for name in sorted(own.keys() | of_root.keys()):
            here, there = own.get(name, "missing"), of_root.get(name, "missing")
            if here != there and {here, there} != {"missing", _PLAIN}:
                raise ValueError(
                    f"{type(self).__name__}.sync(): the value {name!r} of the state is {there} on rank 0, but {here} on "
                    f"rank {self._rank()}. Before the training function is called, give the state the same modules, "
                    "optimizers and other objects with state_dict() on all ranks."
                )

    def _kinds(self) -> dict[str, str]:
        """By name, what each value is."""
        return {
            name: "an object with state_dict() and load_state_dict()" if has_state(value) else _PLAIN
            for name, value in self._present().items()
        }

    def _sync_values(self) -> None:
        self._take_sent(self._present())
        ObjectState.save(self)

    def _references(self) -> dict[str, Any]:
        return {**super()._references(), **{name: v for name, v in self._present().items() if has_state(v)}}

    def durable_parts(self) -> dict[str, Any]:
        return {"values": self._saved_state}

    def set_durable_parts(self, parts: dict[str, Any]) -> None:
        require_same_names(self._saved_state, parts["values"])
        self._saved_state = parts["values"]

    def _present(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}

    def _copies_of(self, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """New values of _owners and _saved_state."""
        owners, contents = _taken_apart(values)
        return owners, elastic_values.copied(contents, self._references)

    def _set(self, values: dict[str, Any], owners: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, owners.get(name, value))
            if name in owners:
                owners[name].load_state_dict(value)

    def _take_sent(self, values: dict[str, Any], note: Any = None) -> Any:
        """Set the values of rank 0, and return its `note`. This rank's values that have a state take that of rank 0."""
        owners, contents = _taken_apart(values)
        sent = elastic_values.Sent(contents, note, self._references)
        found = self._bcast_object(sent if self._rank() == 0 else None)
        if found is sent:
            return note
        contents, note = elastic_values.unpacked(found, self._references)
        for name in contents:
            self._saved_state.setdefault(name)  # plain values that only rank 0 had
        self._set(contents, owners)
        return note


def _taken_apart(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values that have a state; and all values, with the states in place of those."""
    owners = {name: value for name, value in values.items() if has_state(value)}
    return owners, {name: owners[name].state_dict() if name in owners else v for name, v in values.items()}


class VariablesState(ObjectState):
    """An ObjectState with variables of a framework beside its values. A subclass copies them to `_copies`, a list of
    arrays (of NumPy, TensorFlow, PyTorch or JAX) in host memory, before it calls __init__ of this class."""

    _copies: list

    def durable_parts(self) -> dict[str, Any]:
        return {**super().durable_parts(), "variables": self._copies}

    def set_durable_parts(self, parts: dict[str, Any]) -> None:
        if len(parts["variables"]) != len(self._copies):
            raise KeyError(f"{len(parts['variables'])} variables in place of {len(self._copies)}")
        super().set_durable_parts(parts)
        self._copies = parts["variables"]

    def _that_differ(self, variables: list, save: Callable[[], None]) -> list:
        """Those of the variables that the ranks do not have alike. `save` copies all of them to `_copies`."""
        if not elastic_step.is_in_step():
            return variables
        save()  # they are the committed ones, but for what reset callbacks have done
        return [variable for variable, same in zip(variables, elastic_step.alike(self._copies)) if not same]


def commit_async(state: State) -> None:
    """``state.commit()``, but the copies are made while training goes on, if they take time.

    For TorchState. Parameters and the optimizer's state are copied by another thread, which ends before the next
    ``optimizer.step()`` changes them; ``loss.backward()`` and the next batch go on meanwhile. Do not change parameters by
    other means before ``state.wait()``: the commit is lost then. Other states do as in commit(); a commit of TensorFlow's
    variables costs nothing anyway.
    """
    state.commit_async()
