"""The operations of ``horovod.torch``, under the name that programs import. No MPI is involved.

The synchronous functions are differentiable, those in place excepted. The ``..._async`` functions return a handle for
poll() and synchronize(), and are not: disagreements between ranks surface in synchronize(), and the tensors must not
change before the operation is done. All of them are made from the table in ``_operations``. Any thread that holds the
GIL; it is released while waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

from horovod.common import exports
from horovod.common.arguments import Average, op_from
from horovod.common.basics import engine
from horovod.common.exceptions import HorovodInternalError
from horovod.common.exports import *  # noqa: F403
from horovod.common.exports import _basics  # noqa: F401 (programs import it)
from horovod.common.exports import init as init
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.common.util import gpu_available, num_rank_is_power_2
from horovod.torch._autograd import (
    Call,
    HorovodAllgather,
    HorovodAllreduce,
    HorovodAlltoall,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    HorovodGroupedAllreduce,
    HorovodGroupedReducescatter,
    HorovodReducescatter,
    differentiable,
)
from horovod.torch._compile import traced, tracing
from horovod.torch._dtypes import REDUCIBLE
from horovod.torch._operand import reject
from horovod.torch._operations import (  # noqa: F401 (programs import _handle_map)
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
    Operation,
    _handle_map,
    poll,
    resolve_op,
    start_plain,
    start_sparse,
    submit,
    synchronize,
)
from horovod.torch.compression import Compression, Compressor
from hvd_core._frontend import operations
from hvd_core._runtime.failures import report_failure, send_failure
from hvd_core._runtime.process_sets import number_of

Splits = Sequence[int] | torch.Tensor

__all__ = [
    "Compression",
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
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
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += exports.__all__
_PACKAGE = tuple(__all__)  # the names that horovod.torch has too
__all__ += [
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "num_rank_is_power_2",
]


def _run(
    operation: Operation,
    tensors: Any,
    name: str | None,
    process_set: ProcessSet,
    arguments: tuple[Any, ...] = (),
    compression: type[Compressor] = Compression.none,
    grouped: bool = False,
    in_place: bool = False,
) -> Any:
    """Carry out a synchronous operation: as a part of a graph, as it is, or with compression and a gradient."""
    if tracing():
        return traced(operation.name, tensors, name, process_set, arguments, compression, grouped, in_place)
    # No step of this can fail: submit() is the first that reports a failure.
    is_plain = compression is Compression.none and (
        not grouped or (isinstance(tensors, list) and len(tensors) > 0)
    )
    try:
        is_plain = is_plain and (in_place or not _needs_grad(tensors, grouped))
    except Exception:  # no tensor: the guard below meets the exception too, and reports it
        is_plain = False
    if is_plain:
        return submit(operation, tensors, name, process_set, arguments, grouped, in_place, True)
    engine()  # fails before init()
    prefix = operation.grouped_name if grouped else operation.name
    with report_failure(operation.name, name, process_set, prefix):
        given = operations.members_of(tensors, torch.Tensor) if grouped else [tensors]
        contexts = []
        for place, tensor in enumerate(given):
            if compression is not Compression.none and not isinstance(tensor, torch.Tensor):
                reject(tensor, REDUCIBLE, process_set)
            given[place], context = compression.compress(tensor)
            contexts.append(context)
        needs_grad = not in_place and _needs_grad(given, grouped=True)
    if not given:
        # Nothing is sent. If the groups of other ranks have tensors, their calls fail.
        text = f"{prefix}() was called there with an empty list."
        send_failure(operation.name, name, process_set, text, prefix)
        return []
    if needs_grad:
        result = differentiable(Call(operation, name, process_set, arguments, grouped), given)
    else:
        tensors = given if grouped else given[0]
        result = submit(operation, tensors, name, process_set, arguments, grouped, in_place, True)
    if not grouped:
        return compression.decompress(result, contexts[0])
    return [compression.decompress(each, context) for each, context in zip(result, contexts)]


_one: Callable[..., torch.Tensor] = _run
_several: Callable[..., list[torch.Tensor]] = _run


def _needs_grad(tensors: Any, grouped: bool) -> bool:
    if not torch.is_grad_enabled():
        return False
    if grouped:
        return any(getattr(tensor, "requires_grad", False) for tensor in tensors)
    return bool(getattr(tensors, "requires_grad", False))


# ------------------------------------------------------------------------------------------ the synchronous operations


def allreduce(
    tensor: torch.Tensor,
    average: Any = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all ranks into a new tensor. Differentiable.

    Every rank of the process set calls it, and waits for the result. Calls with a name may come in any order, and are
    matched by name; those without are matched in the order in which they are made. The gradient is the same allreduce of
    the incoming gradient.

        loss = hvd.allreduce(loss.detach(), name="loss")  # mean over ranks, for the log
        count = hvd.allreduce(torch.tensor(n), op=hvd.Sum)

    Args:
        tensor: any shape, also 0-dim or empty, on the CPU or a device that is served; uint8, int8, uint16,
            int16, int32, int64, float16, bfloat16, float32 or float64. Shape and dtype must be the same on all ranks.
        average: deprecated, use `op`.
        name: identifies the operation across ranks; None numbers it in the order of submission.
        compression: makes a smaller tensor that is sent for `tensor`, such as hvd.Compression.fp16.
        op: hvd.Average (default), Sum, Min, Max, Product or, for floats, Adasum. Averages of integers truncate toward
            zero. 16-bit floats are added up in 32 bits and rounded once; across hosts, once within the hosts and once
            between them.
        prescale_factor: multiplies `tensor` before the reduction.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.

    Returns:
        A tensor of the shape and dtype of `tensor`; our own backends return the same bits on all ranks.

    Raises:
        ValueError: Horovod is not initialized, an unsupported tensor, `op` together with `average`, this
            rank is not in `process_set`, or an operation of this name is still pending. The other ranks' matching call
            raises HorovodInternalError with the reason.
        HorovodInternalError: ranks disagree about shape, dtype, op or factors, a rank has made a mistake, or a rank is
            gone. After a disagreement Horovod continues, and the name may be used again.
    """
    if average is not None:
        op = resolve_op(op, average, "allreduce", name, process_set)
    return _one(ALLREDUCE, tensor, name, process_set, (op, prescale_factor, postscale_factor), compression)


def allreduce_(
    tensor: torch.Tensor,
    average: Any = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all ranks in place. Not differentiable, also where `tensor` requires a gradient.

        hvd.allreduce_(model.running_mean)  # the mean over ranks, where it lies

    Args:
        tensor: as in allreduce, and contiguous; it is overwritten.
        average, name, op, prescale_factor, postscale_factor, process_set: as in allreduce.

    Returns:
        `tensor`.

    Raises:
        ValueError, HorovodInternalError: as in allreduce. After the latter the values of `tensor` are undefined.
    """
    if average is not None:
        op = resolve_op(op, average, "allreduce", name, process_set)
    arguments = (op, prescale_factor, postscale_factor)
    if not tracing() and start_plain(tensor, tensor, name, process_set, arguments, True) is not None:
        return tensor  # the most frequent call
    return _one(ALLREDUCE, tensor, name, process_set, arguments, in_place=True)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: Any = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors as one all-or-nothing operation, into new tensors. Differentiable.

        loss, accuracy = hvd.grouped_allreduce([loss, accuracy], name="metrics")

    Args:
        tensors: each as in allreduce, all on one device; dtypes may be mixed. Number, shapes and dtypes must agree across
            ranks. Empty: [] is returned.
        average, name, compression, op, prescale_factor, postscale_factor, process_set: as in allreduce.

    Returns:
        The reduced tensors in the order of `tensors`.

    Raises:
        ValueError, HorovodInternalError: as in allreduce.
    """
    if average is not None:
        op = resolve_op(op, average, "grouped_allreduce", name, process_set)
    arguments = (op, prescale_factor, postscale_factor)
    return _several(ALLREDUCE, tensors, name, process_set, arguments, compression, grouped=True)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: Any = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors as one all-or-nothing operation, in place. Not differentiable.

        hvd.grouped_allreduce_([buffer for buffer in model.buffers() if buffer.is_floating_point()])

    Args:
        tensors: as in grouped_allreduce; they are overwritten.
        average, name, op, prescale_factor, postscale_factor, process_set: as in allreduce.

    Returns:
        The tensors themselves, as a list.

    Raises:
        ValueError, HorovodInternalError: as in allreduce_.
    """
    if average is not None:
        op = resolve_op(op, average, "grouped_allreduce", name, process_set)
    arguments = (op, prescale_factor, postscale_factor)
    return _several(ALLREDUCE, tensors, name, process_set, arguments, grouped=True, in_place=True)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the ranks' tensors along dimension 0, in rank order. Differentiable.

    The gradient is this rank's rows of the average over ranks of the incoming gradient.

        scores = hvd.allgather(scores)  # of all ranks, in rank order

    Args:
        tensor: one dimension or more, contiguous, on the CPU or a device that is served; a type of allreduce, bool,
            uint32, uint64 or an 8-bit float. Dimension 0 may differ between ranks and may be 0; the other
            dimensions and the dtype must agree.
        name, process_set: as in allreduce.

    Returns:
        A tensor whose dimension 0 is the sum of those of all ranks; the same on all ranks.

    Raises:
        ValueError, HorovodInternalError: as in allreduce; a 0-dim tensor is a HorovodInternalError.
    """
    return _one(ALLGATHER, tensor, name, process_set)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Gather several tensors as one all-or-nothing operation; each as in allgather. Differentiable.

        labels, scores = hvd.grouped_allgather([labels, scores])

    Args:
        tensors: each as in allgather, all on one device; dtypes may be mixed.
        name, process_set: as in allreduce.

    Returns:
        The gathered tensors in the order of `tensors`; [] for an empty list.

    Raises:
        ValueError, HorovodInternalError: as in allgather.
    """
    return _several(ALLGATHER, tensors, name, process_set, grouped=True)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Copy the root's tensor to all ranks, into a new tensor. Differentiable.

    The gradient is the average over ranks of the incoming gradient at the root, and zero elsewhere.

        seed = int(hvd.broadcast(torch.tensor(seed), root_rank=0))

    Args:
        tensor: any shape, on the CPU or a device that is served; a type of allgather. Shape and dtype
            must agree across ranks.
        root_rank: the GLOBAL rank whose values are sent, also within a process set.
        name, process_set: as in allreduce.

    Returns:
        A tensor of the shape and dtype of `tensor` with the root's values.

    Raises:
        ValueError: as in allreduce, and for a root that is not in the process set.
        HorovodInternalError: as in allreduce, and when ranks name different roots.
    """
    return _one(BROADCAST, tensor, name, process_set, (root_rank,))


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Copy the root's tensor to all ranks in place. Not differentiable, also where `tensor` requires a gradient.

        hvd.broadcast_(model.weight.data, root_rank=0)

    Args:
        tensor: as in broadcast; on other ranks than the root it is overwritten.
        root_rank: the GLOBAL rank whose values are sent, also within a process set.
        name, process_set: as in allreduce.

    Returns:
        `tensor`.

    Raises:
        ValueError, HorovodInternalError: as in broadcast.
    """
    if tracing():
        return _one(BROADCAST, tensor, name, process_set, (root_rank,), in_place=True)
    # In place and without compression there is nothing else to do.
    received: torch.Tensor = submit(BROADCAST, tensor, name, process_set, (root_rank,), False, True, True)
    return received


@overload
def alltoall(
    tensor: torch.Tensor,
    splits: None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor: ...


@overload
def alltoall(
    tensor: torch.Tensor,
    splits: Splits,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, torch.Tensor]: ...


def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send rows of a tensor to each rank, and receive the rows that the other ranks send here. Differentiable.

    The gradient of a row is sent back to the rank that sent the row; that of rows that were not sent is zero.

        rows, received = hvd.alltoall(rows, splits=[2, 1])  # on two ranks

    Args:
        tensor: one dimension or more, contiguous, on the CPU or a device that is served; a type of allgather.
            Dimension 0 may differ between ranks and may be 0; the other dimensions and the dtype must agree.
        splits: how many rows go to each rank of the process set, in rank order: integers, or a 1-D tensor of
            integers (read by the host). Rows beyond their sum are not sent. None: equal shares, dimension 0 must be a
            multiple of the number of ranks.
        name, process_set: as in allreduce.

    Returns:
        Without `splits` the received rows in rank order, a tensor of the dtype of `tensor`. With `splits` a pair: these,
        and how many came from each rank, a 1-D tensor of the dtype and device of `splits` if that is a tensor, else of
        int32 on the CPU.

    Raises:
        ValueError: as in allreduce, and for splits that do not fit the tensor or the process set.
        HorovodInternalError: as in allreduce; a 0-dim tensor.
    """
    received: torch.Tensor | tuple[torch.Tensor, torch.Tensor] = _run(
        ALLTOALL, tensor, name, process_set, (splits,)
    )
    return received[0] if splits is None and isinstance(received, tuple) else received


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce a tensor over all ranks and give each rank its share of the rows of the result. Differentiable.

    The gradient is the incoming gradients of all ranks in rank order, times the factors, and times the number of ranks
    for hvd.Sum.

        mine = hvd.reducescatter(table, op=hvd.Sum)  # this rank's rows of the sum

    Args:
        tensor: one dimension or more, otherwise as in allreduce. Shape and dtype must agree across ranks.
        name, compression: as in allreduce.
        op: hvd.Average (default) or Sum, or Min, Max or Product, which have no gradient.
        process_set: the ranks that take part.
        prescale_factor, postscale_factor: as in allreduce.

    Returns:
        The rows of this rank. Rows are shared out in rank order; if dimension 0 is not a multiple of the number of
        ranks, the first ranks get one more. A rank may get none.

    Raises:
        ValueError: as in allreduce, and for a 0-dim tensor.
        HorovodInternalError: as in allreduce.
    """
    return _one(
        REDUCESCATTER, tensor, name, process_set, (op, prescale_factor, postscale_factor), compression
    )


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce and scatter several tensors as one all-or-nothing operation; each as in reducescatter. Differentiable.

        keys, values = hvd.grouped_reducescatter([keys, values])

    Args:
        tensors: each as in reducescatter, all on one device; number, shapes and dtypes must agree across ranks. Empty:
            [] is returned.
        name, compression, op, process_set, prescale_factor, postscale_factor: as in reducescatter.

    Returns:
        This rank's rows of each result, in the order of `tensors`.

    Raises:
        ValueError, HorovodInternalError: as in reducescatter.
    """
    arguments = (op, prescale_factor, postscale_factor)
    return _several(REDUCESCATTER, tensors, name, process_set, arguments, compression, grouped=True)


# ----------------------------------------------------------------------------------------- the asynchronous operations


_start: Callable[..., int] = submit


def allreduce_async(
    tensor: torch.Tensor,
    average: Any = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start allreduce(), and return at once.

        handle = hvd.allreduce_async(tensor, op=hvd.Sum, name="loss")
        ...  # compute
        total = hvd.synchronize(handle)

    Args:
        tensor, average, name, op, prescale_factor, postscale_factor, process_set: as in allreduce.

    Returns:
        A handle for poll() and synchronize(); the latter returns a new tensor.

    Raises:
        ValueError: as in allreduce.
    """
    if average is not None:
        op = resolve_op(op, average, "allreduce", name, process_set)
    arguments = (op, prescale_factor, postscale_factor)
    return _start(ALLREDUCE, tensor, name, process_set, arguments)


def allreduce_async_(
    tensor: torch.Tensor,
    average: Any = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start allreduce_(), and return at once.

        handle = hvd.allreduce_async_(tensor)
        ...  # compute, without `tensor`
        hvd.synchronize(handle)

    Args:
        tensor: as in allreduce_; it must not be read before the operation is done.
        average, name, op, prescale_factor, postscale_factor, process_set: as in allreduce.

    Returns:
        A handle for poll() and synchronize(); the latter returns `tensor`.

    Raises:
        ValueError: as in allreduce_.
    """
    if average is not None:
        op = resolve_op(op, average, "allreduce", name, process_set)
    arguments = (op, prescale_factor, postscale_factor)
    return _start(ALLREDUCE, tensor, name, process_set, arguments, in_place=True)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: Any = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start grouped_allreduce(), and return at once.

        handle = hvd.grouped_allreduce_async([loss, accuracy])
        loss, accuracy = hvd.synchronize(handle)

    Args:
        tensors: as in grouped_allreduce, at least one.
        average, name, op, prescale_factor, postscale_factor, process_set: as in allreduce.

    Returns:
        One handle for the group; synchronize() returns a list of new tensors.

    Raises:
        ValueError: as in grouped_allreduce, and for an empty list.
    """
    if average is not None:
        op = resolve_op(op, average, "grouped_allreduce", name, process_set)
    arguments = (op, prescale_factor, postscale_factor)
    return _start(ALLREDUCE, tensors, name, process_set, arguments, grouped=True)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: Any = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start grouped_allreduce_(), and return at once.

        handle = hvd.grouped_allreduce_async_([p.grad for p in model.parameters()])
        hvd.synchronize(handle)

    Args:
        tensors: as in grouped_allreduce_, at least one; they must not be read before the operation is done.
        average, name, op, prescale_factor, postscale_factor, process_set: as in allreduce.

    Returns:
        One handle for the group; synchronize() returns a list of the tensors themselves.

    Raises:
        ValueError: as in grouped_allreduce_, and for an empty list.
    """
    if average is not None:
        op = resolve_op(op, average, "grouped_allreduce", name, process_set)
    arguments = (op, prescale_factor, postscale_factor)
    return _start(ALLREDUCE, tensors, name, process_set, arguments, grouped=True, in_place=True)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start allgather(), and return at once.

        scores = hvd.synchronize(hvd.allgather_async(scores))

    Args:
        tensor, name, process_set: as in allgather.

    Returns:
        A handle; synchronize() returns the gathered tensor.

    Raises:
        ValueError: as in allgather. A 0-dim tensor fails in synchronize(), on all ranks.
    """
    return _start(ALLGATHER, tensor, name, process_set)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start grouped_allgather(), and return at once.

        labels, scores = hvd.synchronize(hvd.grouped_allgather_async([labels, scores]))

    Args:
        tensors: as in grouped_allgather, at least one.
        name, process_set: as in allgather.

    Returns:
        One handle; synchronize() returns the list of gathered tensors.

    Raises:
        ValueError: as in allgather_async, and for an empty list.
    """
    return _start(ALLGATHER, tensors, name, process_set, grouped=True)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start broadcast(), and return at once.

        seed = hvd.synchronize(hvd.broadcast_async(torch.tensor(seed), root_rank=0))

    Args:
        tensor, root_rank, name, process_set: as in broadcast.

    Returns:
        A handle; synchronize() returns a new tensor.

    Raises:
        ValueError: as in broadcast.
    """
    return _start(BROADCAST, tensor, name, process_set, (root_rank,))


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start broadcast_(), and return at once.

        handles = [hvd.broadcast_async_(p.data, 0, name) for name, p in model.named_parameters()]
        for handle in handles:
            hvd.synchronize(handle)

    Args:
        tensor, root_rank, name, process_set: as in broadcast_.

    Returns:
        A handle; synchronize() returns `tensor`.

    Raises:
        ValueError: as in broadcast.
    """
    return _start(BROADCAST, tensor, name, process_set, (root_rank,), in_place=True)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start alltoall(), and return at once.

        rows, received = hvd.synchronize(hvd.alltoall_async(rows, splits=[2, 1]))  # on two ranks

    Args:
        tensor, splits, name, process_set: as in alltoall.

    Returns:
        A handle; synchronize() ALWAYS returns the pair that alltoall() returns with `splits`.

    Raises:
        ValueError: as in alltoall. A 0-dim tensor fails in synchronize(), on all ranks.
    """
    return _start(ALLTOALL, tensor, name, process_set, (splits,))


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start reducescatter(), and return at once.

        mine = hvd.synchronize(hvd.reducescatter_async(table, op=hvd.Sum))

    Args:
        tensor, name, op, process_set, prescale_factor, postscale_factor: as in reducescatter.

    Returns:
        A handle; synchronize() returns this rank's rows.

    Raises:
        ValueError: as in reducescatter. For another `op` it is a NotImplementedError as well.
    """
    arguments = (op, prescale_factor, postscale_factor)
    return _start(REDUCESCATTER, tensor, name, process_set, arguments)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start grouped_reducescatter(), and return at once.

        keys, values = hvd.synchronize(hvd.grouped_reducescatter_async([keys, values]))

    Args:
        tensors: as in grouped_reducescatter, at least one.
        name, op, process_set, prescale_factor, postscale_factor: as in reducescatter.

    Returns:
        One handle for the group; synchronize() returns the list of this rank's rows.

    Raises:
        ValueError: as in reducescatter_async, and for an empty list.
    """
    arguments = (op, prescale_factor, postscale_factor)
    return _start(REDUCESCATTER, tensors, name, process_set, arguments, grouped=True)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start reducing a sparse COO tensor, by gathering indices and values.

        wait = hvd.sparse_allreduce_async(embedding.weight.grad, name="embedding", op=hvd.Average)
        embedding.weight.grad = wait()

    Args:
        tensor: sparse COO tensor; the shape must agree across ranks, the number of values may
            differ.
        name, process_set: as in allreduce_async. There are two operations, ``NAME.indices`` and ``NAME.values``.
        op: hvd.Average or hvd.Sum.

    Returns:
        A function without arguments (no handle: poll() does not take it) that waits and returns the sparse
        tensor.

    Raises:
        ValueError: not sparse, or as in allreduce_async. NotImplementedError: another `op`.
    """
    return start_sparse(tensor, name, op, process_set)


# ------------------------------------------------------------------------------------------ operations without tensors


def handle_average_backwards_compatibility(op: int | None, average: Any) -> int:
    """The reduce op meant by the arguments `op` and `average` together. ValueError if both are given."""
    return op_from(op, average)


def join(device: int = -1) -> int:
    """Join: this rank has no more data. Waits until all ranks have joined.

    Until then this rank takes part in the operations of the others, on all its process sets, with data that do not change
    the result: to a reduction it gives the operation's identity (0 for Sum, Average and Adasum; an average still divides
    by the number of ALL ranks), to allgather and alltoall no rows. The results are dropped on this rank. A broadcast from
    a rank that has joined fails.

        for batch in my_batches:  # not as many on each rank
            train(batch)
        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)

    Args:
        device: accepted for compatibility; not used.

    Returns:
        The rank that joined last, the same on all ranks.

    Raises:
        ValueError: Horovod is not initialized. HorovodInternalError: a rank is gone.
    """
    return operations.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of a process set have called barrier().

    Args:
        process_set: the ranks that wait for each other.

    Raises:
        ValueError: Horovod is not initialized, or the set is not registered.
        HorovodInternalError: a rank is gone.
    """
    engine()  # fails before init()
    with report_failure("barrier", None, process_set, "barrier"):
        number = number_of(process_set)
    operations.barrier(number)
