"""Horovod for JAX: ``import horovod.jax as hvd``. One process for each rank, arrays in host memory.

Operations are functions of arrays and pytrees, inside and outside of compiled programs. An import starts no device.
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
from horovod.jax import elastic as elastic
from horovod.jax import mpi_ops as mpi_ops
from horovod.jax.compression import Compression
from horovod.jax.functions import allgather_object, broadcast_object, broadcast_parameters
from horovod.jax.mpi_ops import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from horovod.jax.optimizer import DistributedGradientTransformation, allreduce_gradients, value_and_grad

__all__ = [
    "Compression",
    "DistributedGradientTransformation",
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_gradients",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "elastic",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "mpi_ops",
    "reducescatter",
    "remove_process_set",
    "value_and_grad",
]
__all__ += ["init", *exports.__all__]


def _check_has_gpu() -> bool:
    import jax

    return any(device.platform == "gpu" for device in jax.local_devices())
