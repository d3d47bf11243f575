"""KerasState: a model, its optimizer and plain values that survive a change of the ranks.

For Keras 2 and 3, on every backend. One thread of a rank uses it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from horovod._keras import learning_rate
from horovod._keras.backends import backend_of
from horovod._keras.values import entries_of, optimizer_variables
from horovod._keras_module import keras_package, major_version
from horovod.common._elastic_state import VariablesState
from horovod.common.exports import rank
from horovod.common.objects import broadcast_object, require_same

__all__ = ["KerasModelState"]


class KerasModelState(VariablesState):
    """The state of a training with Keras, for ``hvd.elastic.run``.

    Args:
        keras: the Keras module of the model.
        model: a built model.
        optimizer: its optimizer; None: `model.optimizer`. It is built if it is not built yet, so that a new rank has
            its variables.
        kwargs: more values, by name: plain attributes that can be copied and pickled (epoch=0, batch=0).

    A commit copies the weights, the states of random generators, and the variables of the optimizer. The states of
    random generators are not sent to new ranks; the others are.

    Raises:
        ValueError: the model is not built.
    """

    def __init__(self, keras: ModuleType, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        self.model, self.optimizer = model, optimizer or getattr(model, "optimizer", None)
        self._keras = keras_package(keras)
        self._backend = backend_of(self._keras)
        if not getattr(model, "built", True):
            raise ValueError(
                f"The model {getattr(model, 'name', '')!r} has no weights that a state could keep, as it is not built. "
                "Call it on some data, or model.build(input_shape), before."
            )
        _build_optimizer(self.optimizer, model)
        self._copies: list | None = None
        self._save_model()
        super().__init__(bcast_object=_broadcast, get_rank=rank, **kwargs)

    def save(self) -> None:
        self._save_model()
        super().save()

    def restore(self) -> None:
        self._backend.forget_step(self.model)
        self._backend.assign(self._kept(), self._copies)
        self._forget_sums()
        super().restore()

    def sync(self) -> None:
        self._require_same_values()
        self._backend.sync_model(self.model)
        self._forget_sums()
        entries = entries_of(self._backend, "variable", self._kept())
        require_same("KerasState.sync()", entries, "horovod.elastic.variables")
        differ = self._that_differ(self._kept(), self._save_model)
        own = {id(v) for v in self._generators()}
        sent = [variable for variable in differ if id(variable) not in own]
        if sent:
            self._backend.broadcast_variables(sent, 0, "keras.elastic")
        self._sync_values()
        self._save_model()

    def _save_model(self) -> None:
        self._backend.sync_model(self.model)
        self._copies = self._backend.copies_of(self._kept(), self._copies)

    def _references(self) -> dict[str, Any]:
        found = {**super()._references(), "model": self.model}
        if self.optimizer is not None:
            found["optimizer"] = self.optimizer
        for i, variable in enumerate(self._kept()):
            # Keras 3 has a variable of the framework inside its own.
            found[f"variable.{i}"], found[f"value.{i}"] = variable, self._backend.identity(variable)
        return found

    def _kept(self) -> list:
        own = [] if self.optimizer is None else optimizer_variables(self.optimizer)
        return [*self.model.weights, *self._generators(), *own]

    def _generators(self) -> list:
        """The states of random generators, which are variables of Keras 3, but no weights."""
        if major_version(self._keras) < 3:
            return []
        known = {id(v) for v in self.model.weights}
        return [v for v in self.model.non_trainable_variables if id(v) not in known]

    def _forget_sums(self) -> None:
        """Gradients of several passes that were summed, but not applied, are lost."""
        forget = getattr(learning_rate.innermost(self.optimizer), "_hvd_forget_sums", None)
        if forget is not None:
            forget()


def _build_optimizer(optimizer: Any, model: Any) -> None:
    """Let an optimizer make its variables."""
    if optimizer is None or getattr(optimizer, "built", False):
        return
    if hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)
    elif hasattr(optimizer, "_create_all_weights"):  # a legacy optimizer of Keras 2
        optimizer._create_all_weights(model.trainable_variables)


def _broadcast(value: Any) -> Any:
    return broadcast_object(value, 0, name="horovod.elastic.values")
