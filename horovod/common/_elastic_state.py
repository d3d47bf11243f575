"""States of elastic training, for all frameworks: what a training keeps when the ranks change.

A state is saved at commits and restored after a failure. After a change of the ranks all ranks get that of rank 0. One
thread of a rank calls all of this.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import glob
import hashlib
import io
import logging
import os
import pickle
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import hvd_core
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.common.exports import rank
from horovod.common.objects import Pickler
from hvd_core._bootstrap.driver_channel import channel
from hvd_core._runtime.failures import report_failure

# ---- Tensors that all ranks have already
#
# After a death all survivors have restored the same commit, so nothing has to be sent but what they have for themselves
# (the running statistics of a batch norm, say). Each rank computes a short sum over each tensor, which takes a fraction
# of the time that sending does, and the sums are compared.

# A prime number of words, so that no common shape repeats in a column.
_COLUMNS = 1021
_in_step = False


@contextlib.contextmanager
def syncing(in_step: bool) -> Iterator[None]:
    """A context in which states are sent. `in_step`: all ranks have restored the same commit; equal on all ranks."""
    global _in_step
    _in_step = in_step
    try:
        yield
    finally:
        _in_step = False


def is_in_step() -> bool:
    """Whether alike() compares anything."""
    return _in_step


def alike(arrays: Sequence[Any]) -> list[bool]:
    """Whether each of the arrays is the same on all ranks. If the ranks are not in step, all of them count as different.

    A collective call of all ranks, with the copies that they have restored. Raises HorovodInternalError: a rank is gone.

    Args:
        arrays: what np.asarray() takes, best without a copy. None, or an array of objects, is never the same.
    """
    if not _in_step or not arrays:
        return [False] * len(arrays)
    found = [None if array is None else np.asarray(array) for array in arrays]
    found = [None if array is None or array.dtype.hasobject else array for array in found]
    sums = np.stack([_sum_of(array) for array in found])
    of_ranks = hvd_core.allgather(sums, "horovod.elastic.sums").reshape(-1, 2)
    if len(of_ranks) != len(sums) * hvd_core.size():
        return [False] * len(arrays)
    same = (of_ranks.reshape(hvd_core.size(), len(sums), 2) == sums).all(axis=(0, 2))
    return [array is not None and bool(ok) for array, ok in zip(found, same)]


def _sum_of(array: np.ndarray | None) -> np.ndarray:
    """128 bits that differ if the array does: a hash of the sums of the columns, as a hash of all bytes takes longer than
    sending them."""
    found = hashlib.blake2b(digest_size=16)
    if array is not None:
        whole = np.ascontiguousarray(array)
        found.update(f"{whole.dtype} {whole.shape}".encode())
        data = whole.reshape(-1).view(np.uint8)
        rows = data.nbytes // (8 * _COLUMNS)
        if rows > 8:
            summed = data[: rows * 8 * _COLUMNS]
            found.update(summed.view(np.uint64).reshape(rows, _COLUMNS).sum(axis=0))
            data = data[summed.nbytes :]
        found.update(data.data)
    return np.frombuffer(found.digest(), np.int64)


# ---- Copies of values: in memory, as bytes for other ranks, and in files
#
# A value may refer to objects that a copy must not double: the model, the optimizer, the state itself. Copies refer to
# the same objects, and on another rank to that rank's.

# Types of values that need no copy, and refer to nothing.
ATOMS = (bool, int, float, complex, str, bytes, type(None))

_WAY_OUT = (
    "Keep it outside of the state, or give its class the methods state_dict() and load_state_dict(): then it stays the "
    "same object, and its state is saved and restored."
)

# Objects that stay as they are, by names that are equal on all ranks.
References = Callable[[], Mapping[str, Any]]


def has_state(value: Any) -> bool:
    """Whether a value is saved and restored through its own methods."""
    kind = type(value)
    return callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))


def copy_values(values: dict[str, Any], references: References) -> dict[str, Any]:
    """A deep copy of named values.

    Raises:
        TypeError: a value cannot be copied; the message names it.
    """
    if all(type(value) in ATOMS for value in values.values()):
        return dict(values)
    kept = list(references().values())
    try:
        return copy.deepcopy(values, _memo(kept))
    except Exception as error:
        name = _first_that_fails(values, lambda value: copy.deepcopy(value, _memo(kept)))
        raise TypeError(
            f"The value {name!r} of the state cannot be copied ({type(error).__name__}: {error}). {_WAY_OUT}"
        ) from error


def _memo(kept: list[Any]) -> dict[int, Any]:
    return {id(value): value for value in kept}


def _first_that_fails(values: dict[str, Any], function: Callable[[Any], Any]) -> str:
    for name, value in values.items():
        try:
            function(value)
        except Exception:
            return name
    return ", ".join(values)


class Sent:
    """Values to send to other ranks, where they arrive as bytes for unpacked(). The function that sends them pickles
    them, and so reports an error of pickling.

    Args:
        values: by name.
        note: anything that goes with them.
    """

    def __init__(self, values: dict[str, Any], note: Any, references: References) -> None:
        self._values, self._note, self._references = values, note, references

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (self._packed(),)

    def _packed(self) -> bytes:
        try:
            return _packed((self._values, self._note), self._references)
        except Exception as error:
            name = _first_that_fails(self._values, lambda value: _packed(value, self._references))
            raise TypeError(
                f"The value {name!r} of the state cannot be sent to other ranks ({type(error).__name__}: {error}). "
                f"{_WAY_OUT}"
            ) from error


def _packed(value: Any, references: References) -> bytes:
    file = io.BytesIO()
    save_value(value, file, references, Pickler)
    return file.getvalue()


def unpacked(data: bytes, references: References) -> tuple[dict[str, Any], Any]:
    """The values that another rank has sent, and the note."""
    found: tuple[dict[str, Any], Any] = load_value(io.BytesIO(data), references)
    return found


def save_value(value: Any, file: Any, references: References, pickler: type = pickle.Pickler) -> None:
    """Pickle a value into a file, with the names of the objects that it refers to."""
    names = {id(kept): name for name, kept in references().items()}

    class WithReferences(pickler):
        def persistent_id(self, found: Any) -> str | None:
            return names.get(id(found))

    WithReferences(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)


def load_value(file: Any, references: References) -> Any:
    """What save() has written. Raises pickle.UnpicklingError if it refers to an object that is not here."""

    class WithReferences(pickle.Unpickler):
        def persistent_load(self, name: str) -> Any:
            try:
                return references()[name]
            except KeyError:
                raise pickle.UnpicklingError(
                    f"it refers to {name!r}, which this state does not have"
                ) from None

    return WithReferences(file).load()


# ---- Commits in files

_log = logging.getLogger("horovod")


class DurableCommits:
    """Writes every n-th commit of a state to a file, on rank 0.

    Args:
        state: has the methods durable_parts(), set_durable_parts() and _references().
        path: of the file. A commit replaces it as a whole.
        every: commits from one that is written to the next.
    """

    def __init__(self, state: Any, path: str | os.PathLike[str], every: int) -> None:
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"keep_commits() needs an int of at least 1 for `every`, but found {every!r}.")
        self._state, self._path, self._every = state, os.fspath(path), every
        self._checked = self._tidied = False
        self.commits = 0  # of the job: new ranks get the number of rank 0

    def load(self) -> bool:
        """Gives the state the commit in the file. Returns False if there is no file.

        Raises:
            ValueError: the file holds no commit of a state like this one.
        """
        try:
            with open(self._path, "rb") as file:
                parts = load_value(file, self._state._references)
        except FileNotFoundError:
            return False
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
            raise ValueError(f"{self._path} holds no commit that can be read: {error}. Delete it.") from None
        try:
            self._state.set_durable_parts(parts)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{self._path} holds a commit of another state than this one ({error}). Delete it, or give the state the "
                "values that it had."
            ) from None
        return True

    def committed(self) -> None:
        """The state has just been committed. A file that cannot be written is logged; training continues. Raises
        ValueError at the first commit of a rank, whichever it is, if the state cannot be pickled."""
        if not self._checked:
            self._check()
            self._checked = True
        self.commits += 1
        if rank() != 0 or self.commits % self._every:
            return
        new = f"{self._path}.{os.getpid()}.new"
        try:
            if not self._tidied:
                self._remove_leftovers()
                self._tidied = True
            with open(new, "wb") as file:
                save_value(self._state.durable_parts(), file, self._state._references)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
        except OSError as error:
            _log.error("horovod: commit %d could not be written: %s", self.commits, error)
        finally:
            with contextlib.suppress(OSError):  # it has its final name
                os.unlink(new)

    def _remove_leftovers(self) -> None:
        """Removes what processes left that were killed while they wrote. No other process may write: this is rank 0."""
        for left in glob.glob(f"{glob.escape(self._path)}.*.new"):
            with contextlib.suppress(OSError):
                os.unlink(left)

    def _check(self) -> None:
        for group, values in self._state.durable_parts().items():
            named = values.items() if isinstance(values, dict) else [(group, values)]
            for name, value in named:
                try:
                    save_value(value, _Nowhere(), self._state._references)
                except Exception as error:  # of the value's own methods, too
                    raise ValueError(
                        f"keep_commits(): the value {name!r} of the state cannot be written to {self._path}, as it "
                        f"cannot be pickled ({type(error).__name__}: {error}). Keep something instead that can."
                    ) from None


class _Nowhere:
    """A file that forgets what is written to it."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


# ---- States

_PLAIN = "a plain value"
_UPDATE = "horovod.elastic.update"


class HostUpdateResult(enum.IntFlag):
    """Whether hosts were added or removed."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class WorkerNotificationManager:
    """Passes the driver's notification that a better world is possible on to the states that are in use."""

    def __init__(self) -> None:
        self._listeners: list[Any] = []
        self._notified_world = 0

    def init(self) -> None:
        """Nothing has to be prepared; programs of the original call it."""

    def register_listener(self, listener: Any) -> None:
        """`listener.on_hosts_updated(timestamp, update_result)` is called at commits from now on."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Any) -> None:
        self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Notify all listeners that hosts have changed."""
        for listener in list(self._listeners):
            listener.on_hosts_updated(timestamp, update_res)

    def look(self) -> None:
        """Notify the listeners, once in a world, if the driver wants this world to be left."""
        driver = channel()
        if driver is None or driver.place is None or self._notified_world == driver.place.world:
            return
        if driver.update_wanted():
            self._notified_world = driver.place.world
            self.handle_hosts_updated(time.monotonic(), HostUpdateResult.mixed)


notification_manager: WorkerNotificationManager = WorkerNotificationManager()


class State:
    """What a training keeps when the ranks change. Subclasses define save(), restore() and sync().

    Args:
        bcast_object: a function that sends an object of rank 0 to all ranks and returns it.
        get_rank: a function that returns the rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp = 0.0
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._durable: DurableCommits | None = None

    def keep_commits(self, path: str | os.PathLike[str], every: int = 1) -> bool:
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
        """Save the state, then check_host_updates(). After a failure, training continues from the last commit.

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
        """As commit(), but a state whose copies take time makes them while training continues. Others call commit()."""
        self.commit()

    def wait(self) -> None:
        """Return when the copies of the last commit_async() are complete."""

    def _committed(self) -> None:
        driver = channel()
        if driver is not None:
            driver.commits += 1
        if self._durable is not None:
            # The other ranks wait in check_host_updates(), and must be notified of a state that cannot be written.
            with report_failure("allreduce", _UPDATE, None, "allreduce"):
                self._durable.committed()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Leave the world if hosts were added or removed. It saves nothing: after it all ranks continue from rank 0's
        state as it is now. All ranks call it at the same place of their training. Raises as commit()."""
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
        raise KeyError(f"values {sorted(found)} instead of {sorted(own)}")


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
        self._set(copy_values(self._saved_state, self._references), self._owners)

    def sync(self) -> None:
        self._require_same_values()
        self._sync_values()

    def _require_same_values(self) -> None:
        """Raise ValueError on the ranks whose modules, optimizers and other values with a state are not those of rank 0.
        Only these need a counterpart: plain values are set. The other ranks continue until such a rank leaves."""
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
        return owners, copy_values(contents, self._references)

    def _set(self, values: dict[str, Any], owners: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, owners.get(name, value))
            if name in owners:
                owners[name].load_state_dict(value)

    def _take_sent(self, values: dict[str, Any], note: Any = None) -> Any:
        """Set the values of rank 0, and return its `note`. This rank's values that have a state take that of rank 0."""
        owners, contents = _taken_apart(values)
        sent = Sent(contents, note, self._references)
        found = self._bcast_object(sent if self._rank() == 0 else None)
        if found is sent:
            return note
        contents, note = unpacked(found, self._references)
        for name in contents:
            self._saved_state.setdefault(name)  # plain values that only rank 0 had
        self._set(contents, owners)
        return note


def _taken_apart(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values that have a state; and all values, with the states instead of those."""
    owners = {name: value for name, value in values.items() if has_state(value)}
    return owners, {name: owners[name].state_dict() if name in owners else v for name, v in values.items()}


class VariablesState(ObjectState):
    """An ObjectState with variables of a framework beside its values. A subclass copies them to `_copies`, a list of
    arrays (of NumPy, TensorFlow, PyTorch or JAX) in host memory, before it calls __init__ of this class."""

    _copies: list[Any]

    def durable_parts(self) -> dict[str, Any]:
        return {**super().durable_parts(), "variables": self._copies}

    def set_durable_parts(self, parts: dict[str, Any]) -> None:
        if len(parts["variables"]) != len(self._copies):
            raise KeyError(f"{len(parts['variables'])} variables instead of {len(self._copies)}")
        super().set_durable_parts(parts)
        self._copies = parts["variables"]

    def _that_differ(self, variables: list[Any], save: Callable[[], None]) -> list[Any]:
        """Those of the variables that the ranks do not have alike. `save` copies all of them to `_copies`."""
        if not is_in_step():
            return variables
        save()  # they are the committed ones, but for what reset callbacks have done
        return [variable for variable, same in zip(variables, alike(self._copies)) if not same]


def commit_async(state: State) -> None:
    """``state.commit()``, but the copies are made while training continues, if they take time.

    For TorchState. Parameters and the optimizer's state are copied by another thread, which ends before the next
    ``optimizer.step()`` changes them; ``loss.backward()`` and the next batch continue meanwhile. Do not change parameters
    by other means before ``state.wait()``: the commit is lost then. Other states do as in commit(); a commit of
    TensorFlow's variables costs nothing anyway.
    """
    state.commit_async()
