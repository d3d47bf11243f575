"""Elastic training with TensorFlow: ``hvd.elastic.run`` and states. See docs/elastic.md.

TensorFlow 2, and the sessions of tf.compat.v1.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from horovod._keras.backends import keras_package
from horovod._keras.elastic import KerasState
from horovod.common._elastic_state import VariablesState
from horovod.common.elastic import commit_async, restart, run_fn, worker_id, workers
from horovod.common.exports import rank
from horovod.common.process_sets import global_process_set
from horovod.tensorflow.functions import broadcast_object, broadcast_variables, require_same_variables
from horovod.tensorflow.util import _executing_eagerly, flat_variables, may_be_of_operation

__all__ = [
    "TensorFlowKerasState",
    "TensorFlowState",
    "commit_async",
    "run",
    "worker_id",
    "workers",
]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function whose first parameter is a state: it is called again when ranks have changed.

        state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)

        @hvd.elastic.run
        def train(state):
            for state.batch in range(state.batch, 1000):
                training_step(*next(data))
                if state.batch % 10 == 0:
                    state.commit()

        train(state)

    Each call begins with the state of the last commit, on all ranks. It is called again after the death of a rank, also
    if an operation in a function or a graph has noticed it, and after a commit at which ranks were added or removed.
    Mistakes of the program (a mismatch of ranks, a wrong argument) are raised immediately. A tf.function that was traced
    before stays as it is.

    Returns:
        A function with the parameters and the result of `func`.
    """
    return run_fn(func, restart, may_be_of_operation)


class TensorFlowState(VariablesState):
    """Variables and plain values that survive a change of the ranks, for ``hvd.elastic.run``.

    Args:
        variables: variables of TensorFlow or of Keras, the same on all ranks; or a method that returns them. None: in
            graphs the global variables; none in eager mode.
        session: of graphs: the session that has the variables' values; None: the default session.
        kwargs: more values, by name: plain attributes that can be copied and pickled (batch=0).
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        if variables is None:
            variables = [] if _executing_eagerly() else tf.compat.v1.global_variables()
        self.variables: list[Any] = flat_variables(variables)
        self.session = session
        if not _executing_eagerly():
            self._session = session or tf.compat.v1.get_default_session()
            if self._session is None:
                raise ValueError(
                    "TensorFlowState() in a graph needs the session that has the values of variables. Pass session=..."
                )
            # Made once: each operation stays in the graph.
            self._new_values = [tf.compat.v1.placeholder(v.dtype.base_dtype, v.shape) for v in self.variables]
            self._assigned = [v.assign(new) for v, new in zip(self.variables, self._new_values)]
            self._sent = broadcast_variables(self.variables, 0)
        self._copies: list[Any] = []
        self._save_variables()
        super().__init__(bcast_object=_broadcast, get_rank=rank, **kwargs)

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        if _executing_eagerly():
            for variable, copy in zip(self.variables, self._copies):
                variable.assign(copy)
        elif self._assigned:
            self._session.run(self._assigned, dict(zip(self._new_values, self._copies)))
        super().restore()

    def sync(self) -> None:
        self._require_same_values()
        if self.variables:
            if _executing_eagerly():
                sent = self._that_differ(list(self.variables), self._save_variables)
                if sent:
                    broadcast_variables(sent, 0)
            else:
                require_same_variables(
                    "TensorFlowState.sync()", self.variables, "horovod.elastic.variables", global_process_set
                )
                self._session.run(self._sent)
        self._sync_values()
        self._save_variables()

    def _references(self) -> dict[str, Any]:
        return {**super()._references(), **{f"variable.{i}": v for i, v in enumerate(self.variables)}}

    def _save_variables(self) -> None:
        if _executing_eagerly():
            # TensorFlow copies when the variable changes: a value that was read stays what it is.
            self._copies = [variable.read_value() for variable in self.variables]
        else:
            self._copies = self._session.run(list(self.variables)) if self.variables else []


class TensorFlowKerasState(KerasState):
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
        from tensorflow import keras  # a program without Keras must work where Keras cannot be imported

        self._hvd_keras = keras_package(keras)
        super().__init__(model, optimizer, **kwargs)


def _broadcast(value: Any) -> Any:
    return broadcast_object(value, 0, name="horovod.elastic.values")
