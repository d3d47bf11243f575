"""The synchronous operations of ``horovod.torch``, which are differentiable, and those in place, which are not.

Without a gradient to compute they call the engine directly, otherwise the autograd Functions. Re-exported by
``mpi_ops``. Any thread that holds the GIL; it is released while waiting.
"""

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.arguments import Average
from horovod.common.failed_calls import failed
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import _compile
from horovod.torch._async_gather import allgather_async, grouped_allgather_async
from horovod.torch._async_ops import (
    broadcast_into,
    empty_like,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    reduce_into,
)
from horovod.torch._autograd import (
    HorovodAllgather,
    HorovodAllreduce,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    HorovodGroupedAllreduce,
)
from horovod.torch._compile import tracing
from horovod.torch._submit import compress_all, dense, members_of, nothing, resolve_op, synchronize
from horovod.torch.compression import Compression, Compressor


def needs_grad(tensors: Sequence[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors)


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
            gone. After a disagreement Horovod goes on, and the name may be used again.
    """
    if tracing():
        return _compile.allreduce(
            tensor, average, name, compression, op, prescale_factor, postscale_factor, process_set
        )
    try:
        if average is not None:
            op = resolve_op(op, average)
        elif op is None:
            op = Average
        plain = compression is Compression.none and not needs_grad((tensor,))
        if plain:
            tensor = dense(tensor)
            output = empty_like(tensor)
        else:
            ((compressed, context),) = compress_all(compression, [tensor])
    except BaseException as error:
        failed("allreduce", "allreduce", name, process_set, error)
        raise
    if plain:
        reduce_into(tensor, output, name, op, prescale_factor, postscale_factor, process_set, True)
        return output
    reduced = HorovodAllreduce.apply(
        compressed, None, name, op, prescale_factor, postscale_factor, process_set
    )
    return compression.decompress(reduced, context)


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

    Args:
        tensor: as in allreduce, and contiguous; it is overwritten.
        average, name, op, prescale_factor, postscale_factor, process_set: as in allreduce.

    Returns:
        `tensor`.

    Raises:
        ValueError, HorovodInternalError: as in allreduce. After the latter the values of `tensor` are undefined.
    """
    if tracing():
        return _compile.allreduce_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    try:
        if average is not None:
            op = resolve_op(op, average)
        elif op is None:
            op = Average
    except BaseException as error:
        failed("allreduce", "allreduce", name, process_set, error)
        raise
    reduce_into(tensor, tensor, name, op, prescale_factor, postscale_factor, process_set, True)
    return tensor


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

    Args:
        tensors: each as in allreduce, all on one device; dtypes may be mixed. Number, shapes and dtypes must agree across
            ranks. Empty: [] is returned.
        average, name, compression, op, prescale_factor, postscale_factor, process_set: as in allreduce.

    Returns:
        The reduced tensors in the order of `tensors`.

    Raises:
        ValueError, HorovodInternalError: as in allreduce.
    """
    if tracing():
        return _compile.grouped_allreduce(
            tensors, average, name, compression, op, prescale_factor, postscale_factor, process_set
        )
    try:
        if average is not None:
            op = resolve_op(op, average)
        elif op is None:
            op = Average
        tensors = members_of(tensors)
        plain = compression is Compression.none and not needs_grad(tensors)
        if tensors and not plain:
            compressed, contexts = zip(*compress_all(compression, tensors))
    except BaseException as error:
        failed("allreduce", "grouped_allreduce", name, process_set, error)
        raise
    if not tensors:
        return nothing("allreduce", "grouped_allreduce", name, process_set)
    arguments = (None, name, op, prescale_factor, postscale_factor, process_set)
    if plain:
        return synchronize(grouped_allreduce_async(tensors, *arguments))
    reduced = HorovodGroupedAllreduce.apply(*arguments, *compressed)
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts)]


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

    Args:
        tensors: as in grouped_allreduce; they are overwritten.
        average, name, op, prescale_factor, postscale_factor, process_set: as in allreduce.

    Returns:
        The tensors themselves, as a list.

    Raises:
        ValueError, HorovodInternalError: as in allreduce_.
    """
    if tracing():
        return _compile.grouped_allreduce_(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    try:
        if average is not None:
            op = resolve_op(op, average)
        elif op is None:
            op = Average
        tensors = members_of(tensors)
    except BaseException as error:
        failed("allreduce", "grouped_allreduce", name, process_set, error)
        raise
    if not tensors:
        return nothing("allreduce", "grouped_allreduce", name, process_set)
    return synchronize(
        grouped_allreduce_async_(tensors, None, name, op, prescale_factor, postscale_factor, process_set)
    )


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the ranks' tensors along dimension 0, in rank order. Differentiable.

    The gradient is this rank's rows of the average over ranks of the incoming gradient.

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
    if tracing():
        return _compile.allgather(tensor, name, process_set)
    try:
        differentiable = needs_grad((tensor,))
    except BaseException as error:
        failed("allgather", "allgather", name, process_set, error)
        raise
    if differentiable:
        return HorovodAllgather.apply(tensor, name, process_set)
    return synchronize(allgather_async(tensor, name, process_set))


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Gather several tensors as one all-or-nothing operation; each as in allgather. Differentiable.

    Args:
        tensors: each as in allgather, all on one device; dtypes may be mixed.
        name, process_set: as in allreduce.

    Returns:
        The gathered tensors in the order of `tensors`; [] for an empty list.

    Raises:
        ValueError, HorovodInternalError: as in allgather.
    """
    if tracing():
        return _compile.grouped_allgather(tensors, name, process_set)
    try:
        tensors = members_of(tensors)
        differentiable = needs_grad(tensors)
    except BaseException as error:
        failed("allgather", "grouped_allgather", name, process_set, error)
        raise
    if not tensors:
        return nothing("allgather", "grouped_allgather", name, process_set)
    if differentiable:
        return list(HorovodGroupedAllgather.apply(name, process_set, *tensors))
    return synchronize(grouped_allgather_async(tensors, name, process_set))


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Copy the root's tensor to all ranks, into a new tensor. Differentiable.

    The gradient is the average over ranks of the incoming gradient at the root, and zero elsewhere.

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
    if tracing():
        return _compile.broadcast(tensor, root_rank, name, process_set)
    try:
        differentiable = needs_grad((tensor,))
        if not differentiable:
            tensor = dense(tensor)
            output = empty_like(tensor)
    except BaseException as error:
        failed("broadcast", "broadcast", name, process_set, error)
        raise
    if differentiable:
        return HorovodBroadcast.apply(tensor, root_rank, name, process_set)
    broadcast_into(tensor, output, root_rank, name, process_set, True)
    return output


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Copy the root's tensor to all ranks in place. Not differentiable, also where `tensor` requires a gradient.

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
        return _compile.broadcast_(tensor, root_rank, name, process_set)
    broadcast_into(tensor, tensor, root_rank, name, process_set, True)
    return tensor
