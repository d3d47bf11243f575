"""Elastic training with Keras: ``hvd.elastic.run``, ``KerasState``, and callbacks for ``model.fit``. See docs/elastic.md.

help() and horovod._keras.elastic describe the callbacks.
"""

from collections.abc import Callable as _Callable
from typing import Any as _Any

import keras

from horovod._keras.elastic import CALLBACKS as _CALLBACKS
from horovod._keras.elastic_state import KerasModelState as _KerasModelState
from horovod._keras.elastic_state import run_with as _run_with
from horovod._keras.front_end import callback_classes as _callback_classes
from horovod.common.elastic import worker_id, workers

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "RescaleLearningRateCallback",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
    "worker_id",
    "workers",
]

_classes = _callback_classes(keras, __name__, _CALLBACKS)
CommitStateCallback = _classes.CommitStateCallback
RescaleLearningRateCallback = _classes.RescaleLearningRateCallback
UpdateBatchStateCallback = _classes.UpdateBatchStateCallback
UpdateEpochStateCallback = _classes.UpdateEpochStateCallback


def run(func: _Callable[..., _Any]) -> _Callable[..., _Any]:
    """Decorate a training function whose first parameter is a state: it is called again when ranks have changed.

        state = hvd.elastic.KerasState(model, batch=0, epoch=0)

        @hvd.elastic.run
        def train(state):
            callbacks = [
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.CommitStateCallback(state),
            ]
            model.fit(data, epochs=10 - state.epoch, steps_per_epoch=500 // hvd.size(), callbacks=callbacks)

        train(state)

    Each call begins with the state of the last commit, on all ranks. It is called again after the death of a rank, also
    if a compiled training step has noticed it, and after a commit at which ranks were added or removed. Mistakes of the
    program (a mismatch of ranks, a wrong argument) are raised at once.

    Returns:
        A function with the parameters and the result of `func`.
    """
    return _run_with(keras, func)


class KerasState(_KerasModelState):
    __doc__ = _KerasModelState.__doc__.replace("        keras: the Keras module of the model.\n", "")

    def __init__(self, model: _Any, optimizer: _Any = None, **kwargs: _Any) -> None:
        super().__init__(keras, model, optimizer, **kwargs)
