"""LogCallback, which shows the progress of a Keras training where the driver of the job writes its output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tensorflow import keras

from sparkdl.horovod import log_to_driver

__all__ = ["LogCallback"]


class LogCallback(keras.callbacks.Callback):
    """Sends the metrics of each epoch to the driver, from rank 0. `per_batch_log`: those of each batch, too."""

    def __init__(self, per_batch_log: bool = False) -> None:
        super().__init__()
        self.per_batch_log = per_batch_log
        self._shows = os.environ.get("HOROVOD_RANK", "0") == "0"
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._epoch = epoch
        if self._shows:
            log_to_driver(f"Epoch {epoch + 1} begins.")

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if self._shows and self.per_batch_log:
            log_to_driver(f"Epoch {self._epoch + 1}, batch {batch + 1}: {_text(logs)}")

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        if self._shows:
            log_to_driver(f"Epoch {epoch + 1} ends: {_text(logs)}")


def _text(logs: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} = {float(value):.6g}" for name, value in (logs or {}).items())
