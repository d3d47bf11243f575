"""Horovod for PyTorch: ``import horovod.torch as hvd``.

Importing prints nothing, and does not fail where the engine cannot be loaded: then ``_MPI_LIB_AVAILABLE`` is False and
the functions raise ImportError with the reason.
"""

import typing as _typing
from importlib import import_module as _import_module

import torch as _torch

from horovod.common.basics import UNAVAILABLE as _UNAVAILABLE
from horovod.common.exports import *  # noqa: F403
from horovod.torch import mpi_ops
from horovod.torch._devices import register_stream_provider
from horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horovod.torch.mpi_ops import *  # noqa: F403
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm

_MPI_LIB_AVAILABLE = _UNAVAILABLE is None

__all__ = [
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "mpi_ops",
    "register_stream_provider",
]
__all__ += mpi_ops._PACKAGE


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
