"""Callbacks for ``model.fit``: ``hvd.callbacks.BroadcastGlobalVariablesCallback(0)`` and the others."""

import keras

from horovod._keras import callbacks as _impl

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(_impl.BroadcastGlobalVariables, keras.callbacks.Callback):
    """Gives all ranks the weights of the root's model, and the variables of its optimizer, at the end of the first batch.

    What is random in a model begins differently on each rank; after this all are the same. Also needed where a
    checkpoint has been loaded on one rank only.

    Args:
        root_rank: the rank whose values are sent.
        device: accepted for compatibility; not used.
        local_variables: variables that each rank keeps, as register_local_var(variable) says too.

    Raises:
        ValueError: `local_variables` are no variables.
    """

    _hvd_keras = keras


class MetricAverageCallback(_impl.MetricAverage, keras.callbacks.Callback):
    """Averages the metrics of an epoch over the ranks. Comes before callbacks that use them: checkpoints, early stopping,
    ReduceLROnPlateau, TensorBoard.

    Args:
        device: accepted for compatibility; not used.

    Raises:
        ValueError: at the end of an epoch, on all ranks: the ranks have different metrics.
    """


class LearningRateScheduleCallback(_impl.LearningRateSchedule, keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr` times a factor, in epochs from `start_epoch` to before `end_epoch`.

    Args:
        initial_lr: the learning rate to multiply, usually that of one process times hvd.size().
        multiplier: a number m, for the factor m ** (epoch - start_epoch), or a function of the epoch. With
            staircase=False the function gets fractions of epochs.
        start_epoch, end_epoch: counted from 0; None is the end of training.
        staircase: change at the beginning of epochs only, rather than with each batch.
        momentum_correction: scale the velocities of SGD and RMSprop with momentum along with the learning rate.
        steps_per_epoch: number of batches of an epoch. Needed with staircase=False where Keras does not know it.

    Raises:
        ValueError: `initial_lr` is None, or the number of steps is not known when training begins.
        TypeError: in training: the optimizer has a LearningRateSchedule of Keras.
    """

    _hvd_keras = keras


class LearningRateWarmupCallback(_impl.LearningRateWarmup, keras.callbacks.Callback):
    """Raises the learning rate with every batch from `initial_lr` / hvd.size() to `initial_lr` over some epochs.

    Large batches train badly at first with the learning rate that suits them later.

    Args:
        initial_lr: the learning rate to reach, usually that of one process times hvd.size().
        warmup_epochs: how many epochs it takes.
        momentum_correction, steps_per_epoch: as in LearningRateScheduleCallback.
        verbose: 1 prints the learning rate that was reached.

    Raises:
        ValueError, TypeError: as in LearningRateScheduleCallback.
    """

    _hvd_keras = keras


class BestModelCheckpoint(_impl.BestModel, keras.callbacks.ModelCheckpoint):
    """Keras' ModelCheckpoint with save_best_only=True. Where it saves is set later, as attribute `filepath`."""
