"""Horovod for Keras: ``import horovod.keras as hvd``.

For Keras 3 on TensorFlow or PyTorch (environment variable KERAS_BACKEND), and for Keras 2. Loads the framework that Keras
runs on, no other. ``horovod.tensorflow.keras`` is the same for `tf.keras`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

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
from horovod.keras import callbacks, elastic

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
    num_groups: int = 0,
    groups: int | Sequence | None = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer of Keras so that it uses gradients reduced over all ranks.

    Gradients are reduced before anything else is done with them: clipping (`clipnorm`, `global_clipnorm`, `clipvalue`),
    weight decay, moving averages and Keras' own accumulation of gradients see reduced ones, so that a step is that of one
    process with the batches of all. (Of Keras' own forms of distribution, tf.distribute clips before it reduces; JAX's
    and Keras 2's clip after it, as here.) Works in `model.fit`, `train_on_batch`, train steps and loops of one's own,
    compiled or not.

        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
        model.compile(optimizer, "mse")
        model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

    Args:
        optimizer: any Keras optimizer, LossScaleOptimizer included. One that has not been used yet is copied by its
            configuration; one that has state (slot variables, a count of steps) keeps it, and is not to be used by itself
            any more.
        name: accepted for compatibility; not used.
        device_dense, device_sparse: accepted for compatibility; tensors are reduced on the device that they are on.
        compression: what is sent instead of a gradient, such as hvd.Compression.fp16.
        sparse_as_dense: reduce sparse gradients (of embeddings, in TensorFlow) as dense tensors. Otherwise their rows are
            gathered.
        gradient_predivide_factor: f splits the averaging: gradients are divided by f before the sum, and multiplied by
            f / size after it. Only with op=Average.
        op: hvd.Average or hvd.Sum.
        num_groups: deprecated, use `groups`.
        groups: n > 0 reduces gradients in n all-or-nothing groups of about equal length; a list of lists of variables
            says which belong together. None: as suits the way in which the training step runs.
        backward_passes_per_step: gradients of this many calls are summed locally, then reduced and used. In between,
            calls only count as iterations, as far as learning rate schedules go.
        average_aggregated_gradients: divide those sums by the number of passes.
        process_set: the ranks that take part. On other ranks the optimizer works by itself.
        scale_local_gradients: divide the gradients of local variables (register_local_var()) by the number of ranks.

    Returns:
        An optimizer of a class that derives from that of `optimizer` and bears its name, with
        register_local_var(variable) in addition. In saved models it is the class of `optimizer`.

    Raises:
        ValueError: `op` is another one; gradient_predivide_factor without Average; no positive number of passes; bad
            groups; a process set that is not registered; an optimizer that is distributed already. In the first training
            step, on all ranks: the ranks' models or arguments differ.
        TypeError: `optimizer` is none of Keras'.
    """
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
    """A DistributedOptimizer that leaves some layers to each rank: their weights' gradients are not reduced.

    Args:
        local_layers: a layer, or a list of layers; they need not be built yet.
        optimizer and the others: as in DistributedOptimizer.

    Raises:
        ValueError: `local_layers` are no layers. What DistributedOptimizer raises.
    """
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
    """Give all ranks the root's values of the global variables of a TensorFlow 1 graph.

    Raises:
        RuntimeError: there is no such graph, as everywhere but with tf.compat.v1 and Keras 2. Use
            callbacks.BroadcastGlobalVariablesCallback.
    """
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
    """Reduce a value over all ranks.

    Args:
        value: a number, an array, a tensor or a keras.Variable; shape and dtype the same on all ranks.
        name: identifies the operation across ranks; None numbers it.
        average: True or None averages, False sums; instead of `op`.
        prescale_factor, postscale_factor: multiply the value before and after.
        op: hvd.Average, Sum, Min, Max or Product.
        compression: what is sent instead, such as hvd.Compression.fp16.
        process_set: the ranks that take part.

    Returns:
        A tensor of the framework that Keras runs on.

    Raises:
        ValueError: `average` and `op` together. What the framework's own allreduce raises.
    """
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
    """Load a saved model, and make its optimizer a distributed one, with its saved state.

    Args:
        filepath: whatever this Keras loads: a .keras or .h5 file, with Keras 2 also the folder of a SavedModel.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: as in keras.models.load_model.
        compression: as in DistributedOptimizer.
        legacy_opts: look for the optimizer's class in keras.optimizers.legacy (Keras 2).

    Returns:
        The model. Its optimizer, if it has one, is a DistributedOptimizer.
    """
    return _load_model(keras, filepath, custom_optimizers, custom_objects, compression, legacy_opts)
