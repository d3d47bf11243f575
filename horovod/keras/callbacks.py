"""Callbacks for ``model.fit``: ``hvd.callbacks.BroadcastGlobalVariablesCallback(0)`` and others."""

from typing import TYPE_CHECKING, Any

import keras

from horovod._keras import callbacks as _callbacks
from horovod._keras.front_end import bind_module as _bind_module

if TYPE_CHECKING:
    from horovod._keras.callbacks import *  # noqa: F403
    from horovod._keras.callbacks import BestModelCheckpoint as _BestModelCheckpoint
else:
    globals().update(_bind_module(_callbacks, keras, __name__))
    _BestModelCheckpoint = globals()["BestModelCheckpoint"]

__all__: list[str] = []
__all__ += _callbacks.__all__


class BestModelCheckpoint(_BestModelCheckpoint):  # type: ignore[no-redef]
    __doc__ = _callbacks.BestModelCheckpoint.__doc__

    # Horovod's order of parameters here, with save_weights_only at the end.
    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        save_weights_only: bool = False,
    ) -> None:
        super().__init__(monitor, verbose, save_weights_only, mode, save_freq)
