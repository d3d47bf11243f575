"""Elastic training with Keras: ``hvd.elastic.run``, ``KerasState`` and callbacks. See docs/elastic.md."""

from typing import TYPE_CHECKING

import keras

from horovod._keras import elastic as _elastic
from horovod._keras.front_end import bind_module as _bind_module

if TYPE_CHECKING:
    from horovod._keras.elastic import *  # noqa: F403
else:
    globals().update(_bind_module(_elastic, keras, __name__))

__all__: list[str] = []
__all__ += _elastic.__all__
