"""The callbacks of ``horovod.keras.callbacks`` and ``horovod.tensorflow.keras.callbacks``, as mixins.

``front_end.bind_module`` makes the public classes, each of which also derives from the class of its Keras. They work with
Keras 2 and 3 and on all backends. Keras calls them, on the thread that trains.
"""

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod._keras.agreement import require_same_everywhere
from horovod._keras.backends import Backend, backend_of, entries_of, major_version, optimizer_variables
from horovod.common.objects import require_same
from horovod.common.process_sets import ProcessSet, global_process_set
from hvd_core import numpy_api
from hvd_core._runtime import runtime

# The public classes; see also the names at the end.
__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class Callback:
    """The base of the mixins. Declares what they use of Keras' own Callback, as Keras has no types."""

    _hvd_keras: ModuleType
    model: Any
    params: Any


class ModelCheckpoint(Callback):
    """The base of mixins for Keras' own ModelCheckpoint."""

    if TYPE_CHECKING:

        def __init__(self, **options: Any) -> None: ...

        def _save_model(self, *args: Any, **options: Any) -> Any: ...


# Reading and changing the learning rate of an optimizer of any Keras while it trains.


def innermost(optimizer: Any) -> Any:
    """The optimizer that makes the steps, inside of optimizers that scale losses."""
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return optimizer


def get_learning_rate(keras: ModuleType, optimizer: Any) -> float:
    """The learning rate of the next step."""
    rate = optimizer.learning_rate
    if major_version(keras) >= 3:
        return float(keras.ops.convert_to_numpy(rate))
    if callable(rate) and not hasattr(rate, "dtype"):  # a schedule, as legacy optimizers return it
        rate = rate(optimizer.iterations)
    return float(keras.backend.get_value(rate))


def change_learning_rate(
    keras: ModuleType, model: Any, changed: Callable[[float], float], momentum_correction: bool
) -> None:
    """Set the learning rate of a model that trains to `changed(rate)`. With `momentum_correction` the velocities too.

    Raises:
        TypeError: the optimizer has a LearningRateSchedule, so its rate cannot be set.
    """
    backend_of(keras).sync_model(model)
    optimizer = model.optimizer
    before = get_learning_rate(keras, optimizer)
    after = changed(before)
    if major_version(keras) < 3 and not hasattr(optimizer, "learning_rate"):
        keras.backend.set_value(optimizer.lr, after)
    else:
        optimizer.learning_rate = after
    if momentum_correction and before != after and before > 0:
        _correct_momentum(keras, optimizer, after / before)


def _correct_momentum(keras: ModuleType, optimizer: Any, factor: float) -> None:
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


def _velocities(optimizer: Any) -> list[Any]:
    for name in ("momentums", "_momentums"):
        found = getattr(optimizer, name, None)
        if found:
            return [v for v in found if v is not None]
    if hasattr(optimizer, "get_slot_names"):  # Keras' legacy optimizers
        slots = getattr(optimizer, "_slots", {})
        return [of_variable["momentum"] for of_variable in slots.values() if "momentum" in of_variable]
    return []


class BroadcastGlobalVariablesCallback(Callback):
    """Gives all ranks the weights of the root's model, and the variables of its optimizer, at the end of the first batch.

    By then model and optimizer are built. The changes that the batch made on other ranks are overwritten. Random initial
    weights differ between ranks; after the callback they are the same. It is also needed if only one rank has loaded a
    checkpoint.

    Args:
        root_rank: the rank whose values are sent.
        device: accepted for compatibility; not used.
        local_variables: variables that are not broadcast; register_local_var(variable) adds one.
        process_set: the ranks that take part.

    Raises:
        ValueError: an element of `local_variables` is not a variable; in training: the model is not built.
        OperationFailedError: in training: the ranks' models or optimizers differ; nothing has been sent then.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Any = None,
        process_set: ProcessSet = global_process_set,
    ):
        super().__init__()
        self.root_rank = root_rank
        self.process_set = process_set
        self.device = device  # the backend knows where its variables are
        self.broadcast_done: bool = False
        self._local_variables: list[Any] = []
        for variable in local_variables or ():
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Do not broadcast a variable. Raises ValueError if `var` is not a variable."""
        if not backend_of(self._hvd_keras).is_variable(var):
            raise ValueError(
                f"A variable of the model is required, but found {type(var).__name__}: {var!r:.80}. "
                "Pass elements of model.weights."
            )
        self._local_variables.append(var)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.broadcast_done:
            return
        self._broadcast(backend_of(self._hvd_keras))
        self.broadcast_done = True

    def _broadcast(self, backend: Backend) -> None:
        """The states of random generators and of metrics are not broadcast."""
        model, root_rank, process_set = self.model, self.root_rank, self.process_set
        if not getattr(model, "built", True):
            raise ValueError(
                f"The model {getattr(model, 'name', '')!r} has no weights to be broadcast, as it is not built. Call it "
                "on some data, or model.build(input_shape), before."
            )
        backend.sync_model(model)
        local = {id(backend.identity(v)) for v in self._local_variables}
        weights = [v for v in model.weights if id(backend.identity(v)) not in local]
        optimizer = getattr(model, "optimizer", None)
        of_optimizer = [] if optimizer is None else optimizer_variables(optimizer)
        entries = entries_of(backend, "weight", weights)
        entries += entries_of(backend, "optimizer variable", of_optimizer)
        require_same("The broadcast of the model", entries, "keras.broadcast", process_set)
        backend.broadcast_variables(weights, root_rank, "keras.broadcast.model", process_set)
        if of_optimizer:
            backend.broadcast_variables(of_optimizer, root_rank, "keras.broadcast.optimizer", process_set)


class MetricAverageCallback(Callback):
    """Averages the metrics of an epoch (numbers and arrays) over the ranks. Put it before the callbacks that use metrics:
    checkpoints, early stopping, ReduceLROnPlateau, TensorBoard.

    Args:
        device: accepted for compatibility; not used.

    Raises:
        ValueError: at the end of an epoch, on all ranks: the ranks' metrics differ in name or shape, or a metric is not a
            number.
    """

    # Without it Keras 2 gives this callback a copy of `logs`, and other callbacks would not see the averages.
    _supports_tf_logs = True

    def __init__(self, device: str = ""):
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        numbers = {name: _number(value) for name, value in (logs or {}).items()}
        names = sorted(numbers)
        require_same_everywhere(
            [_text_of(name, numbers[name]) for name in names],
            "keras.metrics",
            "MetricAverageCallback: the ranks have different metrics in epoch "
            f"{epoch + 1}. Give validation data to all ranks or to none, and compile with the same metrics",
        )
        if not names:
            return
        found = {name: number for name, number in numbers.items() if number is not None}
        for name in names:
            if name not in found:
                raise ValueError(
                    f"MetricAverageCallback averages numbers and arrays, but {name} is {logs[name]!r:.80}."
                )
        values = np.concatenate([found[name].ravel() for name in names])
        averages = numpy_api.allreduce(values, name="keras.metrics.average", op=numpy_api.Average)
        for name, part in zip(
            names, np.split(averages, np.cumsum([found[name].size for name in names])[:-1])
        ):
            shape = found[name].shape
            logs[name] = part.reshape(shape) if shape else float(part[0])


def _number(value: Any) -> np.ndarray | None:
    """A metric in float64: a number, or an array or tensor of any shape. None for anything else."""
    value = value.detach().cpu() if hasattr(value, "detach") else value
    try:
        return np.asarray(value.numpy() if hasattr(value, "numpy") else value, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def _text_of(name: str, value: np.ndarray | None) -> str:
    if value is None:
        return f"{name} (not a number)"
    return f"{name} {value.shape}" if value.shape else name


class LearningRateScheduleCallback(Callback):
    """Sets the learning rate to `initial_lr` times a factor, from the epoch `start_epoch` until before `end_epoch`.

    Args:
        initial_lr: the learning rate to multiply, usually that of one process times hvd.size().
        multiplier: a number m, for the factor m ** (epoch - start_epoch), or a function of the epoch. With
            staircase=False the epoch is a fraction.
        start_epoch, end_epoch: counted from 0; None is the end of training.
        staircase: change at the beginning of epochs only, rather than with each batch.
        momentum_correction: scale the velocities of SGD and RMSprop with momentum along with the learning rate.
        steps_per_epoch: number of batches of an epoch. Needed with staircase=False if Keras does not know it.

    Raises:
        ValueError: `initial_lr` is None; when training begins: the number of steps is not known.
        TypeError: in training: the optimizer has a LearningRateSchedule of Keras.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: Any,
        start_epoch: int = 0,
        end_epoch: float | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ):
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase: bool = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch: int | None = None
        if callable(multiplier):
            self.multiplier: Callable[[float], float] = multiplier
        else:
            self.staircase = True
            self.multiplier = lambda epoch: multiplier ** (epoch - self.start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._steps_of_training()

    def _steps_of_training(self) -> int:
        params = self.params or {}
        steps = params.get("steps")
        if not steps and params.get("samples") and params.get("batch_size"):
            steps = params["samples"] // params["batch_size"]
        if not steps:
            raise ValueError(
                "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter to the "
                f"{type(self).__name__}()."
            )
        return int(steps)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        epoch = self.current_epoch
        if epoch is None or epoch < self.start_epoch:
            return
        if self.end_epoch is not None and epoch >= self.end_epoch:
            return
        if not self.staircase:
            self._adjust(epoch + float(batch) / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._adjust(epoch)

    def _adjust(self, epoch: float) -> None:
        rate = self.initial_lr * self.multiplier(epoch)
        change_learning_rate(self._hvd_keras, self.model, lambda before: rate, self.momentum_correction)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = get_learning_rate(self._hvd_keras, self.model.optimizer)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate with every batch from `initial_lr` / hvd.size() to `initial_lr` over some epochs.

    At the beginning of training the learning rate for large batches is too high. In epoch e (a fraction, counted at the
    end of the batch) the factor is (1 + e * (size - 1) / warmup_epochs) / size.

    Args:
        initial_lr: the learning rate to reach, usually that of one process times hvd.size().
        warmup_epochs: how many epochs it takes.
        momentum_correction, steps_per_epoch: as in LearningRateScheduleCallback.
        verbose: 1 prints the final learning rate.

    Raises:
        ValueError, TypeError: as in LearningRateScheduleCallback.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ):
        def multiplier(epoch: float) -> float:
            epoch += 1.0 / (self.steps_per_epoch or 1)
            return 1.0 / runtime.size() * (epoch * (runtime.size() - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            rate = get_learning_rate(self._hvd_keras, self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(ModelCheckpoint):
    """Keras' ModelCheckpoint with save_best_only=True. Set its attribute `filepath` before training."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ):
        # Keras checks the suffix; no file of this name is written.
        name = "unnamed.weights.h5" if save_weights_only else "unnamed.keras"
        super().__init__(
            filepath=name,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: str | None = None

    def _save_model(self, *args: Any, **kwargs: Any) -> Any:
        if self.filepath is None:
            raise ValueError(
                "BestModelCheckpoint does not know where to save the model: set its attribute `filepath` before training."
            )
        return super()._save_model(*args, **kwargs)


# The original's names, for isinstance(): its Spark estimators and their copies look for schedules among callbacks.
BestModelCheckpointImpl = BestModelCheckpoint
BroadcastGlobalVariablesCallbackImpl = BroadcastGlobalVariablesCallback
LearningRateScheduleCallbackImpl = LearningRateScheduleCallback
LearningRateWarmupCallbackImpl = LearningRateWarmupCallback
MetricAverageCallbackImpl = MetricAverageCallback
