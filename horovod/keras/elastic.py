"""Callbacks that tell a state how far training has come: ``hvd.elastic.CommitStateCallback(state)`` and the others.

What each does and takes is said in horovod._keras.elastic, and by help(). Elastic jobs themselves are not there yet.
"""

import keras

from horovod._keras import elastic as _impl

__all__ = ["CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"]


class CommitStateCallback(_impl.CommitState, keras.callbacks.Callback):
    pass


class UpdateBatchStateCallback(_impl.UpdateBatchState, keras.callbacks.Callback):
    pass


class UpdateEpochStateCallback(_impl.UpdateEpochState, keras.callbacks.Callback):
    pass
