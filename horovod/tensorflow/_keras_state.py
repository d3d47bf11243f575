"""TensorFlowKerasState of ``horovod.tensorflow.elastic``, for training loops of the program with models of Keras."""

from typing import Any

from tensorflow import keras

from horovod._keras.elastic_state import KerasModelState

__all__ = ["TensorFlowKerasState"]


class TensorFlowKerasState(KerasModelState):
    """A model of Keras, its optimizer and plain values that survive a change of the ranks, for ``hvd.elastic.run``.

    Args:
        model: a built model of tf.keras.
        optimizer: its optimizer; None: `model.optimizer`. It is built if it is not built yet.
        backend: accepted for compatibility; not used.
        kwargs: more values, by name: plain attributes that can be copied and pickled (batch=0).

    Raises:
        ValueError: the model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        super().__init__(keras, model, optimizer, **kwargs)


TensorFlowKerasState.__module__ = "horovod.tensorflow.elastic"  # where users know it
