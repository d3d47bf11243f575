"""The operations of ``horovod.mxnet`` on MXNet's arrays in host memory.

All ranks of the process set call an operation, and each call waits for its result. Calls with a name may come in any
order from rank to rank; calls without one in the same order. ``priority`` is accepted for programs written for Horovod
and has no effect: MXNet orders what waits in its queue by it, and here nothing waits. There are no gradients, as in
Horovod: reduce gradients with DistributedTrainer or DistributedOptimizer. Any thread.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from horovod.common.arguments import Adasum, Average, op_from
from horovod.common.basics import engine
from horovod.common.failed_calls import failed
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet._arrays import MOVABLE, REDUCIBLE, NDArray, check, empty, reference
from hvd_core._core import TensorRef
from hvd_core._frontend import operations
from hvd_core._frontend.operations import engine_number, request_name, row_counts
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


# ---- One collective, from the check of its arguments to its result
#
# A mistake that is found here is an error of the other ranks' matching calls too. `prefix` begins the request's name, and
# keeps groups apart.


class UnsupportedOpError(ValueError, AssertionError):
    """An operation does not have this reduce op: a ValueError, and the AssertionError that programs may catch."""


def reduce(inputs, outputs, prefix, name, op, factors, process_set) -> list:
    """Allreduce of the arrays, into `outputs` (the inputs themselves) or new arrays; returns these."""
    try:
        full_name = request_name(prefix, name)
        for array in inputs:
            check(array, REDUCIBLE)
        op_number, set_number = engine_number(op), number_of(process_set)
        if outputs is None:
            outputs = [empty(array.shape, array) for array in inputs]
            sent = [reference(array, writes=False) for array in inputs]
            received = [reference(array, writes=True) for array in outputs]
        else:
            sent = received = [reference(array, writes=True) for array in inputs]
    except BaseException as error:
        failed("allreduce", prefix, name, process_set, error)
        raise
    if prefix == "allreduce":
        sent, received = sent[0], received[0]
    engine().allreduce(sent, received, full_name, op_number, *factors, set_number, True)
    return list(outputs)


def gather(inputs, prefix, name, process_set) -> list:
    """Allgather of the arrays into new arrays."""
    try:
        full_name = request_name(prefix, name)
        for array in inputs:
            check(array, MOVABLE)
        sent = [reference(array, writes=False) for array in inputs]
        number = number_of(process_set)
    except BaseException as error:
        failed("allgather", prefix, name, process_set, error)
        raise
    core = engine()
    handle = core.allgather(sent, full_name, number)
    return _results(core, handle, lambda: [_output(core, handle, i, a) for i, a in enumerate(inputs)])


def _results(core, handle: int, fetch: Callable) -> Any:
    """The value of fetch(), when the operation is done. The engine keeps the arrays of an operation whose wait ends
    early, so the handle is released in any case."""
    try:
        core.wait(handle)
        return fetch()
    finally:
        core.release(handle)


def _output(core, handle: int, index: int, like: NDArray) -> NDArray:
    """An output that the engine has allocated, as a new array of the type of `like`."""
    output = empty(tuple(core.output_info(handle, index)[0]), like)
    core.copy_output(handle, index, reference(output, writes=True))
    return output


def send_root(tensor, in_place, root_rank, name, process_set) -> NDArray:
    """Broadcast of an array, in place or into a new array."""
    try:
        full_name = request_name("broadcast", name)
        check(tensor, MOVABLE)
        output = tensor if in_place else empty(tensor.shape, tensor)
        received = reference(output, writes=True)
        sent = received if in_place else reference(tensor, writes=False)
        number = number_of(process_set)
    except BaseException as error:
        failed("broadcast", "broadcast", name, process_set, error)
        raise
    core = engine()
    handle = core.broadcast([sent], [received], root_rank, full_name, number)
    return _results(core, handle, lambda: output)


def send_rows(tensor, splits, name, process_set) -> Any:
    """Alltoall of an array: the received rows, and with splits also how many came from each rank."""
    try:
        full_name = request_name("alltoall", name)
        check(tensor, MOVABLE)
        if isinstance(splits, NDArray):
            splits = splits.asnumpy().tolist()
        rows = [] if splits is None else [row_counts(splits)]
        sent = reference(tensor, writes=False)
        number = number_of(process_set)
    except BaseException as error:
        failed("alltoall", "alltoall", name, process_set, error)
        raise
    core = engine()
    handle = core.alltoall([sent], rows, full_name, number)

    def fetch() -> Any:
        output = _output(core, handle, 0, tensor)
        if splits is None:
            return output
        received = empty((len(rows[0]),), tensor).astype("int32")
        received[:] = np.array(core.received_splits(handle, 0), dtype=np.int32)
        return output, received

    return _results(core, handle, fetch)


def scatter(inputs, prefix, name, op, factors, process_set) -> list:
    """Reducescatter of the arrays into new arrays."""
    try:
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
        received: list[TensorRef] = [reference(array, writes=True) for array in outputs]
    except BaseException as error:
        failed("reducescatter", prefix, name, process_set, error)
        raise
    core = engine()
    handle = core.reducescatter(sent, received, full_name, op_number, *factors, set_number)
    return _results(core, handle, lambda: outputs)


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
    options = (average, name, prescale_factor, postscale_factor, process_set, op)
    return _allreduce(tensor, False, *options)


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
    options = (average, name, prescale_factor, postscale_factor, process_set, op)
    return _allreduce(tensor, True, *options)


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
    options = (average, name, prescale_factor, postscale_factor, process_set, op)
    return _grouped_allreduce(tensors, False, *options)


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
    options = (average, name, prescale_factor, postscale_factor, process_set, op)
    return _grouped_allreduce(tensors, True, *options)


def _allreduce(tensor, in_place, average, name, prescale, postscale, process_set, op) -> NDArray:
    try:
        reduction = op_from(op, average, stacklevel=4)
    except BaseException as error:
        failed("allreduce", "allreduce", name, process_set, error)
        raise
    outputs = (tensor,) if in_place else None
    return reduce((tensor,), outputs, "allreduce", name, reduction, (prescale, postscale), process_set)[0]


def _grouped_allreduce(tensors, in_place, average, name, prescale, postscale, process_set, op) -> list:
    prefix = "grouped_allreduce"
    try:
        reduction = op_from(op, average, stacklevel=4)
        members = operations.members_of(tensors, NDArray)
    except BaseException as error:
        failed("allreduce", prefix, name, process_set, error)
        raise
    if not members:
        send_failure(
            "allreduce", name, process_set, f"{prefix}() was called there with an empty list.", prefix
        )
        return []
    outputs = members if in_place else None
    return reduce(members, outputs, prefix, name, reduction, (prescale, postscale), process_set)


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
    return gather((tensor,), "allgather", name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[NDArray]:
    """Gather several arrays as one all-or-nothing operation; returns a list of new arrays. See allgather()."""
    prefix = "grouped_allgather"
    try:
        members = operations.members_of(tensors, NDArray)
    except BaseException as error:
        failed("allgather", prefix, name, process_set, error)
        raise
    if not members:
        send_failure(
            "allgather", name, process_set, f"{prefix}() was called there with an empty list.", prefix
        )
        return []
    return gather(members, prefix, name, process_set)


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
    return send_root(tensor, False, root_rank, name, process_set)


def broadcast_(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Overwrite the array with the root's; returns it. Arguments and errors as in broadcast()."""
    return send_root(tensor, True, root_rank, name, process_set)


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
    return send_rows(tensor, splits, name, process_set)


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
    factors = (prescale_factor, postscale_factor)
    return scatter((tensor,), "reducescatter", name, op, factors, process_set)[0]


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
    prefix = "grouped_reducescatter"
    try:
        members = operations.members_of(tensors, NDArray)
    except BaseException as error:
        failed("reducescatter", prefix, name, process_set, error)
        raise
    if not members:
        send_failure(
            "reducescatter", name, process_set, f"{prefix}() was called there with an empty list.", prefix
        )
        return []
    return scatter(members, prefix, name, op, (prescale_factor, postscale_factor), process_set)
