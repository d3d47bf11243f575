"""Callbacks for ``model.fit``: ``hvd.callbacks.BroadcastGlobalVariablesCallback(0)`` and the others.

What each does and takes is said in horovod._keras.callbacks, and by help().
"""

from typing import Any

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
    _hvd_keras = keras


class MetricAverageCallback(_impl.MetricAverage, keras.callbacks.Callback):
    _hvd_keras = keras


class LearningRateScheduleCallback(_impl.LearningRateSchedule, keras.callbacks.Callback):
    _hvd_keras = keras


class LearningRateWarmupCallback(_impl.LearningRateWarmup, keras.callbacks.Callback):
    _hvd_keras = keras


class BestModelCheckpoint(_impl.BestModel, keras.callbacks.ModelCheckpoint):
    _hvd_keras = keras

    # That of horovod.tensorflow.keras has save_weights_only in another place.
    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        save_weights_only: bool = False,
    ):
        super().__init__(monitor, verbose, save_weights_only, mode, save_freq)
