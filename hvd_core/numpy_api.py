"""The NumPy API: Horovod's operations on NumPy arrays and on anything in host memory that speaks DLPack.

Results are NumPy arrays. Handles are ints, as in Horovod: ``synchronize(handle)`` waits, returns the result, and forgets
the handle. Errors: ValueError for arguments that make no sense (and before ``init()``), HorovodInternalError when ranks
disagree or the job ends. ``process_set``: the ranks that take part, None for all; only its members may call. Any thread
may call. It is also the smallest front end, and an example of one: docs/write-a-front-end.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hvd_core._frontend import operations
from hvd_core._frontend.memory import shared_array
from hvd_core._frontend.operations import (
    DTYPE_NUMBERS,
    ENGINE_NUMBERS,
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    engine_number,
    join,
    request_name,
    row_counts,
)
from hvd_core._runtime.current_job import call_after_the_job, engine
from hvd_core._runtime.host_arrays import output_array
from hvd_core._runtime.process_sets import ProcessSet
from hvd_core._runtime.process_sets import number_of as number_of_set
from hvd_core._runtime.refusals import report, report_message

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "empty",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_alltoall",
    "grouped_alltoall_async",
    "grouped_broadcast_",
    "grouped_broadcast_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "recv",
    "recv_async",
    "reducescatter",
    "reducescatter_async",
    "send",
    "send_async",
    "synchronize",
]


# handle -> (kind of result, description of the result, arrays that must stay alive)
_results: dict[int, tuple[str, Any, Any]] = {}

call_after_the_job(_results.clear)


def _array_of(tensor: Any) -> np.ndarray:
    """The tensor as an array, without a copy where it is an array or speaks DLPack."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if hasattr(tensor, "__dlpack__") and not np.isscalar(tensor):
        return np.from_dlpack(tensor)
    return np.asarray(tensor)


def _contiguous_array_of(tensor: Any) -> np.ndarray:
    """As array_of(), and contiguous; 0-dim arrays stay 0-dim."""
    array = _array_of(tensor)
    return np.ascontiguousarray(array).reshape(array.shape)


def _inputs_and_outputs(tensors: Any, in_place: bool) -> tuple[list, list]:
    """The lists of arrays that the engine reads and writes. In place they are one list, of the caller's arrays, which the
    engine checks; else contiguous arrays, and new ones of their shapes and dtypes."""
    if in_place:
        arrays = list(tensors)
        return arrays, arrays
    arrays = [_contiguous_array_of(tensor) for tensor in tensors]
    return arrays, [np.empty_like(array) for array in arrays]


def _number_of(process_set: ProcessSet | None) -> int:
    """The engine's number of a process set; None is all ranks. Raises ValueError for a set that is not registered."""
    return 0 if process_set is None else number_of_set(process_set)


def _failed(operation: str, prefix: str, name: Any, process_set: Any, error: BaseException) -> None:
    """Let the other ranks' matching call fail, because ``error`` was raised while this one was prepared.

    Called in the guard of a function (see hvd_core._runtime.refusals), which then raises ``error`` again. Raises
    ValueError before init(), as the missing init() is the better message.
    """
    if isinstance(error, Exception):
        engine()
    report(operation, name, process_set, error, prefix)


def _keep(handle: int, kind: str, result: Any, alive: Any) -> int:
    """Remember the result of ``synchronize(handle)``, and the arrays that must stay alive until then. Returns the handle.

    ``kind``: "ready" (``result`` is returned), "gathered" or "exchanged" (the engine allocates the outputs; ``result``
    is the pair of their dtypes and of whether one array is returned and not a list).
    """
    _results[handle] = (kind, result, alive)
    return handle


def barrier(process_set: ProcessSet | None = None) -> None:
    """Wait until all ranks of the set have called barrier()."""
    try:
        number = _number_of(process_set)
    except BaseException as error:
        _failed("barrier", "barrier", None, process_set, error)
        raise
    operations.barrier(number)


def poll(handle: int) -> bool:
    """Whether the operation is done, so that synchronize() would not wait. Raises ValueError for an unknown handle."""
    return engine().poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result; the handle is forgotten.

    Raises HorovodInternalError when the operation failed, ValueError for an unknown handle.
    """
    core = engine()
    try:
        core.wait(handle)
        kind, result, _ = _results[handle]
        if kind == "ready":
            return result
        dtypes, single = result
        arrays = [output_array(core, handle, i).view(dtype) for i, dtype in enumerate(dtypes)]
        if kind == "exchanged":
            splits = [np.array(core.received_splits(handle, i), dtype=np.int32) for i in range(len(arrays))]
            return (arrays[0], splits[0]) if single else (arrays, splits)
        return arrays[0] if single else arrays
    finally:
        # An interrupted wait leaves the operation pending: its arrays must stay.
        if core.known(handle) and core.poll(handle):
            core.release(handle)
            _results.pop(handle, None)


# Arrays in memory that the ranks of a host share. Any thread may call.


def empty(
    shape: int | Sequence[int], dtype: Any = np.float64, process_set: ProcessSet | None = None
) -> np.ndarray:
    """A new array of arbitrary values, in memory that the ranks of the set share where they can.

    ``allreduce_()`` of such arrays reduces straight between the ranks' memory, without a copy. Everything else works as
    with any array, also where another rank passes an ordinary array. All ranks of the set call it, with one shape and
    dtype. Memory that no rank uses any more is given back at the next call, and at the end of the process set.

    The array may outlive the job. A forked child does not have its memory, and must not touch it. Where the ranks
    cannot share memory, the array is an ordinary one, and a warning has the reason.

    Raises:
        ValueError: before init(), for a dtype that the engine does not move, or for a shape of more bytes than an address
            space holds. HorovodInternalError: the ranks ask for different arrays, a rank has no memory for the array, or
            the job ends.
    """
    try:
        of_type = np.dtype(dtype)
        if of_type.name not in DTYPE_NUMBERS:
            raise ValueError(f"hvd.empty: the engine moves no arrays of type {of_type.name}.")
        dimensions = [int(n) for n in ([shape] if np.isscalar(shape) else shape)]
        if any(not 0 <= n < 1 << 63 for n in dimensions):
            raise ValueError(f"hvd.empty: {dimensions} is not the shape of an array.")
        number = _number_of(process_set)
    except BaseException as error:
        _failed("create_window", "create_window", None, process_set, error)
        raise
    array, why = shared_array(engine(), dimensions, DTYPE_NUMBERS[of_type.name], number)
    if why:
        warnings.warn(f"hvd.empty: an ordinary array, since {why}.", stacklevel=2)
    return array.view(of_type)


# Messages from one rank to another one: send and receive. These two ranks alone take part. Any thread may call.


def _message(tensor: Any, sends: bool, other: int, name: str | None, process_set: ProcessSet | None) -> int:
    try:
        full_name = request_name("send", name)
        array = _contiguous_array_of(tensor) if sends else tensor
        number = _number_of(process_set)
    except BaseException as error:
        if isinstance(error, Exception):
            engine()  # a missing init() is the better message
        report_message(sends, other, name, process_set, error, "send")
        raise
    return _keep(
        engine().message(array, sends, other, full_name, number), "ready", None if sends else array, array
    )


def send_async(tensor: Any, dst: int, name: str | None = None, process_set: ProcessSet | None = None) -> int:
    """Start to send an array to rank ``dst``. Returns a handle."""
    return _message(tensor, True, dst, name, process_set)


def send(tensor: Any, dst: int, name: str | None = None, process_set: ProcessSet | None = None) -> None:
    """Send an array to rank ``dst`` (its rank in the job, also within a process set), which calls recv().

    Without a name, the n-th send() to a rank meets the n-th recv() there from this one. Waits until the message has
    arrived. A join() comes after the messages that were sent before it.
    """
    synchronize(send_async(tensor, dst, name, process_set))


def recv_async(
    tensor: np.ndarray, src: int, name: str | None = None, process_set: ProcessSet | None = None
) -> int:
    """Start to receive an array from rank ``src``, in place. Returns a handle."""
    return _message(tensor, False, src, name, process_set)


def recv(
    tensor: np.ndarray, src: int, name: str | None = None, process_set: ProcessSet | None = None
) -> np.ndarray:
    """Overwrite the array with the one that rank ``src`` sends, of the same shape and dtype; see send()."""
    return synchronize(recv_async(tensor, src, name, process_set))


# The functions that move data without computing: allgather, broadcast, alltoall. Any thread may call.


def _as_bits(array: np.ndarray) -> np.ndarray:
    """The array in a type that NumPy takes back over DLPack: operations that only move data can send plain bits."""
    return array if array.dtype.kind in "biuf" else array.view(f"u{array.dtype.itemsize}")


def _arrays(tensors: Iterable) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The tensors as contiguous arrays, and the arrays that are sent for them."""
    arrays = [_contiguous_array_of(tensor) for tensor in tensors]
    return arrays, [_as_bits(array) for array in arrays]


def _allgather_async(tensors, prefix, name, process_set, single) -> int:
    try:
        full_name = request_name(prefix, name)
        arrays, plain = _arrays(tensors)
        result = [a.dtype for a in arrays], single
        number = _number_of(process_set)
    except BaseException as error:
        _failed("allgather", prefix, name, process_set, error)
        raise
    return _keep(engine().allgather(plain, full_name, number), "gathered", result, plain)


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet | None = None) -> int:
    """Start an allgather; the first dimension may differ from rank to rank. Returns a handle."""
    return _allgather_async([tensor], "allgather", name, process_set, single=True)


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet | None = None) -> np.ndarray:
    """Concatenate the arrays of all ranks along dimension 0, in rank order.

    All other dimensions and the dtype must be the same everywhere; dimension 0 may be 0 on some or all ranks.
    """
    return synchronize(allgather_async(tensor, name, process_set))


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet | None = None
) -> int:
    """Start the allgather of a group: all members are gathered, or none. Returns one handle."""
    return _allgather_async(tensors, "grouped_allgather", name, process_set, single=False)


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet | None = None
) -> list[np.ndarray]:
    """Gather several arrays in one operation; see allgather()."""
    return synchronize(grouped_allgather_async(tensors, name, process_set))


def _broadcast(tensors, in_place, single, root_rank, prefix, name, process_set) -> int:
    try:
        full_name = request_name(prefix, name)
        inputs, outputs = _inputs_and_outputs(tensors, in_place)
        number = _number_of(process_set)
    except BaseException as error:
        _failed("broadcast", prefix, name, process_set, error)
        raise
    handle = engine().broadcast(inputs, outputs, root_rank, full_name, number)
    return _keep(handle, "ready", outputs[0] if single else outputs, inputs)


def broadcast_async_(
    tensor: np.ndarray, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> int:
    """Start a broadcast in place. Returns a handle."""
    return _broadcast((tensor,), True, True, root_rank, "broadcast", name, process_set)


def broadcast_(
    tensor: np.ndarray, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> np.ndarray:
    """Overwrite the array with that of ``root_rank`` (its rank in the job, also within a process set).

    Shape and dtype must be the same on all ranks.
    """
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> int:
    """Start a broadcast into a new array. Returns a handle."""
    return _broadcast((tensor,), False, True, root_rank, "broadcast", name, process_set)


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> np.ndarray:
    """The array of ``root_rank``, on every rank; shape and dtype of the inputs must be the same everywhere."""
    return synchronize(broadcast_async(tensor, root_rank, name, process_set))


def grouped_broadcast_async_(
    tensors: Sequence[np.ndarray],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the broadcast of a group in place: all members, or none. Returns one handle."""
    return _broadcast(tensors, True, False, root_rank, "grouped_broadcast", name, process_set)


def grouped_broadcast_(
    tensors: Sequence[np.ndarray],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[np.ndarray]:
    """Overwrite several arrays with those of ``root_rank``; see broadcast_()."""
    return synchronize(grouped_broadcast_async_(tensors, root_rank, name, process_set))


def _alltoall_async(tensors, splits, prefix, name, process_set, single) -> int:
    try:
        full_name = request_name(prefix, name)
        arrays, plain = _arrays(tensors)
        rows = [] if splits is None else [row_counts(given) for given in splits]
        result = [a.dtype for a in arrays], single
        number = _number_of(process_set)
    except BaseException as error:
        _failed("alltoall", prefix, name, process_set, error)
        raise
    return _keep(engine().alltoall(plain, rows, full_name, number), "exchanged", result, plain)


def alltoall_async(
    tensor: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> int:
    """Start an alltoall. Returns a handle; its result is the pair (output, received splits)."""
    given = None if splits is None else [splits]
    return _alltoall_async([tensor], given, "alltoall", name, process_set, True)


def alltoall(
    tensor: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Send ``splits[i]`` rows of the array, in order, to rank i of the set, and return the rows that all ranks sent here,
    in rank order.

    ``splits``: one entry per rank of the set; their sum may be smaller than dimension 0, then the rows at the end are not
    sent. None: equal shares, dimension 0 must be a multiple of the number of ranks. With splits the result is the pair
    (output, received splits as int32), without it is the output alone. Raises ValueError for splits that do not fit.
    """
    output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, received)


def grouped_alltoall_async(
    tensors: Sequence[Any],
    splits: Sequence[Sequence[int]] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the alltoall of a group, with splits for each member or for no member. Returns one handle."""
    return _alltoall_async(tensors, splits, "grouped_alltoall", name, process_set, False)


def grouped_alltoall(
    tensors: Sequence[Any],
    splits: Sequence[Sequence[int]] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Exchange several arrays in one operation; returns outputs and received splits. See alltoall()."""
    return synchronize(grouped_alltoall_async(tensors, splits, name, process_set))


# The functions that compute: allreduce and reducescatter. Any thread may call.


def _allreduce(
    tensors, in_place, single, prefix, name, op, prescale_factor, postscale_factor, process_set
) -> int:
    try:
        full_name = request_name(prefix, name)
        inputs, outputs = _inputs_and_outputs(tensors, in_place)
        op = engine_number(op)
        number = _number_of(process_set)
    except BaseException as error:
        _failed("allreduce", prefix, name, process_set, error)
        raise
    handle = engine().allreduce(inputs, outputs, full_name, op, prescale_factor, postscale_factor, number)
    return _keep(handle, "ready", outputs[0] if single else outputs, inputs)


def allreduce_async(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start an allreduce of one array; the result is a new array of the same shape and dtype. Returns a handle."""
    return _allreduce(
        (tensor,), False, True, "allreduce", name, op, prescale_factor, postscale_factor, process_set
    )


def allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> np.ndarray:
    """Reduce an array over all ranks and return the result, of the same shape and dtype, on every rank.

    ``op``: Average, Sum, Adasum (floating types only), Min, Max or Product. The input is multiplied by
    ``prescale_factor``, the result by ``postscale_factor``. Averages of integers truncate toward zero.
    """
    return synchronize(allreduce_async(tensor, name, op, prescale_factor, postscale_factor, process_set))


def allreduce_async_(
    tensor: np.ndarray,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start an allreduce in place. The array must be contiguous and writable. Returns a handle."""
    return _allreduce(
        (tensor,), True, True, "allreduce", name, op, prescale_factor, postscale_factor, process_set
    )


def allreduce_(
    tensor: np.ndarray,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> np.ndarray:
    """Reduce an array in place over all ranks; see allreduce()."""
    try:
        full_name = None if name is None else f"allreduce.{name}"
        try:
            op_number = ENGINE_NUMBERS[op]
        except (KeyError, TypeError):
            op_number = engine_number(op)
        set_number = _number_of(process_set)
    except BaseException as error:
        _failed("allreduce", "allreduce", name, process_set, error)
        raise
    engine().allreduce(
        tensor, tensor, full_name, op_number, prescale_factor, postscale_factor, set_number, True
    )
    return tensor


def grouped_allreduce_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the allreduce of a group: all members are reduced, or none. Returns one handle."""
    return _allreduce(
        tensors, False, False, "grouped_allreduce", name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce(
    tensors: Sequence[Any], name: str | None = None, op: int = Average, **options
) -> list[np.ndarray]:
    """Reduce a group of arrays; see allreduce() and grouped_allreduce_async()."""
    return synchronize(grouped_allreduce_async(tensors, name, op, **options))


def grouped_allreduce_async_(
    tensors: Sequence[np.ndarray],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the allreduce of a group in place. Returns one handle."""
    return _allreduce(
        tensors, True, False, "grouped_allreduce", name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_(tensors: Sequence[np.ndarray], name: str | None = None, op: int = Average, **options):
    """Reduce a group of arrays in place; see allreduce()."""
    return synchronize(grouped_allreduce_async_(tensors, name, op, **options))


def _reducescatter(tensors, prefix, name, op, prescale_factor, postscale_factor, process_set, single) -> int:
    try:
        full_name = request_name(prefix, name)
        arrays = [_contiguous_array_of(tensor) for tensor in tensors]
        op = engine_number(op)
        number = _number_of(process_set)
        rows = engine().scattered_rows
        outputs = [
            np.empty((rows(a.shape[0], number), *a.shape[1:]) if a.ndim else (), a.dtype) for a in arrays
        ]
    except BaseException as error:
        _failed("reducescatter", prefix, name, process_set, error)
        raise
    handle = engine().reducescatter(arrays, outputs, full_name, op, prescale_factor, postscale_factor, number)
    return _keep(handle, "ready", outputs[0] if single else outputs, (arrays, outputs))


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start a reducescatter. Returns a handle."""
    return _reducescatter(
        [tensor], "reducescatter", name, op, prescale_factor, postscale_factor, process_set, True
    )


def reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> np.ndarray:
    """Reduce an array over the ranks of the set and return this rank's rows of the result.

    Rows (dimension 0) are shared out in rank order; if they are not a multiple of the number of ranks, the first ranks
    get one more. ``op``: Average, Sum, Min, Max or Product; factors as in allreduce(). Shape and dtype must be the same
    on all ranks; a 0-dim array is a ValueError.
    """
    return synchronize(reducescatter_async(tensor, name, op, prescale_factor, postscale_factor, process_set))


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the reducescatter of a group: all members, or none. Returns one handle."""
    return _reducescatter(
        tensors, "grouped_reducescatter", name, op, prescale_factor, postscale_factor, process_set, False
    )


def grouped_reducescatter(
    tensors: Sequence[Any], name: str | None = None, op: int = Average, **options
) -> list[np.ndarray]:
    """Reduce and scatter several arrays in one operation; see reducescatter()."""
    return synchronize(grouped_reducescatter_async(tensors, name, op, **options))
