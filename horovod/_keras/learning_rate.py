"""Reading and changing the learning rate of an optimizer of any Keras while it trains."""

from types import ModuleType
from typing import Any

from horovod._keras_module import major_version


def innermost(optimizer: Any) -> Any:
    """The optimizer that makes the steps, inside of optimizers that scale losses."""
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return optimizer


def get(keras: ModuleType, optimizer: Any) -> float:
    """The learning rate of the next step."""
    rate = optimizer.learning_rate
    if major_version(keras) >= 3:
        return float(keras.ops.convert_to_numpy(rate))
    if callable(rate) and not hasattr(rate, "dtype"):  # a schedule, as legacy optimizers return it
        rate = rate(optimizer.iterations)
    return float(keras.backend.get_value(rate))


def set(keras: ModuleType, optimizer: Any, value: float) -> None:
    """Change the learning rate.

    Raises:
        TypeError: the optimizer has a LearningRateSchedule, so its rate cannot be set.
    """
    if major_version(keras) < 3 and not hasattr(optimizer, "learning_rate"):
        keras.backend.set_value(optimizer.lr, value)
    else:
        optimizer.learning_rate = value


def correct_momentum(keras: ModuleType, optimizer: Any, factor: float) -> None:
    """Multiply the velocities by `factor`, after the learning rate has been multiplied by it.

    Keras' velocities contain the learning rate: v = momentum * v - rate * gradient. So a new rate would take effect only
    after many steps. To change the momentum for one step would have the same effect, but the momentum is a constant of
    compiled training steps.
    """
    optimizer = innermost(optimizer)
    if getattr(optimizer, "momentum", None) is None:
        return
    for velocity in _velocities(optimizer):
        if major_version(keras) >= 3:
            velocity.assign(keras.ops.multiply(velocity, factor))
        else:
            keras.backend.set_value(velocity, keras.backend.get_value(velocity) * factor)


def _velocities(optimizer: Any) -> list:
    for name in ("momentums", "_momentums"):
        found = getattr(optimizer, name, None)
        if found:
            return [v for v in found if v is not None]
    if hasattr(optimizer, "get_slot_names"):  # Keras' legacy optimizers
        slots = getattr(optimizer, "_slots", {})
        return [of_variable["momentum"] for of_variable in slots.values() if "momentum" in of_variable]
    return []
