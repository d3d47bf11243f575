"""The operations of ``horovod.torch`` (the module's name is what programs import; no MPI is involved).

Here are the synchronous forms; the asynchronous ones and the autograd Functions are made in the modules
beside this one and re-exported. Any thread that holds the GIL; it is released while waiting.
"""

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch._async_ops import (
    allgather_async,
    allreduce_async,
    allreduce_async_,
    broadcast_async,
    broadcast_async_,
    broadcast_into,
    empty_like,
    grouped_allgather_async,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    reduce_into,
    sparse_allreduce_async,
)
from horovod.torch._autograd import (
    HorovodAllgather,
    HorovodAllreduce,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    HorovodGroupedAllreduce,
)
from horovod.torch._submit import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    _basics,
    _handle_map,
    engine,
    poll,
    resolve_op,
    synchronize,
)
from horovod.torch.compression import Compression, Compressor

__all__ = [
    "Adasum",
    "Average",
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
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
    "backend_report",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

is_initialized = _basics.is_initialized
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
size = _basics.size
local_size = _basics.local_size
cross_size = _basics.cross_size
rank = _basics.rank
local_rank = _basics.local_rank
cross_rank = _basics.cross_rank
is_homogeneous = _basics.is_homogeneous
backend_report = _basics.backend_report
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built


def init(comm: Any = None, process_sets: Any = None, backend: str | None = None) -> None:
    """Start Horovod; arguments and errors as HorovodBasics.init. A second call changes nothing."""
    if not _basics.is_initialized():
        _handle_map.clear()  # handles of an engine that another framework's shutdown() has ended
    _basics.init(comm, process_sets, backend)


def shutdown() -> None:
    """Stop Horovod. Pending operations fail on all ranks; init() may be called again afterwards."""
    _basics.shutdown()
    _handle_map.clear()


def handle_average_backwards_compatibility(op: int | None, average: Any) -> int:
    """The reduce op meant by the arguments `op` and `average` together. ValueError if both are given."""
    return resolve_op(op, average)


def _needs_grad(tensors: Sequence[torch.Tensor]) -> bool:
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

    Args:
        tensor: any shape, contiguous, on the CPU or a device that is served; uint8, int8, int16, int32, int64,
            float16, bfloat16, float32 or float64. Shape and dtype must be the same on all ranks.
        average: deprecated, use `op`.
        name: identifies the operation across ranks; None numbers it in the order of submission.
        compression: what is sent instead of a floating point tensor, such as hvd.Compression.fp16.
        op: hvd.Average (default), Sum, Min, Max or Product. Averages of integers truncate toward zero.
        prescale_factor: multiplies `tensor` before the reduction.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.

    Returns:
        A tensor of the shape and dtype of `tensor`, the same on all ranks.

    Raises:
        ValueError: Horovod is not initialized, unsupported or non-contiguous tensor, `op` together with
            `average`, or an operation of this name is still in flight.
        HorovodInternalError: ranks disagree about shape, dtype, op or factors, or a rank is gone.
    """
    op = Average if op is None and average is None else resolve_op(op, average)
    if compression is Compression.none and not _needs_grad((tensor,)):
        output = empty_like(tensor)
        reduce_into(tensor, output, name, op, prescale_factor, postscale_factor, process_set, True)
        return output
    compressed, context = compression.compress(tensor)
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
    """Reduce a tensor over all ranks in place and return it. Not differentiable; otherwise as allreduce."""
    op = Average if op is None and average is None else resolve_op(op, average)
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
        tensors: each as in allreduce; number, shapes and dtypes must agree across ranks. Empty: [] is
            returned.
        average, name, compression, op, prescale_factor, postscale_factor, process_set: as in allreduce.

    Returns:
        The reduced tensors in the order of `tensors`.

    Raises:
        ValueError, HorovodInternalError: as in allreduce.
    """
    op = Average if op is None and average is None else resolve_op(op, average)
    if not len(tensors):
        return []
    arguments = (None, name, op, prescale_factor, postscale_factor, process_set)
    if compression is Compression.none and not _needs_grad(tensors):
        return synchronize(grouped_allreduce_async(tensors, *arguments))
    compressed, contexts = zip(*[compression.compress(tensor) for tensor in tensors])
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
    """Reduce several tensors as one all-or-nothing operation, in place. Otherwise as grouped_allreduce."""
    op = Average if op is None and average is None else resolve_op(op, average)
    if not len(tensors):
        return []
    return synchronize(
        grouped_allreduce_async_(tensors, None, name, op, prescale_factor, postscale_factor, process_set)
    )


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the ranks' tensors along dimension 0, in rank order. Differentiable.

    The gradient is this rank's rows of the average over ranks of the incoming gradient.

    Args:
        tensor: one dimension or more, contiguous, on the CPU or a device that is served; a type of allreduce, or bool
            or uint16. Dimension 0 may differ between ranks and may be 0; the other dimensions and the dtype must agree.
        name, process_set: as in allreduce.

    Returns:
        A tensor whose dimension 0 is the sum of the ranks' ones, the same on all ranks.

    Raises:
        ValueError, HorovodInternalError: as in allreduce; a 0-dim tensor is a HorovodInternalError.
    """
    if _needs_grad((tensor,)):
        return HorovodAllgather.apply(tensor, name, process_set)
    return synchronize(allgather_async(tensor, name, process_set))


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Gather several tensors as one all-or-nothing operation; each as in allgather. Differentiable.

    Returns:
        The gathered tensors in the order of `tensors`; [] for an empty list.

    Raises:
        ValueError, HorovodInternalError: as in allgather.
    """
    if not len(tensors):
        return []
    if _needs_grad(tensors):
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
        tensor: any shape, contiguous, on the CPU or a device that is served; a type of allgather. Shape and dtype
            must agree across ranks.
        root_rank: the GLOBAL rank whose values are sent, also within a process set.
        name, process_set: as in allreduce.

    Returns:
        A tensor of the shape and dtype of `tensor` with the root's values.

    Raises:
        ValueError: as in allreduce, and for a root that is not in the process set.
        HorovodInternalError: as in allreduce, and when ranks name different roots.
    """
    if _needs_grad((tensor,)):
        return HorovodBroadcast.apply(tensor, root_rank, name, process_set)
    output = empty_like(tensor)
    broadcast_into(tensor, output, root_rank, name, process_set, True)
    return output


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Copy the root's tensor to all ranks in place and return it. Not differentiable."""
    broadcast_into(tensor, tensor, root_rank, name, process_set, True)
    return tensor


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and wait until all ranks have said so.

    Meanwhile this rank takes part in the allreduces of the others with neutral data.

    Args:
        device: accepted for compatibility; not used.

    Returns:
        The rank that joined last.

    Raises:
        ValueError: Horovod is not initialized. HorovodInternalError: a rank is gone.
    """
    core = engine()
    handle = core.join()
    try:
        core.wait(handle)
        return int(core.last_joined(handle))
    finally:
        core.release(handle)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the process set have called barrier().

    Raises:
        ValueError: Horovod is not initialized, or the set is not registered.
        HorovodInternalError: a rank is gone.
    """
    core = engine()
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} does not exist, or has not been registered.")
    core.barrier(process_set.process_set_id, True)
