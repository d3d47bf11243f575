"""The synchronous operations whose result differs from rank to rank: alltoall and reducescatter. As in `_sync_ops`."""

from collections.abc import Sequence
from typing import overload

import torch

from horovod.common.arguments import Average
from horovod.common.failed_calls import failed
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import _compile
from horovod.torch._async_scatter import (
    Splits,
    alltoall_async,
    grouped_reducescatter_async,
    reducescatter_async,
)
from horovod.torch._autograd import HorovodAlltoall, HorovodGroupedReducescatter, HorovodReducescatter
from horovod.torch._compile import tracing
from horovod.torch._submit import compress_all, members_of, nothing, synchronize
from horovod.torch._sync_ops import needs_grad
from horovod.torch.compression import Compression, Compressor


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
    if tracing():
        return _compile.alltoall(tensor, splits, name, process_set)
    try:
        differentiable = needs_grad((tensor,))
    except BaseException as error:
        failed("alltoall", "alltoall", name, process_set, error)
        raise
    if differentiable:
        return HorovodAlltoall.apply(tensor, splits, name, process_set)
    output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, received)


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
    if tracing():
        return _compile.reducescatter(
            tensor, name, compression, op, process_set, prescale_factor, postscale_factor
        )
    arguments = (name, op, process_set, prescale_factor, postscale_factor)
    try:
        plain = compression is Compression.none and not needs_grad((tensor,))
        if not plain:
            ((compressed, context),) = compress_all(compression, [tensor])
    except BaseException as error:
        failed("reducescatter", "reducescatter", name, process_set, error)
        raise
    if plain:
        return synchronize(reducescatter_async(tensor, *arguments))
    return compression.decompress(HorovodReducescatter.apply(compressed, *arguments), context)


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

    Args:
        tensors: each as in reducescatter, all on one device; number, shapes and dtypes must agree across ranks. Empty:
            [] is returned.
        name, compression, op, process_set, prescale_factor, postscale_factor: as in reducescatter.

    Returns:
        This rank's rows of each result, in the order of `tensors`.

    Raises:
        ValueError, HorovodInternalError: as in reducescatter.
    """
    if tracing():
        return _compile.grouped_reducescatter(
            tensors, name, compression, op, process_set, prescale_factor, postscale_factor
        )
    try:
        tensors = members_of(tensors)
        plain = compression is Compression.none and not needs_grad(tensors)
        if tensors and not plain:
            compressed, contexts = zip(*compress_all(compression, tensors))
    except BaseException as error:
        failed("reducescatter", "grouped_reducescatter", name, process_set, error)
        raise
    if not tensors:
        return nothing("reducescatter", "grouped_reducescatter", name, process_set)
    arguments = (name, op, process_set, prescale_factor, postscale_factor)
    if plain:
        return synchronize(grouped_reducescatter_async(tensors, *arguments))
    reduced = HorovodGroupedReducescatter.apply(*arguments, *compressed)
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts)]
