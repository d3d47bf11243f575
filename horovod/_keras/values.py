"""Operations on single values, and on all variables of a model, for the time between training steps.

Values may be Python numbers, NumPy arrays, tensors of the backend or keras.Variables; results are tensors of the backend.
`front_end` makes the public functions from these. Any thread.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from horovod._keras.backends import Backend, backend_of, keras_package
from horovod._keras.compression import NoneCompressor
from horovod.common.arguments import Average, op_from
from horovod.common.objects import Entry, require_same
from horovod.common.process_sets import ProcessSet, global_process_set


def allreduce(
    keras: ModuleType,
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = NoneCompressor,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce a value over all ranks.

        accuracy = hvd.allreduce(accuracy)  # the mean of all ranks

    Args:
        value: a number, an array, a tensor or a keras.Variable; shape and dtype the same on all ranks.
        name: identifies the operation across ranks; None numbers it.
        average: True or None averages, False sums; instead of `op`.
        prescale_factor, postscale_factor: multiply the value before and after the reduction.
        op: hvd.Average, Sum, Min, Max or Product.
        compression: how the value is compressed before it is sent, such as hvd.Compression.fp16.
        process_set: the ranks that take part.

    Returns:
        The reduced value, a tensor of the framework that Keras runs on.

    Raises:
        ValueError: `average` and `op` are both given. The errors of the framework's own allreduce.
    """
    backend = backend_of(keras_package(keras))
    with backend.reported("allreduce", name, process_set):
        op = op_from(op, average, deprecated=False)
    return backend.allreduce(value, name, op, prescale_factor, postscale_factor, compression, process_set)


def allgather(
    keras: ModuleType, value: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The ranks' values, one after the other along dimension 0, in which they may differ; see allreduce."""
    return backend_of(keras_package(keras)).allgather(value, name, process_set)


def broadcast(
    keras: ModuleType,
    value: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The value of the rank `root_rank`, counted over all ranks; see allreduce."""
    return backend_of(keras_package(keras)).broadcast(value, root_rank, name, process_set)


def reducescatter(
    keras: ModuleType,
    value: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """This rank's share of the rows of the value reduced over all ranks, by hvd.Average or hvd.Sum; see allreduce."""
    return backend_of(keras_package(keras)).reducescatter(value, name, op, process_set)


def broadcast_global_variables(
    keras: ModuleType, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Assign the root's values to the global variables of a TensorFlow 1 graph, on all ranks of the set.

    Raises:
        RuntimeError: there is no such graph: it exists only with tf.compat.v1 and Keras 2. Use
            callbacks.BroadcastGlobalVariablesCallback.
    """
    backend = backend_of(keras_package(keras))
    if not backend.has_global_variables():
        raise RuntimeError(
            "hvd.broadcast_global_variables() needs the collection of variables of a TensorFlow 1 graph, which does not "
            "exist when executing eagerly. Use hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank)."
        )
    backend.broadcast_global_variables(root_rank, process_set)


def broadcast_model(
    keras: ModuleType,
    model: Any,
    root_rank: int,
    local_variables: Sequence[Any] = (),
    process_set: ProcessSet = global_process_set,
) -> None:
    """Assign the root's values to the weights of a model and the variables of its optimizer, on all ranks of the set.

    The states of random generators and of metrics are not broadcast, nor are `local_variables`.

    Raises:
        ValueError: the model is not built. OperationFailedError: the ranks' models or optimizers differ; nothing has been
            sent then. The errors of a broadcast: a rank is gone.
    """
    keras = keras_package(keras)
    backend = backend_of(keras)
    if not getattr(model, "built", True):
        raise ValueError(
            f"The model {getattr(model, 'name', '')!r} has no weights to be broadcast, as it is not built. Call it on "
            "some data, or model.build(input_shape), before."
        )
    backend.sync_model(model)
    local = {id(backend.identity(v)) for v in local_variables}
    weights = [v for v in model.weights if id(backend.identity(v)) not in local]
    optimizer = getattr(model, "optimizer", None)
    of_optimizer = [] if optimizer is None else optimizer_variables(optimizer)
    entries = entries_of(backend, "weight", weights) + entries_of(backend, "optimizer variable", of_optimizer)
    require_same("The broadcast of the model", entries, "keras.broadcast", process_set)
    backend.broadcast_variables(weights, root_rank, "keras.broadcast.model", process_set)
    if of_optimizer:
        backend.broadcast_variables(of_optimizer, root_rank, "keras.broadcast.optimizer", process_set)


def entries_of(backend: Backend, kind: str, variables: Sequence[Any]) -> list[Entry]:
    """Variables for require_same(). They are known by their places: Keras counts the names of layers."""
    described = [backend.description_of(variable) for variable in variables]
    return [(f"{kind} {i}", tuple(shape), dtype) for i, (_, shape, dtype) in enumerate(described)]


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The variables of an optimizer of any Keras: `variables` is a method of some optimizers and a list of others."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)
