"""The NumPy API: Horovod's operations on NumPy arrays and on anything in host memory that speaks DLPack.

Results are NumPy arrays. Handles are ints, as in Horovod: ``synchronize(handle)`` waits, returns the result, and forgets
the handle. Errors: ValueError for arguments that make no sense (and before ``init()``), HorovodInternalError when ranks
disagree or the job ends. ``process_set``: the ranks that take part, None for all; only its members may call. Any thread
may call. It is also the smallest front end, and an example of one: docs/write-a-front-end.md.
"""

from hvd_core._frontend.reductions import Adasum, Average, Max, Min, Product, Sum
from hvd_core.numpy_face._handles import barrier, join, poll, synchronize
from hvd_core.numpy_face._memory import empty
from hvd_core.numpy_face._messages import recv, recv_async, send, send_async
from hvd_core.numpy_face._move import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_alltoall,
    grouped_alltoall_async,
    grouped_broadcast_,
    grouped_broadcast_async_,
)
from hvd_core.numpy_face._reduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)

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
