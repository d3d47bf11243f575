"""Elastic training with Keras: ``hvd.elastic.run``, ``KerasState`` and callbacks. See docs/elastic.md."""

from typing import Final

import keras

from horovod._keras import elastic as _elastic
from horovod._keras.front_end import bind as _bind
from horovod.common.elastic import commit_async as commit_async
from horovod.common.elastic import worker_id as worker_id
from horovod.common.elastic import workers as workers

__all__: list[str] = []
__all__ += _elastic.__all__

run: Final = _bind(_elastic.run, keras, __name__)


class KerasState(_elastic.KerasState):
    __doc__ = _elastic.KerasState.__doc__
    _hvd_keras = keras


class CommitStateCallback(_elastic.CommitStateCallback, keras.callbacks.Callback):
    __doc__ = _elastic.CommitStateCallback.__doc__
    _hvd_keras = keras


class RescaleLearningRateCallback(_elastic.RescaleLearningRateCallback, keras.callbacks.Callback):
    __doc__ = _elastic.RescaleLearningRateCallback.__doc__
    _hvd_keras = keras


class UpdateBatchStateCallback(_elastic.UpdateBatchStateCallback, keras.callbacks.Callback):
    __doc__ = _elastic.UpdateBatchStateCallback.__doc__
    _hvd_keras = keras


class UpdateEpochStateCallback(_elastic.UpdateEpochStateCallback, keras.callbacks.Callback):
    __doc__ = _elastic.UpdateEpochStateCallback.__doc__
    _hvd_keras = keras
