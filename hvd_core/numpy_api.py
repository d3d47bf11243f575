"""The NumPy API: Horovod's operations on NumPy arrays, and on anything in host memory that speaks DLPack.

Results are NumPy arrays. ``name`` names a request, so that ranks may call in different orders; calls without a name
are matched by their order. ``process_set`` names the ranks that take part, None for all; only its members may call.
Every operation has a form ``..._async``, which returns a handle, an int: ``synchronize(handle)`` waits, returns the
result and forgets the handle. Names that end with ``_`` work in place. Any thread may call.

Raises, in all functions: ValueError for arguments that make no sense, and before ``init()``; HorovodInternalError when
ranks disagree or the job ends.

It is also the smallest front end, and an example of one: docs/write-a-front-end.md.

Example:
    >>> import hvd_core as hvd, numpy as np
    >>> hvd.init()
    >>> hvd.allreduce(np.full(3, hvd.rank(), np.float32), op=hvd.Sum)  # on 2 ranks
    array([1., 1., 1.], dtype=float32)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

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
from hvd_core._runtime.failures import report_failure, report_message_failure
from hvd_core._runtime.process_sets import ProcessSet
from hvd_core._runtime.process_sets import number_of as number_of_set
from hvd_core.types import SupportsDLPack

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

Array: TypeAlias = "npt.NDArray[Any]"
Tensor: TypeAlias = "npt.ArrayLike | SupportsDLPack"
"""What operations take as an input."""

# handle -> (kind of result, description of the result, arrays that must stay alive); see _keep().
_results: dict[int, tuple[str, Any, object]] = {}

call_after_the_job(_results.clear)


# What all functions share.


def _array_of(tensor: Tensor) -> Array:
    """The tensor as an array, without a copy where it is an array or speaks DLPack."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if hasattr(tensor, "__dlpack__") and not np.isscalar(tensor):
        return np.from_dlpack(cast(Any, tensor))
    return np.asarray(tensor)


def _contiguous_array_of(tensor: Tensor) -> Array:
    """As _array_of(), and contiguous; 0-dim arrays stay 0-dim."""
    array = _array_of(tensor)
    return np.ascontiguousarray(array).reshape(array.shape)


def _inputs_and_outputs(tensors: Iterable[Tensor], in_place: bool) -> tuple[list[Array], list[Array]]:
    """The lists of arrays that the engine reads and writes. In place they are one list, of the caller's arrays, which the
    engine checks; else contiguous arrays, and new ones of their shapes and dtypes."""
    if in_place:
        arrays = cast("list[Array]", list(tensors))
        return arrays, arrays
    arrays = [_contiguous_array_of(tensor) for tensor in tensors]
    return arrays, [np.empty_like(array) for array in arrays]


def _prefix_of(operation: str, single: bool) -> str:
    """The prefix of a request's name."""
    return operation if single else f"grouped_{operation}"


def _id_of(process_set: ProcessSet | None) -> int:
    """The engine's id of a process set. Raises ValueError for a set that is not registered."""
    return 0 if process_set is None else number_of_set(process_set)


def _keep(handle: int, kind: str, result: Any, alive: object) -> int:
    """Remember the result of ``synchronize(handle)``, and the arrays that must stay alive until then.

    ``kind``: "ready" (``result`` is returned), "gathered" or "exchanged" (the engine allocates the outputs; ``result``
    is the pair of their dtypes and of whether one array is returned and not a list).
    """
    _results[handle] = (kind, result, alive)
    return handle


# Handles.


def poll(handle: int) -> bool:
    """Whether an operation is done, so that synchronize() would not wait.

    Args:
        handle: what the ``..._async`` function returned.

    Raises:
        ValueError: the handle is unknown.

    Example:
        >>> handle = hvd.allreduce_async(array)
        >>> while not hvd.poll(handle): compute()
    """
    return engine().poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an operation, and forget its handle.

    Args:
        handle: what the ``..._async`` function returned.

    Returns:
        What the operation of the same name without ``_async`` returns. For an alltoall always the pair (output,
        received splits).

    Raises:
        HorovodInternalError: the operation failed.
        ValueError: the handle is unknown.

    Example:
        >>> handle = hvd.allreduce_async(array)
        >>> mean = hvd.synchronize(handle)
    """
    core = engine()
    try:
        core.wait(handle)
        kind, result, _ = _results[handle]
        if kind == "ready":
            return result
        dtypes, single = result
        # Types that NumPy lacks come as unsigned integers of their size.
        arrays = [core.output_array(handle, i).view(dtype) for i, dtype in enumerate(dtypes)]
        if kind == "exchanged":
            splits = [np.array(core.received_splits(handle, i), dtype=np.int32) for i in range(len(arrays))]
            return (arrays[0], splits[0]) if single else (arrays, splits)
        return arrays[0] if single else arrays
    finally:
        # An interrupted wait leaves the operation pending: its arrays must stay.
        if core.known(handle) and core.poll(handle):
            core.release(handle)
            _results.pop(handle, None)


def barrier(process_set: ProcessSet | None = None) -> None:
    """Wait until all ranks of the set have called barrier().

    Example:
        >>> hvd.barrier()
    """
    engine()
    with report_failure("barrier", None, process_set, "barrier"):
        process_set_id = _id_of(process_set)
    operations.barrier(process_set_id)


# Reductions: allreduce and reducescatter.


Reduction: TypeAlias = "tuple[str | None, int, float, float, ProcessSet | None]"
"""name, op, prescale_factor, postscale_factor, process_set."""


def _allreduce(tensors: Iterable[Tensor], in_place: bool, single: bool, how: Reduction) -> int:
    core, prefix = engine(), _prefix_of("allreduce", single)
    name, op, prescale_factor, postscale_factor, process_set = how
    with report_failure("allreduce", name, process_set, prefix):
        full_name = request_name(prefix, name)
        inputs, outputs = _inputs_and_outputs(tensors, in_place)
        op = engine_number(op)
        process_set_id = _id_of(process_set)
    handle = core.allreduce(inputs, outputs, full_name, op, prescale_factor, postscale_factor, process_set_id)
    return _keep(handle, "ready", outputs[0] if single else outputs, inputs)


def allreduce_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start an allreduce of one array into a new one; see allreduce(). Returns a handle."""
    return _allreduce((tensor,), False, True, (name, op, prescale_factor, postscale_factor, process_set))


def allreduce(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> Array:
    """Reduce an array over all ranks.

    Args:
        tensor: of the same shape and dtype on all ranks: integers and floats; bool for all but averages.
        name: of the request.
        op: Average, Sum, Adasum (floating types only), Min, Max or Product. Averages of integers truncate toward zero.
        prescale_factor, postscale_factor: the input is multiplied by the one, the result by the other.
        process_set: the ranks that take part.

    Returns:
        A new array of the same shape and dtype: the result, on every rank.

    Example:
        >>> mean = hvd.allreduce(np.ones((2, 3), np.float32))
    """
    return cast(
        Array,
        synchronize(allreduce_async(tensor, name, op, prescale_factor, postscale_factor, process_set)),
    )


def allreduce_async_(
    tensor: Array,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start an allreduce in place; see allreduce_(). Returns a handle."""
    return _allreduce((tensor,), True, True, (name, op, prescale_factor, postscale_factor, process_set))


def allreduce_(
    tensor: Array,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> Array:
    """Reduce an array in place over all ranks; see allreduce().

    Args:
        tensor: contiguous and writable, any shape; overwritten with the result.
        name, op, prescale_factor, postscale_factor, process_set: as for allreduce().

    Returns:
        ``tensor``.

    Example:
        >>> hvd.allreduce_(gradient, op=hvd.Sum)
    """
    core = engine()
    # Most calls need no conversion; the engine takes them as they are.
    engine_op = ENGINE_NUMBERS.get(op) if type(op) is int else None
    if process_set is None and engine_op is not None:
        handle = core.try_allreduce(
            tensor, tensor, name, engine_op, prescale_factor, postscale_factor, 0, True
        )
        if handle is not None:
            return tensor
    with report_failure("allreduce", name, process_set, "allreduce"):
        full_name = request_name("allreduce", name)
        op = engine_number(op)
        process_set_id = _id_of(process_set)
    core.allreduce(tensor, tensor, full_name, op, prescale_factor, postscale_factor, process_set_id, True)
    return tensor


def grouped_allreduce_async(
    tensors: Iterable[Tensor],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the allreduce of a group; see grouped_allreduce(). Returns one handle."""
    return _allreduce(tensors, False, False, (name, op, prescale_factor, postscale_factor, process_set))


def grouped_allreduce(
    tensors: Iterable[Tensor], name: str | None = None, op: int = Average, **options: Any
) -> list[Array]:
    """Reduce a group of arrays: all members, or none.

    Args:
        tensors: the members, as many on all ranks; each as for allreduce().
        name, op: as for allreduce().
        options: ``prescale_factor``, ``postscale_factor`` and ``process_set``.

    Returns:
        New arrays of the same shapes and dtypes.

    Example:
        >>> weight, bias = hvd.grouped_allreduce([weight, bias])
    """
    return cast("list[Array]", synchronize(grouped_allreduce_async(tensors, name, op, **options)))


def grouped_allreduce_async_(
    tensors: Iterable[Array],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the allreduce of a group in place; see grouped_allreduce_(). Returns one handle."""
    return _allreduce(tensors, True, False, (name, op, prescale_factor, postscale_factor, process_set))


def grouped_allreduce_(
    tensors: Iterable[Array], name: str | None = None, op: int = Average, **options: Any
) -> list[Array]:
    """Reduce a group of arrays in place; see grouped_allreduce() and allreduce_(). Returns the arrays.

    Example:
        >>> hvd.grouped_allreduce_([weight, bias])
    """
    return cast("list[Array]", synchronize(grouped_allreduce_async_(tensors, name, op, **options)))


def _reducescatter(tensors: Iterable[Tensor], single: bool, how: Reduction) -> int:
    core, prefix = engine(), _prefix_of("reducescatter", single)
    name, op, prescale_factor, postscale_factor, process_set = how
    with report_failure("reducescatter", name, process_set, prefix):
        full_name = request_name(prefix, name)
        arrays = [_contiguous_array_of(tensor) for tensor in tensors]
        op = engine_number(op)
        process_set_id = _id_of(process_set)
        outputs = [
            np.empty(
                (core.scattered_rows(a.shape[0], process_set_id), *a.shape[1:]) if a.ndim else (), a.dtype
            )
            for a in arrays
        ]
    handle = core.reducescatter(
        arrays, outputs, full_name, op, prescale_factor, postscale_factor, process_set_id
    )
    return _keep(handle, "ready", outputs[0] if single else outputs, (arrays, outputs))


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start a reducescatter; see reducescatter(). Returns a handle."""
    return _reducescatter((tensor,), True, (name, op, prescale_factor, postscale_factor, process_set))


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> Array:
    """Reduce an array over the ranks of the set, and return this rank's rows of the result.

    Rows (dimension 0) are shared out in rank order; if they are not a multiple of the number of ranks, the first ranks
    get one more.

    Args:
        tensor: of the same shape and dtype on all ranks, with one dimension or more.
        name, prescale_factor, postscale_factor, process_set: as for allreduce().
        op: Average, Sum, Min, Max or Product.

    Returns:
        A new array of the same dtype: this rank's rows.

    Raises:
        ValueError: a 0-dim array.

    Example:
        >>> hvd.reducescatter(np.arange(4), op=hvd.Sum)  # rank 1 of 2
        array([4, 6])
    """
    return cast(
        Array,
        synchronize(reducescatter_async(tensor, name, op, prescale_factor, postscale_factor, process_set)),
    )


def grouped_reducescatter_async(
    tensors: Iterable[Tensor],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the reducescatter of a group; see grouped_reducescatter(). Returns one handle."""
    return _reducescatter(tensors, False, (name, op, prescale_factor, postscale_factor, process_set))


def grouped_reducescatter(
    tensors: Iterable[Tensor], name: str | None = None, op: int = Average, **options: Any
) -> list[Array]:
    """Reduce and scatter a group of arrays, all members or none; see reducescatter().

    Example:
        >>> mine, ours = hvd.grouped_reducescatter([weight, bias], op=hvd.Sum)
    """
    return cast("list[Array]", synchronize(grouped_reducescatter_async(tensors, name, op, **options)))


# Movements: allgather, broadcast and alltoall.


def _as_bits(array: Array) -> Array:
    """The array in a type that NumPy takes back over DLPack: operations that only move data can send plain bits."""
    return array if array.dtype.kind in "biuf" else array.view(f"u{array.dtype.itemsize}")


def _arrays(tensors: Iterable[Tensor]) -> tuple[list[Array], list[Array]]:
    """The tensors as contiguous arrays, and the arrays that are sent for them."""
    arrays = [_contiguous_array_of(tensor) for tensor in tensors]
    return arrays, [_as_bits(array) for array in arrays]


def _allgather(
    tensors: Iterable[Tensor], single: bool, name: str | None, process_set: ProcessSet | None
) -> int:
    core, prefix = engine(), _prefix_of("allgather", single)
    with report_failure("allgather", name, process_set, prefix):
        full_name = request_name(prefix, name)
        arrays, plain = _arrays(tensors)
        process_set_id = _id_of(process_set)
    handle = core.allgather(plain, full_name, process_set_id)
    return _keep(handle, "gathered", ([a.dtype for a in arrays], single), plain)


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet | None = None) -> int:
    """Start an allgather; see allgather(). Returns a handle."""
    return _allgather((tensor,), True, name, process_set)


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet | None = None) -> Array:
    """Concatenate the arrays of all ranks along dimension 0, in rank order.

    Args:
        tensor: dimension 0 may differ from rank to rank, and be 0; all other dimensions and the dtype are the same.
        name, process_set: as for allreduce().

    Returns:
        A new array, the same on every rank.

    Example:
        >>> hvd.allgather(np.array([[hvd.rank()]]))  # on 2 ranks
        array([[0],
               [1]])
    """
    return cast(Array, synchronize(allgather_async(tensor, name, process_set)))


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet | None = None
) -> int:
    """Start the allgather of a group; see grouped_allgather(). Returns one handle."""
    return _allgather(tensors, False, name, process_set)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet | None = None
) -> list[Array]:
    """Gather a group of arrays, all members or none; see allgather().

    Example:
        >>> losses, counts = hvd.grouped_allgather([loss, count])
    """
    return cast("list[Array]", synchronize(grouped_allgather_async(tensors, name, process_set)))


def _broadcast(
    tensors: Iterable[Tensor],
    in_place: bool,
    single: bool,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet | None,
) -> int:
    core, prefix = engine(), _prefix_of("broadcast", single)
    with report_failure("broadcast", name, process_set, prefix):
        full_name = request_name(prefix, name)
        inputs, outputs = _inputs_and_outputs(tensors, in_place)
        process_set_id = _id_of(process_set)
    handle = core.broadcast(inputs, outputs, root_rank, full_name, process_set_id)
    return _keep(handle, "ready", outputs[0] if single else outputs, inputs)


def broadcast_async_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> int:
    """Start a broadcast in place; see broadcast_(). Returns a handle."""
    return _broadcast((tensor,), True, True, root_rank, name, process_set)


def broadcast_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> Array:
    """Overwrite an array with that of one rank.

    Args:
        tensor: contiguous and writable, of the same shape and dtype on all ranks.
        root_rank: the rank whose array all get: its rank in the job, also within a process set.
        name, process_set: as for allreduce().

    Returns:
        ``tensor``.

    Example:
        >>> hvd.broadcast_(weights, root_rank=0)
    """
    return cast(Array, synchronize(broadcast_async_(tensor, root_rank, name, process_set)))


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> int:
    """Start a broadcast into a new array; see broadcast(). Returns a handle."""
    return _broadcast((tensor,), False, True, root_rank, name, process_set)


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> Array:
    """The array of one rank, as a new array on every rank; arguments as for broadcast_().

    Example:
        >>> seed = hvd.broadcast(np.array(seed), root_rank=0)
    """
    return cast(Array, synchronize(broadcast_async(tensor, root_rank, name, process_set)))


def grouped_broadcast_async_(
    tensors: Iterable[Array],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the broadcast of a group in place; see grouped_broadcast_(). Returns one handle."""
    return _broadcast(tensors, True, False, root_rank, name, process_set)


def grouped_broadcast_(
    tensors: Iterable[Array],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[Array]:
    """Overwrite a group of arrays with those of one rank, all members or none; see broadcast_(). Returns the arrays.

    Example:
        >>> hvd.grouped_broadcast_([weight, bias], root_rank=0)
    """
    return cast("list[Array]", synchronize(grouped_broadcast_async_(tensors, root_rank, name, process_set)))


def _alltoall(
    tensors: Iterable[Tensor],
    splits: Iterable[Sequence[int]] | None,
    single: bool,
    name: str | None,
    process_set: ProcessSet | None,
) -> int:
    core, prefix = engine(), _prefix_of("alltoall", single)
    with report_failure("alltoall", name, process_set, prefix):
        full_name = request_name(prefix, name)
        arrays, plain = _arrays(tensors)
        rows = [] if splits is None else [row_counts(given) for given in splits]
        process_set_id = _id_of(process_set)
    handle = core.alltoall(plain, rows, full_name, process_set_id)
    return _keep(handle, "exchanged", ([a.dtype for a in arrays], single), plain)


def alltoall_async(
    tensor: Tensor,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> int:
    """Start an alltoall; see alltoall(). Returns a handle; its result is the pair (output, received splits)."""
    return _alltoall((tensor,), None if splits is None else [splits], True, name, process_set)


def alltoall(
    tensor: Tensor,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Send ``splits[i]`` rows of an array, in order, to rank i of the set.

    Args:
        tensor: rows are the entries of dimension 0; all other dimensions and the dtype are the same on all ranks.
        splits: one entry per rank of the set; their sum may be smaller than dimension 0, then the rows at the end are
        not
            sent. None: equal shares, dimension 0 must be a multiple of the number of ranks.
        name, process_set: as for allreduce().

    Returns:
        The rows that all ranks sent here, in rank order. With splits the pair of them and of the received splits as
        int32.

    Raises:
        ValueError: splits that do not fit.

    Example:
        >>> rows = hvd.alltoall(np.arange(4) + 10 * hvd.rank())  # rank 0 of 2: [0, 1, 10, 11]
    """
    output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, received)


def grouped_alltoall_async(
    tensors: Sequence[Tensor],
    splits: Sequence[Sequence[int]] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the alltoall of a group; see grouped_alltoall(). Returns one handle."""
    return _alltoall(tensors, splits, False, name, process_set)


def grouped_alltoall(
    tensors: Sequence[Tensor],
    splits: Sequence[Sequence[int]] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> tuple[list[Array], list[Array]]:
    """Exchange a group of arrays, all members or none; see alltoall().

    Args:
        tensors: the members; each as for alltoall().
        splits: for each member, or None for all members.
        name, process_set: as for allreduce().

    Returns:
        The outputs, and the received splits.

    Example:
        >>> (ids, vectors), _ = hvd.grouped_alltoall([ids, vectors])
    """
    return cast(
        "tuple[list[Array], list[Array]]",
        synchronize(grouped_alltoall_async(tensors, splits, name, process_set)),
    )


# Messages from one rank to another: these two ranks alone take part.


def _message(
    tensor: Tensor, sends: bool, other: int, name: str | None, process_set: ProcessSet | None
) -> int:
    core = engine()
    with report_message_failure(sends, other, name, process_set, "send"):
        full_name = request_name("send", name)
        array = _contiguous_array_of(tensor) if sends else cast(Array, tensor)
        process_set_id = _id_of(process_set)
    handle = core.message(array, sends, other, full_name, process_set_id)
    return _keep(handle, "ready", None if sends else array, array)


def send_async(
    tensor: Tensor, dst: int, name: str | None = None, process_set: ProcessSet | None = None
) -> int:
    """Start to send an array; see send(). Returns a handle."""
    return _message(tensor, True, dst, name, process_set)


def send(tensor: Tensor, dst: int, name: str | None = None, process_set: ProcessSet | None = None) -> None:
    """Send an array to one rank, which calls recv(), and wait until it has arrived.

    Without a name, the n-th send() to a rank meets the n-th recv() there from this one. A join() comes after the
    messages that were sent before it.

    Args:
        tensor: any shape and dtype.
        dst: the receiving rank: its rank in the job, also within a process set.
        name, process_set: as for allreduce().

    Example:
        >>> hvd.send(activations, dst=1)  # on rank 0
    """
    synchronize(send_async(tensor, dst, name, process_set))


def recv_async(
    tensor: Array, src: int, name: str | None = None, process_set: ProcessSet | None = None
) -> int:
    """Start to receive into an array; see recv(). Returns a handle."""
    return _message(tensor, False, src, name, process_set)


def recv(tensor: Array, src: int, name: str | None = None, process_set: ProcessSet | None = None) -> Array:
    """Overwrite an array with the one that a rank sends; see send().

    Args:
        tensor: contiguous and writable, of the shape and dtype that are sent.
        src: the sending rank: its rank in the job, also within a process set.
        name, process_set: as for allreduce().

    Returns:
        ``tensor``.

    Example:
        >>> hvd.recv(activations, src=0)  # on rank 1
    """
    return cast(Array, synchronize(recv_async(tensor, src, name, process_set)))


# Memory.


def empty(
    shape: int | Sequence[int], dtype: npt.DTypeLike = np.float64, process_set: ProcessSet | None = None
) -> Array:
    """A new array of arbitrary values, in memory that the ranks of the set share where they can.

    ``allreduce_()`` of such arrays reduces straight between the ranks' memory, without a copy. Everything else works as
    with any array, also where another rank passes an ordinary array. All ranks of the set call it, with one shape and
    dtype. Memory that no rank uses any more is given back at the next call, and at the end of the process set.

    The array may outlive the job. A forked child does not have its memory, and must not touch it. Where the ranks
    cannot share memory, the array is an ordinary one, and a warning has the reason.

    Args:
        shape: as for numpy.empty().
        dtype: one that the engine moves.
        process_set: the ranks that share.

    Raises:
        ValueError: before init(), for a dtype that the engine does not move, or for a shape of more bytes than an
        address
            space holds.
        HorovodInternalError: the ranks ask for different arrays, a rank has no memory for the array, or the job ends.

    Example:
        >>> gradient = hvd.empty(1 << 20, np.float32)
        >>> hvd.allreduce_(gradient)
    """
    core = engine()
    with report_failure("create_window", None, process_set, "create_window"):
        of_type = np.dtype(dtype)
        if of_type.name not in DTYPE_NUMBERS:
            raise ValueError(f"hvd.empty: the engine moves no arrays of type {of_type.name}.")
        sizes = [shape] if isinstance(shape, int) or np.isscalar(shape) else shape
        dimensions = [int(n) for n in cast("Sequence[int]", sizes)]
        if any(not 0 <= n < 1 << 63 for n in dimensions):
            raise ValueError(f"hvd.empty: {dimensions} is not the shape of an array.")
        process_set_id = _id_of(process_set)
    array, why = shared_array(core, dimensions, DTYPE_NUMBERS[of_type.name], process_set_id)
    if why:
        warnings.warn(f"hvd.empty: an ordinary array, since {why}.", stacklevel=2)
    return array.view(of_type)
