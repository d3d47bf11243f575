"""Callbacks that tell a state how far training has come: ``hvd.elastic.CommitStateCallback(state)`` and others.

help() and horovod._keras.elastic describe them. Elastic jobs themselves are not supported yet.
"""

from typing import Any as _Any

from tensorflow import keras

from horovod._keras.elastic import CALLBACKS as _CALLBACKS
from horovod._keras.front_end import callback_classes as _callback_classes
from horovod.common.missing import missing_part as _missing_part

__all__ = ["CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"]

_classes = _callback_classes(keras, __name__, _CALLBACKS)
CommitStateCallback = _classes.CommitStateCallback
UpdateBatchStateCallback = _classes.UpdateBatchStateCallback
UpdateEpochStateCallback = _classes.UpdateEpochStateCallback


def __getattr__(name: str) -> _Any:
    if name in ("KerasState", "run"):
        raise _missing_part(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
