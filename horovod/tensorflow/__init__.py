"""Horovod for TensorFlow: ``import horovod.tensorflow as hvd``."""

from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.mpi_ops import *  # noqa: F403

__all__ = [
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "mpi_ops",
    "remove_process_set",
    *mpi_ops.__all__,
]
