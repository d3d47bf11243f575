"""The functions of ``horovod.keras`` and ``horovod.tensorflow.keras``.

The two modules offer the same for two Keras modules, `keras` and `tf.keras`. The functions here and in `saving`
take the Keras module as their first parameter; bind() makes the public functions of them. bind_module() makes the public
classes of `callbacks` and `elastic`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from types import ModuleType
from typing import Any, Concatenate, ParamSpec, TypeVar

from horovod._keras import callbacks, patches
from horovod._keras.backends import backend_of, keras_package, major_version, optimizer_variables
from horovod._keras.compression import Compression, NoneCompressor
from horovod._keras.gradients import Distributed, DistributedScaler
from horovod._keras.optimizer import distribute
from horovod._keras.options import Options, from_arguments, list_of_layers
from horovod.common.arguments import Average, groups_from, op_from
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "global_process_set",
    "load_model",
    "reducescatter",
    "remove_process_set",
]


# The names of the two modules, beside those of horovod.common.exports and their submodules.


_P = ParamSpec("_P")
_R = TypeVar("_R")


def DistributedOptimizer(
    keras: ModuleType,
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: int | Sequence[Any] | None = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer of Keras so that it uses gradients reduced over all ranks.

    Gradients are reduced before anything else is done with them: clipping (`clipnorm`, `global_clipnorm`, `clipvalue`),
    weight decay, moving averages and Keras' own accumulation of gradients see reduced gradients, so that a step equals
    the step of one process with the batches of all ranks. (Of Keras' own forms of distribution, tf.distribute clips
    before it reduces; JAX and Keras 2 clip after it, as here.) Works in `model.fit`, `train_on_batch`, and in train steps
    and loops of your own, compiled or not.

        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
        model.compile(optimizer, "mse")
        model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

    Args:
        optimizer: any Keras optimizer, LossScaleOptimizer included. An optimizer that has not been used yet is copied by
            its configuration. An optimizer that has state (slot variables, a count of steps) shares it with the result;
            do not use the original any more.
        name: accepted for compatibility; not used.
        device_dense, device_sparse: accepted for compatibility; tensors are reduced on the device that they are on.
        compression: how gradients are compressed before they are sent, such as hvd.Compression.fp16.
        sparse_as_dense: reduce sparse gradients (of embeddings, in TensorFlow) as dense tensors. Otherwise their rows are
            gathered.
        gradient_predivide_factor: f splits the averaging: gradients are divided by f before the sum, and multiplied by
            f / size after it. Only with op=Average.
        op: hvd.Average or hvd.Sum.
        num_groups: deprecated, use `groups`.
        groups: n > 0 reduces gradients in n all-or-nothing groups of about equal length; in a list of lists of variables
            each list is a group. None: chosen by the way in which the training step runs.
        backward_passes_per_step: gradients of this many calls are summed locally, then reduced and applied. For learning
            rate schedules each call counts as an iteration.
        average_aggregated_gradients: divide those sums by the number of passes.
        process_set: the ranks that take part. On other ranks the optimizer reduces nothing.
        scale_local_gradients: divide the gradients of local variables (register_local_var()) by the number of ranks.

    Returns:
        An optimizer of a class that derives from the class of `optimizer` and has its name, with the additional method
        register_local_var(variable). Saved models name the class of `optimizer`.

    Raises:
        ValueError: `op` is neither Average nor Sum; gradient_predivide_factor without Average; a number of passes that is
            not positive; bad `groups`; a process set that is not registered; an optimizer that is distributed already.
            In the first training step, on all ranks: the ranks' models or arguments differ.
        TypeError: `optimizer` is not an optimizer of Keras.
    """
    groups = groups_from(num_groups, groups, stacklevel=4)
    return distribute(keras, optimizer, from_arguments(Options, locals()))


def PartialDistributedOptimizer(
    keras: ModuleType,
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
    groups: int | Sequence[Any] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """A DistributedOptimizer that does not reduce the gradients of some layers' weights: each rank keeps its own.

    Args:
        local_layers: a layer, or a list of layers; they need not be built yet.
        optimizer and the others: as in DistributedOptimizer.

    Raises:
        ValueError: `local_layers` is neither a layer nor a list of layers. The errors of DistributedOptimizer.
    """
    local_layers = list_of_layers(local_layers)
    return distribute(keras, optimizer, from_arguments(Options, locals()))


def allreduce(
    keras: ModuleType,
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
    backend = backend_of(keras)
    with backend.reported("allreduce", name, process_set):
        op = op_from(op, average, deprecated=False)
    return backend.allreduce(value, name, op, prescale_factor, postscale_factor, compression, process_set)


def allgather(
    keras: ModuleType, value: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The ranks' values, one after the other along dimension 0, in which they may differ; see allreduce."""
    return backend_of(keras).allgather(value, name, process_set)


def broadcast(
    keras: ModuleType,
    value: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The value of the rank `root_rank`, counted over all ranks; see allreduce."""
    return backend_of(keras).broadcast(value, root_rank, name, process_set)


def reducescatter(
    keras: ModuleType,
    value: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """This rank's share of the rows of the value reduced over all ranks, by hvd.Average or hvd.Sum; see allreduce."""
    return backend_of(keras).reducescatter(value, name, op, process_set)


def broadcast_global_variables(
    keras: ModuleType, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Assign the root's values to the global variables of a TensorFlow 1 graph, on all ranks of the set.

    Raises:
        RuntimeError: there is no such graph: it exists only with tf.compat.v1 and Keras 2. Use
            callbacks.BroadcastGlobalVariablesCallback.
    """
    backend = backend_of(keras)
    if not backend.has_global_variables():
        raise RuntimeError(
            "hvd.broadcast_global_variables() needs the collection of variables of a TensorFlow 1 graph, which does not "
            "exist when executing eagerly. Use hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank)."
        )
    backend.broadcast_global_variables(root_rank, process_set)


def bind(
    function: Callable[Concatenate[ModuleType, _P], _R], keras: ModuleType, module: str
) -> Callable[_P, _R]:
    """`function` without its first parameter, for which it gets `keras`. `module`: the public module that has it."""
    keras = keras_package(keras)

    @wraps(function)
    def bound(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return function(keras, *args, **kwargs)

    signature = inspect.signature(function)
    own = {
        "__module__": module,
        "__annotations__": {k: v for k, v in function.__annotations__.items() if k != "keras"},
        "__signature__": signature.replace(parameters=list(signature.parameters.values())[1:]),
    }
    vars(bound).pop("__wrapped__")  # its signature has the parameter `keras`
    for name, value in own.items():
        setattr(bound, name, value)
    return bound


def bind_module(module: ModuleType, keras: ModuleType, public: str) -> dict[str, Any]:
    """The names of ``module.__all__``, where classes of the module get `keras`, and callbacks its classes as bases.

    Args:
        module: `callbacks` or `elastic`.
        public: the name of the public module that has them.
    """
    keras = keras_package(keras)
    names = {name: getattr(module, name) for name in module.__all__}
    for name, value in names.items():
        if isinstance(value, type) and value.__module__ == module.__name__:
            bases: tuple[type, ...] = (value,)
            for kind in (callbacks.ModelCheckpoint, callbacks.Callback):
                if issubclass(value, kind):
                    bases = value, getattr(keras.callbacks, kind.__name__)
                    break
            own = {"__module__": public, "__doc__": value.__doc__, "_hvd_keras": keras}
            names[name] = type(value)(name, bases, own)
    return names


def init_for(keras: ModuleType, init: Callable[_P, _R]) -> Callable[_P, _R]:
    """`init` (hvd.init), after which programs may call this Keras in older ways."""

    @wraps(init)
    def init_and_patch(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        patches.accept_older_calls(keras_package(keras))
        return init(*args, **kwargs)

    return init_and_patch


# load_model: loads a saved model and makes its optimizer a distributed one.


def load_model(
    keras: ModuleType,
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = NoneCompressor,
    legacy_opts: bool = False,
) -> Any:
    """Load a saved model, and make its optimizer a distributed one, with its saved state.

    Args:
        filepath: anything that this Keras loads: a .keras or .h5 file, with Keras 2 also the folder of a SavedModel.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: as in keras.models.load_model.
        compression: as in DistributedOptimizer.
        legacy_opts: look for the optimizer's class in keras.optimizers.legacy (Keras 2).

    Returns:
        The model. Its optimizer, if it has one, is a DistributedOptimizer.
    """
    model, optimizer = _loaded(keras, filepath, custom_optimizers, custom_objects, legacy_opts)
    if optimizer is not None:
        model.optimizer = distribute(keras, optimizer, Options(compression=compression))
    return model


def load_and_wrap(
    keras: ModuleType,
    wrap_optimizer: Callable[[type], Callable[..., Any]],
    optimizer_modules: Any,
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: Mapping[str, Any] | None,
) -> Any:
    """``horovod._keras.load_model``: a saved model whose optimizer is made by the caller's function.

    Args:
        wrap_optimizer: from an optimizer's class, a function that makes the new optimizer from its configuration as
            keyword arguments. The new optimizer gets the saved state.
        optimizer_modules: accepted for compatibility; Keras knows its optimizers.
        filepath, custom_optimizers, custom_objects: as in load_model().
    """
    keras = keras_package(keras)
    model, optimizer = _loaded(keras, filepath, custom_optimizers, custom_objects)
    if optimizer is not None:
        model.optimizer = wrap_optimizer(type(optimizer))(**optimizer.get_config())
        model.optimizer.build(model.trainable_variables)
        for variable, saved in zip(optimizer_variables(model.optimizer), optimizer_variables(optimizer)):
            variable.assign(saved)
    return model


def _loaded(
    keras: ModuleType, filepath: Any, custom_optimizers: Any, custom_objects: Any, legacy: bool = False
) -> tuple[Any, Any]:
    """(the model, its optimizer). The optimizer is None if there is no optimizer, or if it is distributed already."""
    # Files of Horovod 0.28 name classes of `horovod._keras`, which Keras finds among the custom objects.
    known = {cls.__name__: cls for cls in _optimizer_classes(keras, legacy)}
    known |= {cls.__name__: cls for cls in custom_optimizers or ()}
    known |= dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or isinstance(optimizer, (Distributed, DistributedScaler)):
        return model, None
    if _lacks_its_variables(keras, model, optimizer):
        optimizer = _from_h5(optimizer, model, filepath)
    return model, optimizer


def _optimizer_classes(keras: ModuleType, legacy: bool) -> list[type]:
    module = keras.optimizers
    if legacy and major_version(keras) < 3:
        module = getattr(module, "legacy", module)
    base = module.Optimizer
    found = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)]
    found = [cls for cls in found if cls is not base and cls.__name__ != "LossScaleOptimizer"]
    if major_version(keras) < 3:
        # They have no public names, so files of distributed ones name `horovod._keras`.
        found += keras.mixed_precision.LossScaleOptimizer.__subclasses__()
    return found


def _lacks_its_variables(keras: ModuleType, model: Any, optimizer: Any) -> bool:
    """Whether Keras 3 has built the optimizer without variables, as it does for .h5 files (seen in 3.15). It would refuse
    to train the model."""
    if major_version(keras) < 3 or not optimizer.built:
        return False
    return not getattr(optimizer, "_trainable_variables", True) and bool(model.trainable_variables)


def _from_h5(optimizer: Any, model: Any, filepath: Any) -> Any:
    """A new optimizer of the same configuration, with the state that is in the file, if that state fits."""
    result = type(optimizer).from_config(optimizer.get_config())
    result.build(model.trainable_variables)
    try:
        import h5py
        from keras.src.legacy.saving.legacy_h5_format import load_optimizer_weights_from_hdf5_group

        with h5py.File(filepath, "r") as file:
            values = [value[()] for value in load_optimizer_weights_from_hdf5_group(file)]
    except (ImportError, KeyError, OSError):
        return result
    variables = list(result.variables)
    if [tuple(v.shape) for v in variables] == [value.shape for value in values]:
        for variable, value in zip(variables, values):
            variable.assign(value)
    return result
