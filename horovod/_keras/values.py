"""Operations on single values, and on all variables of a model: what programs call between training steps.

Values may be Python numbers, NumPy arrays, tensors of the backend or keras.Variables; results are tensors of the backend.
Any thread.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from horovod._keras.backends import backend_of, the_keras
from horovod._keras.compression import NoneCompressor
from horovod._keras.options import Average, Sum
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
    """See horovod.keras.allreduce."""
    if average is not None and op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op is None:
        op = Average if average is None or average else Sum
    return backend_of(the_keras(keras)).allreduce(
        value, name, op, prescale_factor, postscale_factor, compression, process_set
    )


def allgather(
    keras: ModuleType, value: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """See horovod.keras.allgather."""
    return backend_of(the_keras(keras)).allgather(value, name, process_set)


def broadcast(
    keras: ModuleType,
    value: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See horovod.keras.broadcast."""
    return backend_of(the_keras(keras)).broadcast(value, root_rank, name, process_set)


def reducescatter(
    keras: ModuleType,
    value: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """See horovod.keras.reducescatter."""
    return backend_of(the_keras(keras)).reducescatter(value, name, op, process_set)


def broadcast_global_variables(keras: ModuleType, root_rank: int) -> None:
    """See horovod.keras.broadcast_global_variables."""
    backend = backend_of(the_keras(keras))
    if not backend.has_global_variables():
        raise RuntimeError(
            "hvd.broadcast_global_variables() needs the collection of variables of a TensorFlow 1 graph, which does not "
            "exist when executing eagerly. Use hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank)."
        )
    backend.broadcast_global_variables(root_rank)


def broadcast_model(keras: ModuleType, model: Any, root_rank: int, local_variables: Sequence = ()) -> None:
    """Give the weights of a model and the variables of its optimizer the root's values, on all ranks.

    States of random generators and of metrics stay what they are. `local_variables` too.

    Raises:
        ValueError: the model is not built. What a broadcast raises: the ranks' models differ, or one is gone.
    """
    keras = the_keras(keras)
    backend = backend_of(keras)
    if not getattr(model, "built", True):
        raise ValueError(
            f"The model {getattr(model, 'name', '')!r} has no weights to be broadcast, as it is not built. Call it on "
            "some data, or model.build(input_shape), before."
        )
    local = {id(backend.identity(v)) for v in local_variables}
    weights = [v for v in model.weights if id(backend.identity(v)) not in local]
    backend.broadcast_variables(weights, root_rank, "keras.broadcast.model")
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        backend.broadcast_variables(optimizer_variables(optimizer), root_rank, "keras.broadcast.optimizer")


def optimizer_variables(optimizer: Any) -> list:
    """The variables of an optimizer of any Keras: `variables` is a method of some and a list of others."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)
