"""Python objects of one rank for all ranks. Used by every front end: the engine moves bytes of host memory.

All ranks of the process set call these functions, one thread each. Ranks with different frameworks can take part in
one call. Unpickling runs code of the sender, as in Horovod: the ranks of a job trust each other.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

import numpy as np

import hvd_core
from horovod.common.basics import runtime
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, global_process_set
from hvd_core._runtime.refusals import report, reported

try:
    from cloudpickle import Pickler  # also takes lambdas and classes of __main__
    from cloudpickle import dumps as _dumps
except ImportError:
    from pickle import Pickler

    _dumps = pickle.dumps

__all__ = ["Pickler", "allgather_object", "broadcast_object"]


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a Python object of the root to all ranks.

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
    name = "broadcast_object" if name is None else name
    me = runtime().rank()  # before init() the missing init() is the better message
    with reported("broadcast", name_of_size(name), process_set):
        name = f"{name}"
        is_root = bool(me == root_rank)
        data = _bytes_of(obj) if is_root else np.empty(0, np.uint8)
        length = np.array([data.size], np.int64)
    hvd_core.broadcast_(length, root_rank, f"{name}.sz", process_set)
    with reported("broadcast", f"broadcast.{name}.t", process_set):
        if not is_root:
            data = np.empty(int(length[0]), np.uint8)
    hvd_core.broadcast_(data, root_rank, f"{name}.t", process_set)
    return obj if is_root else pickle.loads(data.data)


def name_of_size(name: Any) -> str:
    """The name of the first request of broadcast_object(): the number of bytes. A name that cannot be made a text stands
    for the default, as in a call without a name."""
    try:
        return f"broadcast.{name}.sz"
    except Exception:
        return "broadcast.broadcast_object.sz"


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Gather one Python object of every rank.

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
    parts = ["allgather_object.sz", "allgather_object.t"]
    runtime().rank()  # before init() the missing init() is the better message
    try:
        if name is not None:
            parts = [f"{name}.sz", f"{name}.t"]
        data = _bytes_of(obj)
        length = np.array([data.size], np.int64)
    except BaseException as error:
        for part in parts:
            report("allgather", part, process_set, error, "allgather")
        raise
    try:
        handle = hvd_core.allgather_async(length, parts[0], process_set)
    except BaseException as error:  # the first of the two operations has been reported
        report("allgather", parts[1], process_set, error, "allgather")
        raise
    try:
        everything = hvd_core.allgather(data, parts[1], process_set)
    except HorovodInternalError:
        with suppress(HorovodInternalError):
            hvd_core.synchronize(handle)  # so that the handle is released
        raise
    lengths = hvd_core.synchronize(handle)
    return [pickle.loads(everything[end - n : end].data) for n, end in zip(lengths, np.cumsum(lengths))]


def _bytes_of(obj: Any) -> np.ndarray:
    # A copy, since the engine takes only memory that can be written for operations in place.
    return np.frombuffer(bytearray(_dumps(obj)), np.uint8)
