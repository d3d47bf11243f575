"""load_model: loads a saved model and makes its optimizer a distributed one."""

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from horovod._keras.backends import keras_package, major_version, optimizer_variables
from horovod._keras.compression import NoneCompressor
from horovod._keras.distributed import Distributed, DistributedScaler
from horovod._keras.optimizer import distribute
from horovod._keras.options import Options


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
    keras = keras_package(keras)
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
