"""Arrays in, handles out: what the NumPy verbs share, and the verbs about handles.

A handle's arrays are kept here until ``synchronize()``. Any thread may call.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from hvd_core import process_sets, runtime
from hvd_core.errors import HorovodInternalError
from hvd_core.process_sets import ProcessSet

# Arrays of operations that were left by Ctrl-C.
abandoned: list[np.ndarray] = []

# handle -> (kind, what to give back, arrays that must stay alive)
results: dict[int, tuple[str, Any, Any]] = {}


class _Capsule:
    """What np.from_dlpack wants to see of a tensor that the engine allocated."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def as_array(tensor: Any) -> np.ndarray:
    """The tensor as an array, without a copy where it is one or speaks DLPack."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if hasattr(tensor, "__dlpack__") and not np.isscalar(tensor):
        return np.from_dlpack(tensor)
    return np.asarray(tensor)


def contiguous(tensor: Any) -> np.ndarray:
    """The same, contiguous; 0-dim arrays stay 0-dim."""
    array = as_array(tensor)
    return np.ascontiguousarray(array).reshape(array.shape)


def as_it_is(tensor: Any) -> Any:
    """For arrays_of(): operations in place take the caller's arrays, and the engine says what is wrong with them."""
    return tensor


def prefixed(prefix: str, name: str | None) -> str | None:
    """The name that is negotiated; operations of different kinds may have the same name."""
    return None if name is None else f"{prefix}.{name}"


def number_of(process_set: ProcessSet | None) -> int:
    """The engine's number of a set; None is all ranks. Raises ValueError for a set that is not registered."""
    return 0 if process_set is None else process_sets.number_of(process_set)


def refused(operation: str, name: str | None, process_set: ProcessSet | None, error: Exception) -> None:
    """A call was refused before the engine saw it: the others' matching call is to fail as well, not to wait for it.

    ``name`` as it is negotiated. Does nothing where nobody can wait: before init(), and for a set that is not registered.
    """
    number = 0 if process_set is None else getattr(process_set, "process_set_id", None)
    if number is None or not runtime.is_initialized():
        return
    with suppress(HorovodInternalError):  # the job has ended
        runtime.engine().poison(name, str(error), number, operation)


def arrays_of(
    tensors: Any, operation: str, name: str | None, process_set: ProcessSet | None, make: Any = contiguous
) -> list[np.ndarray]:
    """``make`` of each tensor. What cannot be made an array is told to the other ranks; see refused()."""
    try:
        return [make(t) for t in tensors]
    except Exception as error:
        refused(operation, name, process_set, error)
        raise


def keep(handle: int, kind: str, result: Any, alive: Any) -> int:
    """Remember what ``synchronize(handle)`` gives back and what must stay alive until then."""
    results[handle] = (kind, result, alive)
    return handle


def barrier(process_set: ProcessSet | None = None) -> None:
    """Wait until all ranks of the set are here."""
    runtime.engine().barrier(number_of(process_set), True)


def join() -> int:
    """Say that this rank has no more data, and wait for the others; returns the rank that joined last.

    Until then this rank takes part in the others' operations on all its process sets with data that does not change the
    result: to a reduction it gives the operation's identity (0 for Sum, Average and Adasum, 1 for Product, the largest
    value for Min, the smallest for Max; averages still divide by the number of all ranks of the set), to allgather and
    alltoall no rows. What it receives is dropped. A broadcast from a rank that has joined fails.
    """
    engine = runtime.engine()
    handle = engine.join()
    try:
        engine.wait(handle)
        return engine.last_joined(handle)
    finally:
        engine.release(handle)


def poll(handle: int) -> bool:
    """Whether the operation is done, so that synchronize() would not wait. Raises ValueError for an unknown handle."""
    return runtime.engine().poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result; the handle is forgotten.

    Raises HorovodInternalError when the operation failed, ValueError for an unknown handle.
    """
    engine = runtime.engine()
    try:
        engine.wait(handle)
        kind, result, _ = results[handle]
        if kind == "ready":
            return result
        dtypes, single = result
        arrays = [
            np.from_dlpack(_Capsule(engine.output(handle, i))).view(dtype) for i, dtype in enumerate(dtypes)
        ]
        if kind == "exchanged":
            splits = [np.array(engine.received_splits(handle, i), dtype=np.int32) for i in range(len(arrays))]
            return (arrays[0], splits[0]) if single else (arrays, splits)
        return arrays[0] if single else arrays
    finally:
        # An interrupted wait leaves the operation under way: its arrays must stay.
        if engine.known(handle) and engine.poll(handle):
            engine.release(handle)
            results.pop(handle, None)
