"""Callbacks for ``model.fit``: ``hvd.callbacks.BroadcastGlobalVariablesCallback(0)`` and others."""

from typing import TYPE_CHECKING

from tensorflow import keras

from horovod._keras import callbacks as _callbacks
from horovod._keras.front_end import bind_module as _bind_module

if TYPE_CHECKING:
    from horovod._keras.callbacks import *  # noqa: F403
else:
    globals().update(_bind_module(_callbacks, keras, __name__))

__all__: list[str] = []
__all__ += _callbacks.__all__
