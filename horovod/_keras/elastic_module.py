"""What ``horovod.keras.elastic`` and ``horovod.tensorflow.keras.elastic`` contain, for one Keras module."""

from __future__ import annotations

import types
from collections.abc import Callable
from types import ModuleType
from typing import Any

from horovod._keras.backends import backend_of
from horovod._keras.elastic import CALLBACKS
from horovod._keras.elastic_state import KerasModelState
from horovod._keras.front_end import callback_classes
from horovod._keras_module import keras_package
from horovod.common.elastic import restart, run_fn

__all__ = ["contents_for"]


def contents_for(keras: ModuleType, module: str) -> types.SimpleNamespace:
    """KerasState, run() and the callbacks, as attributes. `module`: the name of the public module."""

    def run(func: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a training function whose first parameter is a state: it is called again when ranks have changed.

            state = hvd.elastic.KerasState(model, batch=0, epoch=0)

            @hvd.elastic.run
            def train(state):
                callbacks = [
                    hvd.elastic.UpdateEpochStateCallback(state),
                    hvd.elastic.UpdateBatchStateCallback(state),
                    hvd.elastic.CommitStateCallback(state),
                ]
                model.fit(
                    data,
                    epochs=10,
                    initial_epoch=state.epoch,
                    steps_per_epoch=500 // hvd.size(),
                    callbacks=callbacks,
                )

            train(state)

        Each call begins with the state of the last commit, on all ranks. It is called again after the death of a rank,
        also if a compiled training step has noticed it, and after a commit at which ranks were added or removed. Mistakes
        of the program (a mismatch of ranks, a wrong argument) are raised at once.

        Returns:
            A function with the parameters and the result of `func`.
        """
        return run_fn(func, restart, backend_of(keras_package(keras)).may_be_of_operation)

    class KerasState(KerasModelState):
        __doc__ = KerasModelState.__doc__.replace("        keras: the Keras module of the model.\n", "")

        def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
            super().__init__(keras, model, optimizer, **kwargs)

    found = callback_classes(keras, module, CALLBACKS)
    for made in (run, KerasState):
        made.__module__, made.__qualname__ = module, made.__name__
        setattr(found, made.__name__, made)
    return found
