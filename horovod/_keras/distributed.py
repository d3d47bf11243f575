"""The base classes of distributed optimizers of Keras 2 and Keras 3, by which other code recognizes them."""

from types import ModuleType
from typing import Any

from horovod._keras.agreement import DENSE
from horovod._keras.backends import Backend
from horovod._keras.options import Options


class CallableList(list[Any]):
    """A list that returns itself when it is called: both `optimizer.variables` and `optimizer.variables()` are in use."""

    def __call__(self) -> "CallableList":
        return self


class Distributed:
    """Base class of distributed optimizers. The class of an optimizer has its options, so that ``from_config`` makes
    optimizers with the same options; except for groups of variables and local layers, which belong to one model."""

    _hvd_keras: ModuleType
    _hvd_options: Options
    _hvd_backend: Backend
    _HAS_AGGREGATE_GRAD = True

    def _hvd_new_state(self, options: Options) -> Any:
        """The state of a distributed optimizer that Keras does not know of."""
        raise NotImplementedError("A class of distributed optimizers must define _hvd_new_state(options).")

    @property
    def _hvd(self) -> Any:
        # Hidden from Keras, so that no checkpoint contains it. By class: an optimizer that had state when it was wrapped
        # shares its attributes with the original.
        states = vars(self).get("_hvd_states", {})
        if type(self) not in states:
            return self._hvd_begin(self._hvd_options)
        return states[type(self)]

    def _hvd_begin(self, options: Options) -> Any:
        """Set and return a new state."""
        states = vars(self).setdefault("_hvd_states", {})
        states[type(self)] = self._hvd_new_state(options)
        return states[type(self)]

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of a variable."""
        self._hvd.reducer.register_local(var)

    def _hvd_forget_sums(self) -> None:
        """Forget gradients that were summed or reduced, and not applied."""
        state = vars(self).get("_hvd_states", {}).get(type(self))
        if state is None:
            return
        state.aggregated = False
        state._seen.clear()
        if state.counter is not None:
            state.counter.assign(0)
            for value in state.sums:
                value.assign(self._hvd_backend.zeros_for(value, DENSE))

    @property
    def _aggregated_gradients(self) -> bool:
        return self._hvd.aggregated

    @property
    def _agg_helper(self) -> Any:
        """The object that sums the gradients of several passes; None for one pass per step."""
        return self._hvd if self._hvd_options.backward_passes_per_step > 1 else None


class DistributedScaler:
    """Base class of optimizers that scale losses and whose inner optimizer is a Distributed one."""

    _HAS_AGGREGATE_GRAD = True

    def register_local_var(self, var) -> None:
        """Do not reduce the gradient of a variable."""
        self.inner_optimizer.register_local_var(var)
