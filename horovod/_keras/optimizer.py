"""Makes a distributed optimizer from an optimizer of Keras.

It is an instance of a class that derives from the optimizer's class and has its name. The additional methods of the
class depend on the version of Keras: ``keras3_optimizer``, ``keras2_optimizer``.
"""

import logging
from dataclasses import fields
from types import ModuleType
from typing import Any

from horovod._keras import patches
from horovod._keras.backends import backend_of, keras_package, major_version, version
from horovod._keras.gradients import Distributed, DistributedScaler
from horovod._keras.options import Options

_FRAMEWORKS = frozenset(("keras", "tf_keras", "tensorflow", "torch", "jax"))
_log = logging.getLogger("horovod")


def create_distributed_optimizer(keras: ModuleType, optimizer: Any, **arguments: Any) -> Any:
    """distribute() with these Options."""
    return distribute(keras, optimizer, Options(**arguments))


def distribute(keras: ModuleType, optimizer: Any, options: Options) -> Any:
    """A distributed optimizer made from `optimizer`, which shares its state if it has been used already (it has slot
    variables, or has counted steps). Otherwise it is made from the configuration, and gets the attributes that the
    program has set on the original.

    Raises:
        ValueError: an optimizer that is distributed already. TypeError: not an optimizer of this Keras.
    """
    keras = keras_package(keras)
    patches.accept_older_calls(keras)
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, (Distributed, DistributedScaler)) or isinstance(
        getattr(optimizer, "inner_optimizer", None), Distributed
    ):
        raise ValueError(
            f"This {type(optimizer).__name__} is a DistributedOptimizer already. Wrap the original optimizer, once."
        )
    if major_version(keras) < 3:
        from horovod._keras.keras2_optimizer import methods_for

        patches.report_loss_scaling(keras)
    else:
        patches.reduce_before_loss_scaling(keras)
        methods_for = _keras3_methods
    methods = methods_for(keras, optimizer)
    scaled = hasattr(optimizer, "inner_optimizer")
    cls = _class_of(keras, optimizer, DistributedScaler if scaled else methods, options)
    if not scaled:
        result = _distributed_copy(optimizer, cls)
        result._hvd_begin(options)
        return result
    inner = distribute(keras, optimizer.inner_optimizer, options)
    return _scaler_around(optimizer, cls, inner)


def _keras3_methods(keras: ModuleType, optimizer: Any) -> type:
    from horovod._keras.keras3_optimizer import Keras3Methods

    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"DistributedOptimizer takes an optimizer of Keras {version(keras)} (keras.optimizers), but found "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}."
        )
    return Keras3Methods


def _class_of(keras: ModuleType, optimizer: Any, methods: type, options: Options) -> Any:
    """The class of a distributed optimizer: the same class for the same base class and equal options.

    Keras 3 keeps each registered class permanently, so the class does not refer to variables and layers; instances do."""
    base: Any = type(optimizer)
    options = options.without_variables()
    if "_hvd_classes" not in vars(base):
        base._hvd_classes = {}
    # By identity, as any object may be a compressor; the class keeps them alive.
    key = keras, methods, *((f.name, _key(getattr(options, f.name))) for f in fields(options))
    if key in base._hvd_classes:
        return base._hvd_classes[key]
    backend = backend_of(keras)
    namespace: dict[str, Any] = {
        "__module__": "horovod._keras",
        "__doc__": base.__doc__,
        "_hvd_keras": keras,
        "_hvd_options": options,
        "_hvd_backend": backend,
    }
    namespace |= backend.methods_not_rewritten(methods)
    metaclass: Any = type(base)
    cls = metaclass(base.__name__, (methods, base), namespace)
    patches.save_as(keras, cls, base)
    base._hvd_classes[key] = cls
    return cls


def _key(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, type(None), tuple)) else id(value)


def _has_state(optimizer: Any) -> bool:
    """Whether an optimizer has state that is not in its configuration."""
    if getattr(optimizer, "built", False) or getattr(optimizer, "_built", False):
        return True
    if getattr(optimizer, "_weights", None):  # of Keras' legacy optimizers
        return True
    iterations = getattr(optimizer, "_iterations", None)
    return iterations is not None and _is_above_zero(iterations)


def _is_above_zero(iterations: Any) -> bool:
    try:
        return int(iterations.numpy()) != 0
    except (AttributeError, NotImplementedError, TypeError, ValueError):  # within a graph
        return False


def _distributed_copy(optimizer: Any, cls: Any) -> Any:
    """An instance of `cls`: from the configuration of `optimizer`, or, if that has state, sharing its state."""
    if not _has_state(optimizer):
        try:
            result = _new_from_config(optimizer, cls)
            _copy_attributes(optimizer, result)
            return result
        except Exception as error:
            _log.debug("horovod: no %s from its configuration: %s; its state is shared", cls.__name__, error)
    return _with_shared_state(optimizer, cls)


def _new_from_config(optimizer: Any, cls: Any) -> Any:
    """An optimizer of `cls` with the configuration of `optimizer`."""
    rate = vars(optimizer).get("_learning_rate")
    if major_version(cls._hvd_keras) < 3 or isinstance(rate, cls._hvd_keras.Variable):
        return cls.from_config(optimizer.get_config())
    # A schedule or a function is passed on as an object. In a configuration it would have to be one that Keras can read
    # again, and Keras imports TensorFlow to write it, on each backend.
    vars(optimizer)["_learning_rate"] = None
    try:
        config = optimizer.get_config()
    finally:
        vars(optimizer)["_learning_rate"] = rate
    result = cls.from_config(config)
    result.learning_rate = rate
    return result


def _copy_attributes(optimizer: Any, result: Any) -> None:
    """Set the attributes on `result` that the program has set on `optimizer`."""
    existing = vars(result)
    for name, value in vars(optimizer).items():
        if name.startswith(("_self_", "_hvd")) or not _is_users(value):
            continue
        if name not in existing or not _same(existing[name], value):
            setattr(result, name, _copied(value))


def _is_users(value: Any) -> bool:
    """Whether no part of a value is an object of a framework: variables and their trackers are not copied."""
    if isinstance(value, dict):
        return all(_is_users(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_is_users(part) for part in value)
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.partition(".")[0] not in _FRAMEWORKS


def _same(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except (TypeError, ValueError):  # arrays
        return False


def _copied(value: Any) -> Any:
    """A shallow copy of a dict, list or set; other values themselves."""
    kinds = (dict, list, set)  # also the subclasses with which Keras tracks variables
    return next((kind(value) for kind in kinds if isinstance(value, kind)), value)


def _with_shared_state(optimizer: Any, cls: Any) -> Any:
    """`optimizer` as an instance of `cls`. Both share their attributes: a change of one is a change of the other."""
    result = object.__new__(cls)
    object.__setattr__(result, "__dict__", vars(optimizer))
    return result


def _scaler_around(scaler: Any, cls: Any, inner: Any) -> Any:
    """An optimizer of class `cls` that scales losses like `scaler`, around `inner`."""
    if major_version(cls._hvd_keras) < 3:
        from horovod._keras.keras2_optimizer import scaler_around

        return scaler_around(scaler, cls, inner)
    if not _has_state(scaler):
        options = ("initial_scale", "dynamic_growth_steps", "name")
        return cls(inner, **{option: getattr(scaler, option) for option in options})
    result = _with_shared_state(scaler, cls)
    vars(result)["inner_optimizer"] = inner
    return result
