"""Horovod's verbs on NumPy arrays and on anything in host memory that speaks DLPack.

Results are NumPy arrays. Handles are ints, as in Horovod: ``synchronize(handle)`` waits, gives the result, and forgets
the handle. Errors: ValueError for arguments that make no sense (and before ``init()``), HorovodInternalError when ranks
disagree or the job breaks. Any thread may call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_core import runtime
from hvd_core.errors import HorovodInternalError

Average, Sum, Adasum, Min, Max, Product = range(6)

# Horovod's numbers for users -> the backend interface's.
_REDUCE_OPS = {Sum: 0, Product: 1, Min: 2, Max: 3, Average: 4}

# Arrays of operations that were left by Ctrl-C.
_abandoned: list[np.ndarray] = []

# handle -> (kind, what to give back, arrays that must stay alive)
_results: dict[int, tuple[str, Any, Any]] = {}


class _Capsule:
    """What np.from_dlpack wants to see of a tensor that the engine allocated."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def _array(tensor: Any) -> np.ndarray:
    if isinstance(tensor, np.ndarray):
        return tensor
    if hasattr(tensor, "__dlpack__") and not np.isscalar(tensor):
        return np.from_dlpack(tensor)
    return np.asarray(tensor)


def _reduce_op(op: int) -> int:
    if op not in _REDUCE_OPS:
        raise ValueError(f"op {op!r} is not one of Average, Sum, Min, Max, Product.")
    return _REDUCE_OPS[op]


def _name(prefix: str, name: str | None) -> str | None:
    return None if name is None else f"{prefix}.{name}"


def _allreduce(inputs, outputs, prefix, name, op, prescale_factor, postscale_factor):
    handle = runtime.engine().allreduce(
        inputs, outputs, _name(prefix, name), _reduce_op(op), prescale_factor, postscale_factor
    )
    _results[handle] = ("reduced", outputs, inputs)
    return handle


def allreduce_async(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start an allreduce of one array; the result is a new array of the same shape and dtype. Returns a handle."""
    array = np.ascontiguousarray(_array(tensor))
    # ascontiguousarray makes 0-dim arrays 1-dim.
    array = array.reshape(np.shape(tensor)) if array.ndim != np.ndim(tensor) else array
    return _allreduce(array, np.empty_like(array), "allreduce", name, op, prescale_factor, postscale_factor)


def allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> np.ndarray:
    """Reduce an array over all ranks and return the result, of the same shape and dtype, on every rank.

    ``op``: Average, Sum, Min, Max or Product. The input is multiplied by ``prescale_factor``, the result by
    ``postscale_factor``. Averages of integers truncate toward zero.
    """
    return synchronize(allreduce_async(tensor, name, op, prescale_factor, postscale_factor))


def allreduce_async_(
    tensor: np.ndarray,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start an allreduce in place. The array must be contiguous and writable. Returns a handle."""
    return _allreduce(tensor, tensor, "allreduce", name, op, prescale_factor, postscale_factor)


def allreduce_(
    tensor: np.ndarray,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> np.ndarray:
    """Reduce an array in place over all ranks; see allreduce()."""
    try:
        runtime.engine().allreduce(
            tensor,
            tensor,
            _name("allreduce", name),
            _reduce_op(op),
            prescale_factor,
            postscale_factor,
            0,
            True,
        )
    except (HorovodInternalError, ValueError, TypeError):
        raise
    except BaseException:  # Ctrl-C: the operation still runs, and writes to the array when the others join in
        _abandoned.append(tensor)
        raise
    return tensor


def grouped_allreduce_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start the allreduce of a group: all members are reduced, or none. Returns one handle."""
    arrays = [np.ascontiguousarray(_array(t)).reshape(np.shape(t)) for t in tensors]
    outputs = [np.empty_like(a) for a in arrays]
    return _allreduce(arrays, outputs, "grouped_allreduce", name, op, prescale_factor, postscale_factor)


def grouped_allreduce(
    tensors: Sequence[Any], name: str | None = None, op: int = Average, **factors
) -> list[np.ndarray]:
    """Reduce a group of arrays; see allreduce() and grouped_allreduce_async()."""
    return synchronize(grouped_allreduce_async(tensors, name, op, **factors))


def grouped_allreduce_async_(
    tensors: Sequence[np.ndarray],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start the allreduce of a group in place. Returns one handle."""
    arrays = list(tensors)
    return _allreduce(arrays, arrays, "grouped_allreduce", name, op, prescale_factor, postscale_factor)


def grouped_allreduce_(tensors: Sequence[np.ndarray], name: str | None = None, op: int = Average, **factors):
    """Reduce a group of arrays in place; see allreduce()."""
    return synchronize(grouped_allreduce_async_(tensors, name, op, **factors))


def _movable(array: np.ndarray) -> np.ndarray:
    """The array as a type that NumPy can take back over DLPack: what is only moved may travel as plain bits."""
    return array if array.dtype.kind in "biuf" else array.view(f"u{array.dtype.itemsize}")


def _allgather_async(arrays: list[np.ndarray], prefix: str, name: str | None, single: bool) -> int:
    plain = [_movable(a) for a in arrays]
    handle = runtime.engine().allgather(plain, _name(prefix, name))
    _results[handle] = ("gathered", ([a.dtype for a in arrays], single), plain)
    return handle


def allgather_async(tensor: Any, name: str | None = None) -> int:
    """Start an allgather; the first dimension may differ from rank to rank. Returns a handle."""
    return _allgather_async([_contiguous(tensor)], "allgather", name, single=True)


def allgather(tensor: Any, name: str | None = None) -> np.ndarray:
    """Concatenate the arrays of all ranks along dimension 0, in rank order.

    All other dimensions and the dtype must be the same everywhere; dimension 0 may be 0 on some or all ranks.
    """
    return synchronize(allgather_async(tensor, name))


def grouped_allgather(tensors: Sequence[Any], name: str | None = None) -> list[np.ndarray]:
    """Gather several arrays in one operation; see allgather()."""
    arrays = [_contiguous(t) for t in tensors]
    return synchronize(_allgather_async(arrays, "grouped_allgather", name, single=False))


def _contiguous(tensor: Any) -> np.ndarray:
    array = _array(tensor)
    return np.ascontiguousarray(array).reshape(array.shape)


def broadcast_async_(tensor: np.ndarray, root_rank: int, name: str | None = None) -> int:
    """Start a broadcast in place. Returns a handle."""
    handle = runtime.engine().broadcast(tensor, tensor, root_rank, _name("broadcast", name))
    _results[handle] = ("reduced", tensor, tensor)
    return handle


def broadcast_(tensor: np.ndarray, root_rank: int, name: str | None = None) -> np.ndarray:
    """Overwrite the array with that of ``root_rank``; shape and dtype must be the same on all ranks."""
    return synchronize(broadcast_async_(tensor, root_rank, name))


def broadcast_async(tensor: Any, root_rank: int, name: str | None = None) -> int:
    """Start a broadcast into a new array. Returns a handle."""
    array = _contiguous(tensor)
    output = np.empty_like(array)
    handle = runtime.engine().broadcast(array, output, root_rank, _name("broadcast", name))
    _results[handle] = ("reduced", output, array)
    return handle


def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> np.ndarray:
    """The array of ``root_rank``, on every rank; shape and dtype of the inputs must be the same everywhere."""
    return synchronize(broadcast_async(tensor, root_rank, name))


def barrier() -> None:
    """Wait until all ranks are here."""
    runtime.engine().barrier(0, True)


def join() -> int:
    """Say that this rank has no more data, and wait for the others; returns the rank that joined last.

    Until then this rank takes part in the others' operations with data that does not change the result.
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
        kind, result, _ = _results[handle]
        if kind == "reduced":
            return result
        dtypes, single = result
        arrays = [
            np.from_dlpack(_Capsule(engine.output(handle, i))).view(dtype) for i, dtype in enumerate(dtypes)
        ]
        return arrays[0] if single else arrays
    finally:
        # An interrupted wait leaves the operation under way: its arrays must stay.
        if engine.known(handle) and engine.poll(handle):
            engine.release(handle)
            _results.pop(handle, None)
