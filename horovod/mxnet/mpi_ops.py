"""The operations of ``horovod.mxnet`` on MXNet's arrays in host memory.

All ranks of the process set call an operation, and each call waits for its result. Calls with a name may come in any
order from rank to rank; calls without one in the same order. ``priority`` is accepted for programs written for Horovod
and has no effect: MXNet orders what waits in its queue by it, and here nothing waits. There are no gradients, as in
Horovod: reduce gradients with DistributedTrainer or DistributedOptimizer. Any thread.
"""

from collections.abc import Sequence
from typing import Any

from horovod.common.arguments import Average, op_from
from horovod.common.failed_calls import failed
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet._arrays import NDArray
from horovod.mxnet._collectives import gather, reduce, scatter, send_root, send_rows
from hvd_core._frontend import groups
from hvd_core._runtime.refusals import report

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
        members = groups.members_of(tensors, NDArray)
    except BaseException as error:
        failed("allreduce", prefix, name, process_set, error)
        raise
    if not members:
        report("allreduce", name, process_set, f"{prefix}() was called there with an empty list.", prefix)
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
        members = groups.members_of(tensors, NDArray)
    except BaseException as error:
        failed("allgather", prefix, name, process_set, error)
        raise
    if not members:
        report("allgather", name, process_set, f"{prefix}() was called there with an empty list.", prefix)
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
        members = groups.members_of(tensors, NDArray)
    except BaseException as error:
        failed("reducescatter", prefix, name, process_set, error)
        raise
    if not members:
        report("reducescatter", name, process_set, f"{prefix}() was called there with an empty list.", prefix)
        return []
    return scatter(members, prefix, name, op, (prescale_factor, postscale_factor), process_set)
