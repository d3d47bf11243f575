"""Python objects of one rank for all ranks, and checks that ranks are about to send the same structure. Used by every
front end: the engine moves bytes of host memory.

All ranks of the process set call these functions, one thread each. Ranks with different frameworks can take part in
one call. Unpickling runs code of the sender, as in Horovod: the ranks of a job trust each other.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import hvd_core
from horovod.common.basics import runtime
from horovod.common.exceptions import OperationFailedError
from horovod.common.failed_calls import reported_for_each
from horovod.common.process_sets import ProcessSet, global_process_set
from hvd_core._runtime.failures import report_failure

__all__ = [
    "Entry",
    "Pickler",
    "StructuresDiffer",
    "allgather_object",
    "broadcast_object",
    "prepared",
    "require_same",
]


try:
    from cloudpickle import Pickler  # also takes lambdas and classes of __main__
    from cloudpickle import dumps as _dumps
except ImportError:
    from pickle import Pickler

    _dumps = pickle.dumps


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a Python object of the root to all ranks.

        settings = hvd.broadcast_object(settings, root_rank=0)

    Args:
        obj: the object that the root sends, of any type that cloudpickle takes; ignored on the other ranks.
        root_rank: the GLOBAL rank that sends, also within a process set.
        name: identifies the operation across ranks; the default is the same for all objects.
        process_set: the ranks that take part.

    Returns:
        At the root ``obj`` itself, elsewhere a copy of the root's object.

    Raises:
        ValueError: Horovod is not initialized, or the root is not in the process set. The errors of pickling; the other
            ranks' calls fail then.
        HorovodInternalError: a rank is gone.
    """
    # The original names it after the object's type, which stalls where the others pass None.
    names = ["broadcast_object.sz"]
    me = runtime().rank()  # before init() the missing init() is the better message
    with reported_for_each("broadcast", "broadcast", names, process_set):
        name = "broadcast_object" if name is None else f"{name}"
        names[0] = f"{name}.sz"
        is_root = bool(me == root_rank)
        data = _bytes_of(obj) if is_root else np.empty(0, np.uint8)
    length = np.array([data.size], np.int64)
    hvd_core.broadcast_(length, root_rank, f"{name}.sz", process_set)
    if not is_root:
        data = np.empty(int(length[0]), np.uint8)
    hvd_core.broadcast_(data, root_rank, f"{name}.t", process_set)
    return obj if is_root else pickle.loads(data.data)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Gather one Python object of every rank.

        hosts = hvd.allgather_object(socket.gethostname())

    Args:
        obj: an object of any type that cloudpickle takes.
        name: identifies the operation across ranks; the default is the same for all objects.
        process_set: the ranks that take part.

    Returns:
        The objects in rank order, the same list on all ranks.

    Raises:
        ValueError: Horovod is not initialized. HorovodInternalError: a rank is gone. The errors of pickling; the other
            ranks' calls fail then.
    """
    names = ["allgather_object.sz"]
    runtime().rank()  # before init() the missing init() is the better message
    with reported_for_each("allgather", "allgather", names, process_set):
        name = "allgather_object" if name is None else f"{name}"
        names[0] = f"{name}.sz"
        data = _bytes_of(obj)
    lengths = hvd_core.allgather(np.array([data.size], np.int64), f"{name}.sz", process_set)
    everything = hvd_core.allgather(data, f"{name}.t", process_set)
    return [pickle.loads(everything[end - n : end].data) for n, end in zip(lengths, np.cumsum(lengths))]


def _bytes_of(obj: Any) -> np.ndarray:
    # A copy, since the engine takes only memory that can be written for operations in place.
    return np.frombuffer(bytearray(_dumps(obj)), np.uint8)


# ---- Structures: compares what the ranks are about to send (names, shapes, dtypes), before anything is sent
#
# Functions that send a whole structure (the parameters of a model, the state of an optimizer) call require_same() first.
# Without it a rank whose model has another layer would wait for a tensor that no other rank sends. It costs one small
# allreduce.
#
# Any thread, but calls at the same time need different names. The name is what tells the ranks' calls apart: made of the
# structures it would differ between ranks whose structures differ, and these would wait instead of fail. Two calls of one
# name that overlap on a rank are refused there. Where they overlap on no rank, but the ranks' threads call in different
# orders, the calls are mixed up.

# The name, the shape (None: not known yet, which fits any) and the dtype of a tensor.
Entry = tuple[str, tuple[int | None, ...] | None, str]

_SHOWN = 6

# The name and the process set of each call under way.
_under_way: set[tuple[str, int | None]] = set()
_lock = threading.Lock()


class StructuresDiffer(OperationFailedError):
    """The ranks' structures differ; no rank has made a mistake that it could see alone."""


@contextmanager
def prepared(name: str, process_set: ProcessSet) -> Iterator[None]:
    """A guard around everything that comes before require_same(): an exception that leaves it lets the other ranks'
    require_same() fail. Raises the errors of failed_calls.reported_for_each()."""
    with reported_for_each("allreduce", "allreduce", [f"{name}.structure"], process_set):
        yield


def require_same(
    function: str, entries: Iterable[Entry], name: str, process_set: ProcessSet = global_process_set
) -> None:
    """Raise the same error on all ranks of the set unless they have the same entries in the same order.

    Args:
        function: the function that the program has called, for the message.
        entries: this rank's. Give them an order where theirs does not matter.
        name: identifies the call across ranks.
        process_set: the ranks that take part.

    Raises:
        StructuresDiffer: the ranks differ. OperationFailedError: another rank's call failed in prepared().
        ValueError: this rank is not in the process set, or another thread of it is in a call of this name now.
            HorovodInternalError: a rank is gone.
    """
    own = [(str(key), None if shape is None else tuple(shape), str(dtype)) for key, shape, dtype in entries]
    with _alone(function, name, process_set):
        _compare(function, own, name, process_set)


@contextmanager
def _alone(function: str, name: str, process_set: ProcessSet) -> Iterator[None]:
    """Raises ValueError if another thread of this rank is within a block of this name; the other ranks' call fails."""
    key = (name, getattr(process_set, "process_set_id", None))
    with _lock:
        taken = key in _under_way
        _under_way.add(key)
    if taken:
        with report_failure("allreduce", f"allreduce.{name}.structure", process_set):
            raise ValueError(
                f"{function}: another thread is in a call of the name {name!r}, and the ranks cannot tell the two "
                "apart. Make one call after the other, in the same order on all ranks. Functions that take `name` can be "
                "called at the same time with different names, the same on all ranks."
            )
    try:
        yield
    finally:
        with _lock:
            _under_way.discard(key)


def _compare(function: str, own: Sequence[Entry], name: str, process_set: ProcessSet) -> None:
    # All ranks have the greatest and the least value of the hashes, and so the same answer.
    digest = np.frombuffer(hashlib.blake2b(repr(own).encode(), digest_size=16).digest(), np.int64)
    found = hvd_core.allreduce(
        np.concatenate([digest, ~digest]), f"{name}.structure", hvd_core.Max, process_set=process_set
    )
    if (found[:2] == ~found[2:]).all():
        return
    of_ranks = allgather_object(own, f"{name}.structures", process_set)
    differences = _differences(dict(zip(process_set.ranks or range(len(of_ranks)), of_ranks)))
    if differences:
        more = len(differences) - _SHOWN
        listed = "; ".join(differences[:_SHOWN]) + (f"; and {more} more differences" if more > 0 else "")
        raise StructuresDiffer(
            f"{function}: the ranks differ, so nothing was sent: {listed}. Pass the same names, shapes and dtypes on all "
            "ranks."
        )


def _differences(of_ranks: dict[int, Sequence[Entry]]) -> list[str]:
    """The differences between the ranks, one message for each name; empty without any."""
    found = []
    by_name = {rank: {key: (shape, dtype) for key, shape, dtype in own} for rank, own in of_ranks.items()}
    for key in dict.fromkeys(key for own in by_name.values() for key in own):
        having = {rank: own[key] for rank, own in by_name.items() if key in own}
        if missing := [rank for rank in by_name if rank not in having]:
            found.append(f"{key!r} is on {_text_of(having)}, but not on {_text_of(missing)}")
            continue
        kinds: dict[tuple[Any, str], list[int]] = {}
        for rank, value in having.items():
            kinds.setdefault(value, []).append(rank)
        shapes = {shape for shape, _ in kinds if shape is not None}
        if len(shapes) > 1 or len({dtype for _, dtype in kinds}) > 1:
            texts = [
                f"{'' if shape is None else f'{shape} '}{dtype} on {_text_of(ranks)}"
                for (shape, dtype), ranks in kinds.items()
            ]
            found.append(f"{key!r} is " + ", but ".join(texts))
    if not found:
        first, own = next(iter(of_ranks.items()))
        for rank, other in of_ranks.items():
            differ = (i for i, (a, b) in enumerate(zip(own, other)) if a[0] != b[0])
            if (place := next(differ, None)) is not None:
                here, there = own[place][0], other[place][0]
                found.append(f"entry {place} is {here!r} on rank {first}, but {there!r} on rank {rank}")
    return found


def _text_of(ranks: Iterable[int]) -> str:
    numbers = list(ranks)
    listed = ", ".join(str(rank) for rank in numbers[:_SHOWN]) + (", ..." if len(numbers) > _SHOWN else "")
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {listed}"
