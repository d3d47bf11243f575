"""Horovod for `tf.keras`, Keras 2 or Keras 3: ``import horovod.tensorflow.keras as hvd``.

The same as ``horovod.keras`` for the Keras that TensorFlow has, where the functions are documented at length.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorflow import keras

from horovod import _keras as _impl
from horovod._keras import keras_patches as _patches
from horovod._keras.basics import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    backend_report,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from horovod._keras.compression import Compression
from horovod._keras.partial import listed_layers as _listed_layers
from horovod._keras.saving import load_model as _load_model
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.tensorflow.keras import callbacks, elastic

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "backend_report",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

_patches.tolerate_run_tf_function(keras)
_patches.let_variables_be_called(keras)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer of Keras so that it uses gradients reduced over all ranks. As in horovod.keras."""
    return _impl.create_distributed_optimizer(
        keras,
        optimizer,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int | Sequence | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """A DistributedOptimizer that leaves a layer or a list of layers to each rank. As in horovod.keras."""
    return _impl.create_distributed_optimizer(
        keras,
        optimizer,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        local_layers=_listed_layers(keras, local_layers),
    )


def broadcast_global_variables(root_rank: int) -> None:
    """Give all ranks the root's values of the global variables of a TensorFlow 1 graph. RuntimeError without one."""
    _impl.broadcast_global_variables(keras, root_rank)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce a value over all ranks to a tensor. As horovod.keras.allreduce."""
    return _impl.allreduce(
        keras, value, name, average, prescale_factor, postscale_factor, op, compression, process_set
    )


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The ranks' values, one after the other along dimension 0, in which they may differ; see allreduce."""
    return _impl.allgather(keras, value, name, process_set)


def broadcast(
    value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The value of the rank `root_rank`, counted over all ranks; see allreduce."""
    return _impl.broadcast(keras, value, root_rank, name, process_set)


def reducescatter(
    value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """This rank's share of the rows of the value reduced over all ranks, by hvd.Average or hvd.Sum; see allreduce."""
    return _impl.reducescatter(keras, value, name, op, process_set)


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a saved model, and make its optimizer a distributed one, with its saved state. As horovod.keras.load_model."""
    return _load_model(keras, filepath, custom_optimizers, custom_objects, compression, legacy_opts)
