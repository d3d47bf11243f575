"""Callbacks that tell a state how far training has come: ``hvd.elastic.CommitStateCallback(state)`` and others.

help() and horovod._keras.elastic describe them. Elastic jobs themselves are not supported yet.
"""

from tensorflow import keras

from horovod._keras.elastic import CALLBACKS as _CALLBACKS
from horovod._keras.front_end import callback_classes as _callback_classes

__all__ = ["CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"]

_classes = _callback_classes(keras, __name__, _CALLBACKS)
CommitStateCallback = _classes.CommitStateCallback
UpdateBatchStateCallback = _classes.UpdateBatchStateCallback
UpdateEpochStateCallback = _classes.UpdateEpochStateCallback
