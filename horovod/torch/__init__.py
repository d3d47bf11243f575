"""Horovod for PyTorch: ``import horovod.torch as hvd``.

Importing prints nothing, and does not fail where the engine cannot be loaded: then ``_MPI_LIB_AVAILABLE`` is False and
the functions raise ImportError with the reason.
"""

import typing as _typing
from importlib import import_module as _import_module

import torch as _torch

from horovod.common import exports
from horovod.common.basics import UNAVAILABLE as _UNAVAILABLE
from horovod.common.exceptions import HorovodInternalError
from horovod.common.exports import *  # noqa: F403
from horovod.common.exports import init as init
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.torch import mpi_ops
from horovod.torch._devices import register_stream_provider
from horovod.torch.compression import Compression
from horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horovod.torch.mpi_ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm

_MPI_LIB_AVAILABLE = _UNAVAILABLE is None

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "ProcessSet",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
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
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "mpi_ops",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "register_stream_provider",
    "remove_process_set",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += ["elastic"]
__all__ += ["init", *exports.__all__]


def _check_has_gpu() -> bool:
    return _torch.cuda.is_available()


if _typing.TYPE_CHECKING:
    # Not as a function, by which every misspelt name would have a type.
    from horovod.torch import elastic as elastic
else:

    def __getattr__(name: str) -> _typing.Any:
        if name == "elastic":  # which imports this module
            return _import_module("horovod.torch.elastic")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
