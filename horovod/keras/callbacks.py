"""Callbacks for ``model.fit``: ``hvd.callbacks.BroadcastGlobalVariablesCallback(0)`` and the others.

What each does and takes is said in horovod._keras.callbacks, and by help().
"""

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
