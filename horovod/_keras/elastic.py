"""The callbacks of ``horovod.keras.elastic`` and ``horovod.tensorflow.keras.elastic``, as mixins (see callbacks.py).

They tell a state object (elastic_state.py) how far ``model.fit`` has come, and when to commit. A state is any object with
`commit()` and the attributes `batch` and `epoch`.
"""

from types import ModuleType
from typing import Any

from horovod._keras import learning_rate
from horovod._keras.backends import backend_of
from horovod._keras_module import keras_package
from horovod.common.objects import broadcast_object
from hvd_core._runtime import runtime


class CommitState:
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
        self.batches_remaining = batches_per_commit

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


class UpdateBatchState:
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


class UpdateEpochState:
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


class RescaleLearningRate:
    """Sets the learning rate to `initial_lr` * hvd.size() when the number of ranks has changed.

    With a number of warm-up batches the rate goes from its present value to the new one step by step, as a jump of the
    rate may make training diverge. The optimizer's rate must be a number; a LearningRateSchedule cannot be scaled.

    Args:
        initial_lr: the learning rate of one process.
        warmup_batches: batches until the new rate is reached; 0: at once.
        momentum_correction: scale the velocities as well, for optimizers whose velocities contain the rate (SGD with
            momentum of Keras), so that the new rate takes effect at once.

    Raises:
        ValueError: `initial_lr` is not positive, or `warmup_batches` is negative.
        TypeError: in training: the optimizer has a LearningRateSchedule of Keras.
    """

    _hvd_keras: ModuleType

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
            told = (self._size, self._batches_left)
            self._size, self._batches_left = broadcast_object(told, 0, name="horovod.rescale_learning_rate")
        if self._size != runtime.size():
            self._size = runtime.size()
            self._batches_left = max(1, self.warmup_batches)

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._batches_left == 0:
            return
        keras, optimizer = keras_package(self._hvd_keras), self.model.optimizer
        backend_of(keras).sync_model(self.model)
        before = learning_rate.get(keras, optimizer)
        after = before + (self.initial_lr * self._size - before) / self._batches_left
        self._batches_left -= 1
        if before == after:
            return
        learning_rate.set(keras, optimizer, after)
        if self.momentum_correction and before > 0:
            learning_rate.correct_momentum(keras, optimizer, after / before)


# By the names of the public classes.
CALLBACKS = {
    "CommitStateCallback": CommitState,
    "RescaleLearningRateCallback": RescaleLearningRate,
    "UpdateBatchStateCallback": UpdateBatchState,
    "UpdateEpochStateCallback": UpdateEpochState,
}
