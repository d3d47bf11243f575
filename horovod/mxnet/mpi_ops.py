"""The operations of ``horovod.mxnet`` on MXNet's arrays in host memory.

All ranks of the process set call an operation, and each call waits for its result. Calls with a name may come in any
order from rank to rank; calls without one in the same order. ``priority`` is accepted for programs written for Horovod
and has no effect: MXNet orders what waits in its queue by it, and here nothing waits. There are no gradients, as in
Horovod: reduce gradients with DistributedTrainer or DistributedOptimizer. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np

from horovod.common.arguments import Adasum, Average, op_from
from horovod.common.basics import engine
from horovod.common.failed_calls import reported_for_each
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet._arrays import NDArray, check, empty, reference
from hvd_core._core import Engine
from hvd_core._frontend import operations
from hvd_core._frontend.operations import MOVABLE, REDUCIBLE, engine_number, request_name, row_counts
from hvd_core._runtime.failures import send_failure
from hvd_core._runtime.process_sets import number_of

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]


_T = TypeVar("_T")


class UnsupportedOpError(ValueError, AssertionError):
    """An operation does not have this reduce op: a ValueError, and the AssertionError that programs may catch."""


def allreduce(
    tensor: NDArray,
    average: Any = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> NDArray:
    """Reduce an array over all ranks into a new array.

    Args:
        tensor: any shape; a dense array in host memory of an integer type of up to 64 bits or float16, float32, float64.
            Shape and dtype must be the same on all ranks.
        average: deprecated, use `op`: True for Average, False for Sum.
        name: identifies the operation across ranks.
        priority: no effect.
        prescale_factor, postscale_factor: the input and the result are multiplied by them.
        process_set: the ranks that take part.
        op: hvd.Average (the default), Sum, Min, Max, Product or Adasum. Averages of integers truncate toward zero.

    Returns:
        An array of the shape, dtype and class of `tensor`, the same on all ranks.

    Raises:
        ValueError: the tensor, op or process set cannot be used, both `op` and `average` are given, or before init(); the
            matching calls of the other ranks fail. MXNetError: the work that produces `tensor` has failed.
        HorovodInternalError: ranks disagree, or a rank has made a mistake or is gone.
    """
    factors = prescale_factor, postscale_factor
    return _allreduce("allreduce", tensor, False, average, name, factors, process_set, op)[0]


def allreduce_(
    tensor: NDArray,
    average: Any = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> NDArray:
    """Reduce an array over all ranks in place, without a copy. Arguments and errors as in allreduce().

    Returns:
        `tensor`.
    """
    factors = prescale_factor, postscale_factor
    return _allreduce("allreduce", tensor, True, average, name, factors, process_set, op)[0]


def grouped_allreduce(
    tensors: Sequence[NDArray],
    average: Any = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[NDArray]:
    """Reduce several arrays as one all-or-nothing operation. Arguments and errors as in allreduce().

    Args:
        tensors: a list; the arrays may differ in shape and dtype. Without arrays nothing is sent, and a list with arrays
            on another rank fails there.

    Returns:
        A list of new arrays.
    """
    factors = prescale_factor, postscale_factor
    return _allreduce("grouped_allreduce", tensors, False, average, name, factors, process_set, op)


def grouped_allreduce_(
    tensors: Sequence[NDArray],
    average: Any = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[NDArray]:
    """Reduce several arrays in place as one all-or-nothing operation. See grouped_allreduce().

    Returns:
        A list of the arrays in `tensors`.
    """
    factors = prescale_factor, postscale_factor
    return _allreduce("grouped_allreduce", tensors, True, average, name, factors, process_set, op)


def allgather(
    tensor: NDArray,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Concatenate the arrays of all ranks along dimension 0, in rank order, into a new array.

    Args:
        tensor: one dimension or more, of any type that MXNet has. Dimension 0 may differ from rank to rank; the other
            dimensions and the dtype must agree.
        name, priority, process_set: as in allreduce().

    Raises:
        ValueError, MXNetError, HorovodInternalError: as in allreduce().
    """
    return _allgather("allgather", tensor, name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[NDArray]:
    """Gather several arrays as one all-or-nothing operation; returns a list of new arrays. See allgather()."""
    return _allgather("grouped_allgather", tensors, name, process_set)


def broadcast(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """The root's array on every rank, as a new array.

    Args:
        tensor: of any type that MXNet has. Shape and dtype must be the same on all ranks; the values count on the root.
        root_rank: the GLOBAL rank that sends, also within a process set.
        name, priority, process_set: as in allreduce().

    Raises:
        ValueError, MXNetError, HorovodInternalError: as in allreduce().
    """
    return _broadcast(tensor, False, root_rank, name, process_set)


def broadcast_(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Overwrite the array with the root's; returns it. Arguments and errors as in broadcast()."""
    return _broadcast(tensor, True, root_rank, name, process_set)


def alltoall(
    tensor: NDArray,
    splits: Sequence[int] | NDArray | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of an array to each rank, and receive the rows that the other ranks send here.

    Args:
        tensor: one dimension or more, of any type that MXNet has. Dimension 0 may differ from rank to rank.
        splits: how many rows go to each rank of the process set, in rank order: integers, or a 1-D array of them. None:
            equal shares, dimension 0 must be a multiple of the number of ranks.
        name, priority, process_set: as in allreduce().

    Returns:
        The received rows in rank order. With `splits` a pair: these, and how many came from each rank, a 1-D array of
        int32.

    Raises:
        ValueError: as in allreduce(), and for splits that do not fit.
        MXNetError, HorovodInternalError: as in allreduce().
    """
    return _alltoall(tensor, splits, name, process_set)


def reducescatter(
    tensor: NDArray,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> NDArray:
    """Reduce an array over all ranks, and return this rank's rows of the result as a new array.

    Args:
        tensor: one dimension or more; types as in allreduce(). Shape and dtype must be the same on all ranks. If the rows
            are not a multiple of the number of ranks, the first ranks get one more.
        op: hvd.Average, Sum, Min, Max or Product.
        name, priority, process_set, prescale_factor, postscale_factor: as in allreduce().

    Raises:
        ValueError, MXNetError, HorovodInternalError: as in allreduce(); the ValueError for op=hvd.Adasum is an
            AssertionError as well.
    """
    factors = prescale_factor, postscale_factor
    return _reducescatter("reducescatter", tensor, op, name, factors, process_set)[0]


def grouped_reducescatter(
    tensors: Sequence[NDArray],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[NDArray]:
    """Reduce and scatter several arrays as one all-or-nothing operation; returns a list. See reducescatter()."""
    factors = prescale_factor, postscale_factor
    return _reducescatter("grouped_reducescatter", tensors, op, name, factors, process_set)


# ---- One collective, from the check of its arguments to its result
#
# `prefix` begins the request's name: "grouped_allreduce" for a group, whose `tensors` are several, "allreduce" for one
# array. A mistake that is found in a guard is an error of the other ranks' matching calls too.


def _guard(operation: str, prefix: str, name: Any, process_set: ProcessSet) -> AbstractContextManager[None]:
    return reported_for_each(operation, prefix, [name], process_set)


def _members(operation: str, prefix: str, tensors: Any, name: Any, process_set: ProcessSet) -> list[NDArray]:
    """The arrays of a call. Of a group without any the other ranks' groups fail, if they have some."""
    if prefix == operation:
        return [tensors]
    with _guard(operation, prefix, name, process_set):
        members = operations.members_of(tensors, NDArray)
    if not members:
        send_failure(operation, name, process_set, f"{prefix}() was called there with an empty list.", prefix)
    return members


def _allreduce(
    prefix: str,
    tensors: Any,
    in_place: bool,
    average: Any,
    name: str | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    op: int | None,
) -> list[NDArray]:
    with _guard("allreduce", prefix, name, process_set):
        reduction = op_from(op, average, stacklevel=4)
    inputs = outputs = _members("allreduce", prefix, tensors, name, process_set)
    if not inputs:
        return []
    with _guard("allreduce", prefix, name, process_set):
        full_name = request_name(prefix, name)
        for array in inputs:
            check(array, REDUCIBLE)
        op_number, set_number = engine_number(reduction), number_of(process_set)
        if not in_place:
            outputs = [empty(array.shape, array) for array in inputs]
        sent = [reference(array, writes=in_place) for array in inputs]
        received = sent if in_place else [reference(array, writes=True) for array in outputs]
    single = prefix == "allreduce"
    engine().allreduce(
        sent[0] if single else sent,
        received[0] if single else received,
        full_name,
        op_number,
        factors[0],
        factors[1],
        set_number,
        True,
    )
    return outputs


def _allgather(prefix: str, tensors: Any, name: str | None, process_set: ProcessSet) -> list[NDArray]:
    inputs = _members("allgather", prefix, tensors, name, process_set)
    if not inputs:
        return []
    with _guard("allgather", prefix, name, process_set):
        full_name = request_name(prefix, name)
        for array in inputs:
            check(array, MOVABLE)
        sent = [reference(array, writes=False) for array in inputs]
        number = number_of(process_set)
    core = engine()
    handle = core.allgather(sent, full_name, number)
    return _result(core, handle, lambda: [_output(core, handle, i, a) for i, a in enumerate(inputs)])


def _broadcast(
    tensor: NDArray, in_place: bool, root_rank: int, name: str | None, process_set: ProcessSet
) -> NDArray:
    with _guard("broadcast", "broadcast", name, process_set):
        full_name = request_name("broadcast", name)
        check(tensor, MOVABLE)
        output = tensor if in_place else empty(tensor.shape, tensor)
        received = reference(output, writes=True)
        sent = received if in_place else reference(tensor, writes=False)
        number = number_of(process_set)
    core = engine()
    handle = core.broadcast([sent], [received], root_rank, full_name, number)
    return _result(core, handle, lambda: output)


def _alltoall(tensor: NDArray, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
    with _guard("alltoall", "alltoall", name, process_set):
        full_name = request_name("alltoall", name)
        check(tensor, MOVABLE)
        if isinstance(splits, NDArray):
            splits = splits.asnumpy().tolist()
        rows = [] if splits is None else [row_counts(splits)]
        sent = reference(tensor, writes=False)
        number = number_of(process_set)
    core = engine()
    handle = core.alltoall([sent], rows, full_name, number)

    def fetch() -> Any:
        output = _output(core, handle, 0, tensor)
        if splits is None:
            return output
        received = empty((len(rows[0]),), tensor).astype("int32")
        received[:] = np.array(core.received_splits(handle, 0), dtype=np.int32)
        return output, received

    return _result(core, handle, fetch)


def _reducescatter(
    prefix: str,
    tensors: Any,
    op: int,
    name: str | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
) -> list[NDArray]:
    inputs = _members("reducescatter", prefix, tensors, name, process_set)
    if not inputs:
        return []
    with _guard("reducescatter", prefix, name, process_set):
        full_name = request_name(prefix, name)
        if op == Adasum:
            raise UnsupportedOpError(
                "Reducescatter has no op Adasum. Use hvd.Average, Sum, Min, Max or Product."
            )
        op_number, set_number = engine_number(op), number_of(process_set)
        for array in inputs:
            check(array, REDUCIBLE)
            if not array.shape:
                raise ValueError("reducescatter does not support scalar inputs.")
        rows = engine().scattered_rows
        outputs = [empty((rows(a.shape[0], set_number), *a.shape[1:]), a) for a in inputs]
        sent = [reference(array, writes=False) for array in inputs]
        received = [reference(array, writes=True) for array in outputs]
    core = engine()
    handle = core.reducescatter(sent, received, full_name, op_number, factors[0], factors[1], set_number)
    return _result(core, handle, lambda: outputs)


def _result(core: Engine, handle: int, fetch: Callable[[], _T]) -> _T:
    """The value of fetch(), when the operation is done. The engine keeps the arrays of an operation whose wait ends
    early, so the handle is released in any case."""
    try:
        core.wait(handle)
        return fetch()
    finally:
        core.release(handle)


def _output(core: Engine, handle: int, index: int, like: NDArray) -> NDArray:
    """An output that the engine has allocated, as a new array of the type of `like`."""
    output = empty(tuple(core.output_info(handle, index)[0]), like)
    core.copy_output(handle, index, reference(output, writes=True))
    return output
