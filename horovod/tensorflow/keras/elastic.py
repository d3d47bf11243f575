"""Elastic training with Keras: ``hvd.elastic.run``, ``KerasState``, and callbacks for ``model.fit``. See docs/elastic.md.

help() and horovod._keras describe them.
"""

from tensorflow import keras

from horovod._keras.elastic import contents_for as _contents_for
from horovod.common.elastic import commit_async, worker_id, workers

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "RescaleLearningRateCallback",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "commit_async",
    "run",
    "worker_id",
    "workers",
]

_contents = _contents_for(keras, __name__)
CommitStateCallback = _contents.CommitStateCallback
KerasState = _contents.KerasState
RescaleLearningRateCallback = _contents.RescaleLearningRateCallback
UpdateBatchStateCallback = _contents.UpdateBatchStateCallback
UpdateEpochStateCallback = _contents.UpdateEpochStateCallback
run = _contents.run
