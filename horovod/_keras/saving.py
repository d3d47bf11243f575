"""load_model: a saved model whose optimizer is distributed again."""

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from horovod._keras.backends import major_version, the_keras
from horovod._keras.compression import NoneCompressor
from horovod._keras.distributed import Distributed, DistributedScaler
from horovod._keras.optimizer import create_distributed_optimizer


def load_model(
    keras: ModuleType,
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = NoneCompressor,
    legacy_opts: bool = False,
) -> Any:
    """See horovod.keras.load_model.

    The model is loaded as Keras does it, its optimizer's state included, and the optimizer then wrapped with that state.
    Classes are offered by name for files that name `horovod._keras`, as those of Horovod 0.28 do.
    """
    keras = the_keras(keras)
    offered = {cls.__name__: cls for cls in _optimizer_classes(keras, legacy_opts)}
    offered |= {cls.__name__: cls for cls in custom_optimizers or ()}
    offered |= dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=offered)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or isinstance(optimizer, (Distributed, DistributedScaler)):
        return model
    model.optimizer = create_distributed_optimizer(keras, optimizer, name=None, compression=compression)
    return model


def _optimizer_classes(keras: ModuleType, legacy: bool) -> list[type]:
    module = keras.optimizers
    if legacy and major_version(keras) < 3:
        module = getattr(module, "legacy", module)
    base = module.Optimizer
    found = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)]
    return [cls for cls in found if cls is not base and cls.__name__ != "LossScaleOptimizer"]
