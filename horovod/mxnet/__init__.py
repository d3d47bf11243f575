"""Horovod for MXNet 1.9.1: ``import horovod.mxnet as hvd``, before ``import mxnet``.

Arrays are in host memory. NumPy's version is below 2; importing this module puts names back that MXNet needs of NumPy.
"""

from horovod.common import exports
from horovod.common.exceptions import HorovodInternalError
from horovod.common.exports import *  # noqa: F403
from horovod.common.exports import init as init
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.mxnet import _arrays  # first, as it imports MXNet
from horovod.mxnet import mpi_ops as mpi_ops
from horovod.mxnet.compression import Compression
from horovod.mxnet.functions import allgather_object, broadcast_object, broadcast_parameters
from horovod.mxnet.mpi_ops import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)
from horovod.mxnet.optimizer import DistributedOptimizer, DistributedTrainer

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "mpi_ops",
    "reducescatter",
    "remove_process_set",
]
__all__ += ["init", *exports.__all__]


def _check_has_gpu() -> bool:
    return bool(_arrays.mx.context.num_gpus() > 0)
