"""The base classes of distributed optimizers of Keras 2 and Keras 3, by which other code recognizes them; their state."""

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from horovod._keras.agreement import DENSE
from horovod._keras.backends import Backend
from horovod._keras.gradients import GradientReducer, require_same_variables
from horovod._keras.options import Options

if TYPE_CHECKING:
    from keras.optimizers import Optimizer
else:
    Optimizer = object  # the class of a distributed optimizer derives from the wrapped optimizer's class too


class CallableList(list[Any]):
    """A list that returns itself when it is called: both `optimizer.variables` and `optimizer.variables()` are in use."""

    def __call__(self) -> "CallableList":
        return self


class DistributedState:
    """The state of a distributed optimizer that Keras does not know of: its reducer, and the sums of several passes."""

    def __init__(self, options: Options, backend: Backend) -> None:
        self.options, self.backend = options, backend
        self.reducer = GradientReducer(options, backend)
        self.aggregated = False  # the next gradients to be applied have been reduced when they were computed
        self.counter: Any = None
        self.sums: list[Any] = []
        self._summed: list[Any] = []  # the variables
        self._seen: set[int] = set()

    def make_sums(self, variables: Sequence[Any]) -> None:
        """Make the counter of passes and the sums before the first pass. Raises ValueError for other variables later."""
        if self.counter is None:
            self._summed = list(variables)
            with self.backend.outside_of_graphs():
                self.counter, self.sums = self._new_sums(self._summed)
        require_same_variables(self._summed, variables, self.backend)

    def _new_sums(self, variables: list[Any]) -> tuple[Any, list[Any]]:
        """A counter, and zeros for the variables."""
        raise NotImplementedError

    def forget_sums(self) -> None:
        """Forget gradients that were summed or reduced, and not applied."""
        self.aggregated = False
        self._seen.clear()
        if self.counter is not None:
            self.counter.assign(0)
            for value in self.sums:
                value.assign(self.backend.zeros_for(value, DENSE))


class Distributed(Optimizer):
    """Base class of distributed optimizers. The class of an optimizer has its options, so that ``from_config`` makes
    optimizers with the same options; except for groups of variables and local layers, which belong to one model."""

    _hvd_keras: ModuleType
    _hvd_options: Options
    _hvd_backend: Backend
    built: bool
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
        states = self.__dict__.setdefault("_hvd_states", {})
        states[type(self)] = self._hvd_new_state(options)
        return states[type(self)]

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of a variable."""
        self._hvd.reducer.register_local(var)

    def _hvd_forget_sums(self) -> None:
        state = vars(self).get("_hvd_states", {}).get(type(self))
        if state is not None:
            state.forget_sums()

    @property
    def _aggregated_gradients(self) -> bool:
        return bool(self._hvd.aggregated)

    @property
    def _agg_helper(self) -> Any:
        """The object that sums the gradients of several passes; None for one pass per step."""
        return self._hvd if self._hvd_options.backward_passes_per_step > 1 else None


class DistributedScaler(Optimizer):
    """Base class of optimizers that scale losses and whose inner optimizer is a Distributed one."""

    _HAS_AGGREGATE_GRAD = True

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of a variable."""
        self.inner_optimizer.register_local_var(var)
