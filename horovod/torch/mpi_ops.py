"""The operations of ``horovod.torch``, under the name that programs import. No MPI is involved.

Here are join and barrier; the operations on tensors are defined in the modules beside this one and re-exported.
Any thread that holds the GIL; it is released while waiting.
"""

from typing import Any

from horovod.common import exports
from horovod.common.arguments import op_from
from horovod.common.exceptions import HorovodInternalError
from horovod.common.exports import *  # noqa: F403
from horovod.common.exports import _basics  # noqa: F401 (programs import it)
from horovod.common.failed_calls import failed
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.common.util import gpu_available, num_rank_is_power_2
from horovod.torch._async_gather import allgather_async, grouped_allgather_async
from horovod.torch._async_ops import (
    allreduce_async,
    allreduce_async_,
    broadcast_async,
    broadcast_async_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from horovod.torch._async_scatter import (
    alltoall_async,
    grouped_reducescatter_async,
    reducescatter_async,
)
from horovod.torch._autograd import (
    HorovodAllgather,
    HorovodAllreduce,
    HorovodAlltoall,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    HorovodGroupedAllreduce,
    HorovodGroupedReducescatter,
    HorovodReducescatter,
)
from horovod.torch._sparse import sparse_allreduce_async
from horovod.torch._submit import _handle_map, engine, poll, synchronize  # noqa: F401 (programs import these)
from horovod.torch._sync_ops import (
    allgather,
    allreduce,
    allreduce_,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
)
from horovod.torch._sync_scatter import alltoall, grouped_reducescatter, reducescatter
from horovod.torch.compression import Compression
from hvd_core._frontend import job_operations
from hvd_core._runtime.process_sets import number_of

__all__ = [
    "Compression",
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodInternalError",
    "HorovodReducescatter",
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
    "gpu_available",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "handle_average_backwards_compatibility",
    "join",
    "num_rank_is_power_2",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += exports.__all__

for _function in (
    *(HorovodAllgather, HorovodAllreduce, HorovodAlltoall, HorovodBroadcast, HorovodReducescatter),
    *(HorovodGroupedAllgather, HorovodGroupedAllreduce, HorovodGroupedReducescatter),
):
    _function.__module__ = __name__  # where users know it


def handle_average_backwards_compatibility(op: int | None, average: Any) -> int:
    """The reduce op meant by the arguments `op` and `average` together. ValueError if both are given."""
    return op_from(op, average)


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and wait until all ranks have said so.

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
    return job_operations.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of a process set have called barrier().

    Args:
        process_set: the ranks that wait for each other.

    Raises:
        ValueError: Horovod is not initialized, or the set is not registered.
        HorovodInternalError: a rank is gone.
    """
    try:
        number = number_of(process_set)
    except BaseException as error:
        failed("barrier", "barrier", None, process_set, error)
        raise
    job_operations.barrier(number)
