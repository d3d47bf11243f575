"""Elastic training with Keras: the state of a model, and callbacks that record in it how far ``model.fit`` has come.

The callbacks are mixins, as in callbacks.py. The state that they are given is any object with `commit()` and the
attributes `batch` and `epoch`. For Keras 2 and 3, on every backend. One thread of a rank uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from horovod._keras.backends import (
    backend_of,
    entries_of,
    major_version,
    may_be_of_operation,
    optimizer_variables,
)
from horovod._keras.callbacks import Callback, change_learning_rate, innermost
from horovod.common._elastic_state import VariablesState
from horovod.common.elastic import commit_async, restart, run_fn, worker_id, workers
from horovod.common.exports import rank
from horovod.common.objects import broadcast_object, require_same
from hvd_core._runtime import runtime

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "RescaleLearningRateCallback",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "commit_async",
    "run",
    "worker_id",
    "workers",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class KerasState(VariablesState):
    """The state of a training with Keras, for ``hvd.elastic.run``.

    Args:
        model: a built model.
        optimizer: its optimizer; None: `model.optimizer`. It is built if it is not built yet, so that a new rank has
            its variables.
        kwargs: more values, by name: plain attributes that can be copied and pickled (epoch=0, batch=0).

    A commit copies the weights, the states of random generators, and the variables of the optimizer. The states of
    random generators are not sent to new ranks; the others are.

    Raises:
        ValueError: the model is not built.
    """

    _hvd_keras: ModuleType

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        self.model: Any = model
        self.optimizer: Any = optimizer or getattr(model, "optimizer", None)
        self._backend = backend_of(self._hvd_keras)
        if not getattr(model, "built", True):
            raise ValueError(
                f"The model {getattr(model, 'name', '')!r} has no weights that a state could keep, as it is not built. "
                "Call it on some data, or model.build(input_shape), before."
            )
        _build_optimizer(self.optimizer, model)
        self._copies: list[Any] = []
        self._save_model()
        super().__init__(bcast_object=_broadcast, get_rank=rank, **kwargs)

    def save(self) -> None:
        self._save_model()
        super().save()

    def restore(self) -> None:
        self._backend.forget_step(self.model)
        self._backend.assign(self._kept(), self._copies)
        self._forget_sums()
        super().restore()

    def sync(self) -> None:
        self._require_same_values()
        self._backend.sync_model(self.model)
        self._forget_sums()
        entries = entries_of(self._backend, "variable", self._kept())
        require_same("KerasState.sync()", entries, "horovod.elastic.variables")
        differ = self._that_differ(self._kept(), self._save_model)
        own = {id(v) for v in self._generators()}
        sent = [variable for variable in differ if id(variable) not in own]
        if sent:
            self._backend.broadcast_variables(sent, 0, "keras.elastic")
        self._sync_values()
        self._save_model()

    def _save_model(self) -> None:
        self._backend.sync_model(self.model)
        self._copies = self._backend.copies_of(self._kept(), self._copies or None)

    def _references(self) -> dict[str, Any]:
        found = {**super()._references(), "model": self.model}
        if self.optimizer is not None:
            found["optimizer"] = self.optimizer
        for i, variable in enumerate(self._kept()):
            # Keras 3 has a variable of the framework inside its own.
            found[f"variable.{i}"], found[f"value.{i}"] = variable, self._backend.identity(variable)
        return found

    def _kept(self) -> list[Any]:
        own = [] if self.optimizer is None else optimizer_variables(self.optimizer)
        return [*self.model.weights, *self._generators(), *own]

    def _generators(self) -> list[Any]:
        """The states of random generators, which are variables of Keras 3, but no weights."""
        if major_version(self._hvd_keras) < 3:
            return []
        known = {id(v) for v in self.model.weights}
        return [v for v in self.model.non_trainable_variables if id(v) not in known]

    def _forget_sums(self) -> None:
        """Gradients of several passes that were summed, but not applied, are lost."""
        forget = getattr(innermost(self.optimizer), "_hvd_forget_sums", None)
        if forget is not None:
            forget()


def _build_optimizer(optimizer: Any, model: Any) -> None:
    """Let an optimizer make its variables."""
    if optimizer is None or getattr(optimizer, "built", False):
        return
    if hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)
    elif hasattr(optimizer, "_create_all_weights"):  # a legacy optimizer of Keras 2
        optimizer._create_all_weights(model.trainable_variables)


def _broadcast(value: Any) -> Any:
    return broadcast_object(value, 0, name="horovod.elastic.values")


class CommitStateCallback(Callback):
    """Calls `state.commit()` after every `batches_per_commit` batches, and at the end of each epoch.

    A commit costs a copy of the model and the optimizer. A failure loses the training since the last commit.

    Args:
        state: the state object.
        batches_per_commit: batches between two commits, at least 1.

    Raises:
        ValueError: `batches_per_commit` is not an int of at least 1.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1):
        super().__init__()
        if not isinstance(batches_per_commit, int) or batches_per_commit < 1:
            raise ValueError(
                f"batches_per_commit must be an int of at least 1, but is {batches_per_commit!r}."
            )
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining: int = batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.commit()

    def commit(self) -> None:
        """Commit now. The next commit comes `batches_per_commit` batches later."""
        self.batches_remaining = self.batches_per_commit
        self.state.commit()


class UpdateBatchStateCallback(Callback):
    """Sets `state.batch` to the number of the batch that has ended, and to 0 after each epoch.

    Put it before CommitStateCallback, so that the committed number is the current one. After a reset `params["steps"]`,
    which other callbacks read, does not count the batches that are done. Keras takes the real number of steps from the
    program alone: ``model.fit(steps_per_epoch=steps - state.batch)``.
    """

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        steps = self.params.get("steps")
        if steps:
            if self.steps_per_epoch is None:
                self.steps_per_epoch = steps
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback(Callback):
    """Sets `state.epoch` to the number of epochs that have ended, before this training and in it.

    Put it before CommitStateCallback. Continue training with ``model.fit(epochs=epochs, initial_epoch=state.epoch)``,
    where other callbacks see the number of the epoch in the whole training, or with
    ``model.fit(epochs=epochs - state.epoch)``.
    """

    def __init__(self, state: Any):
        super().__init__()
        self.state = state

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # `epoch` counts from the initial_epoch of fit(), which may be state.epoch or 0.
        self.state.epoch += 1


class RescaleLearningRateCallback(Callback):
    """Sets the learning rate to `initial_lr` * hvd.size() when the number of ranks has changed.

    With a number of warm-up batches the rate goes from its present value to the new one step by step, as a jump of the
    rate may make training diverge. The optimizer's rate must be a number; a LearningRateSchedule cannot be scaled.

    Args:
        initial_lr: the learning rate of one process.
        warmup_batches: batches until the new rate is reached; 0: immediately.
        momentum_correction: scale the velocities as well, for optimizers whose velocities contain the rate (SGD with
            momentum of Keras), so that the new rate takes effect immediately.

    Raises:
        ValueError: `initial_lr` is not positive, or `warmup_batches` is negative.
        TypeError: in training: the optimizer has a LearningRateSchedule of Keras.
    """

    def __init__(self, initial_lr: float, warmup_batches: int = 0, momentum_correction: bool = True):
        super().__init__()
        if not initial_lr > 0 or warmup_batches < 0:
            raise ValueError(
                "RescaleLearningRateCallback needs initial_lr > 0 and warmup_batches >= 0, but found "
                f"{initial_lr!r} and {warmup_batches!r}."
            )
        self.initial_lr = initial_lr
        self.warmup_batches = warmup_batches
        self.momentum_correction = momentum_correction
        self._size: int | None = None
        self._batches_left = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if runtime.size() > 1:
            # A rank may have been replaced by a new one, which has seen no batch: rank 0 decides for all.
            progress = (self._size, self._batches_left)
            self._size, self._batches_left = broadcast_object(
                progress, 0, name="horovod.rescale_learning_rate"
            )
        if self._size != runtime.size():
            self._size = runtime.size()
            self._batches_left = max(1, self.warmup_batches)

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._batches_left == 0:
            return
        left, self._batches_left = self._batches_left, self._batches_left - 1
        target = self.initial_lr * runtime.size()
        change_learning_rate(
            self._hvd_keras, self.model, lambda rate: rate + (target - rate) / left, self.momentum_correction
        )


def run(func: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a training function whose first parameter is a state: it is called again when ranks have changed.

        state = hvd.elastic.KerasState(model, batch=0, epoch=0)

        @hvd.elastic.run
        def train(state):
            callbacks = [
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.CommitStateCallback(state),
            ]
            model.fit(
                data,
                epochs=10,
                initial_epoch=state.epoch,
                steps_per_epoch=500 // hvd.size(),
                callbacks=callbacks,
            )

        train(state)

    Each call begins with the state of the last commit, on all ranks. It is called again after the death of a rank, also
    if a compiled training step has noticed it, and after a commit at which ranks were added or removed. Mistakes of the
    program (a mismatch of ranks, a wrong argument) are raised immediately.

    Returns:
        A function with the parameters and the result of `func`.
    """
    return run_fn(func, restart, may_be_of_operation)
