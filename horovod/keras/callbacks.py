"""Callbacks for ``model.fit``: ``hvd.callbacks.BroadcastGlobalVariablesCallback(0)`` and others.

help() and horovod._keras.callbacks describe them.
"""

import keras

from horovod._keras.callbacks import CALLBACKS as _CALLBACKS
from horovod._keras.callbacks import BestModelWeightsLast as _BestModelWeightsLast
from horovod._keras.front_end import callback_classes as _callback_classes

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_classes = _callback_classes(keras, __name__, {**_CALLBACKS, "BestModelCheckpoint": _BestModelWeightsLast})
BestModelCheckpoint = _classes.BestModelCheckpoint
BroadcastGlobalVariablesCallback = _classes.BroadcastGlobalVariablesCallback
LearningRateScheduleCallback = _classes.LearningRateScheduleCallback
LearningRateWarmupCallback = _classes.LearningRateWarmupCallback
MetricAverageCallback = _classes.MetricAverageCallback
