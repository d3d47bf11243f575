"""Callbacks for ``model.fit``: ``hvd.callbacks.BroadcastGlobalVariablesCallback(0)`` and others."""

from tensorflow import keras

from horovod._keras import callbacks as _callbacks

__all__: list[str] = []
__all__ += _callbacks.__all__


class BestModelCheckpoint(_callbacks.BestModelCheckpoint, keras.callbacks.ModelCheckpoint):
    __doc__ = _callbacks.BestModelCheckpoint.__doc__
    _hvd_keras = keras


class BroadcastGlobalVariablesCallback(_callbacks.BroadcastGlobalVariablesCallback, keras.callbacks.Callback):
    __doc__ = _callbacks.BroadcastGlobalVariablesCallback.__doc__
    _hvd_keras = keras


class LearningRateScheduleCallback(_callbacks.LearningRateScheduleCallback, keras.callbacks.Callback):
    __doc__ = _callbacks.LearningRateScheduleCallback.__doc__
    _hvd_keras = keras


class LearningRateWarmupCallback(_callbacks.LearningRateWarmupCallback, keras.callbacks.Callback):
    __doc__ = _callbacks.LearningRateWarmupCallback.__doc__
    _hvd_keras = keras


class MetricAverageCallback(_callbacks.MetricAverageCallback, keras.callbacks.Callback):
    __doc__ = _callbacks.MetricAverageCallback.__doc__
    _hvd_keras = keras
