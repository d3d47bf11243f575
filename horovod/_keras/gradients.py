"""Reduces the gradients of an optimizer: decides which gradients are reduced, under which names, in which groups.

The same for all versions of Keras and all backends; the backend (``backends``) works on the tensors. One thread per
optimizer.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from horovod._keras.agreement import (
    DENSE,
    NONE,
    RankDescription,
    StepAgreement,
    agree,
    kinds_on_any_rank,
)
from horovod._keras.backends import Backend
from horovod._keras.options import Options
from horovod.common._elastic_job import is_within_run, ranks_may_change
from horovod.common.util import split_list
from hvd_core._frontend import initial_weights

if TYPE_CHECKING:
    from keras.optimizers import Optimizer
else:
    Optimizer = object  # the class of a distributed optimizer derives from the wrapped optimizer's class too

_REMEDY = "model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])"


def require_same_variables(before: Sequence[Any], now: Sequence[Any], backend: Backend) -> None:
    """Raise ValueError if a pass has gradients of other variables than the pass before, with which they are summed."""
    if [id(backend.identity(v)) for v in before] != [id(backend.identity(v)) for v in now]:
        raise ValueError(
            "With backward_passes_per_step > 1 an optimizer takes the gradients of the same variables each time, but "
            f"there were {len(before)} variables and now there are {len(now)}, or other ones. Make a new optimizer to "
            "train other layers."
        )


class GradientReducer:
    """Reduces lists of gradients for one optimizer."""

    def __init__(self, options: Options, backend: Backend):
        self.options = options
        self.backend = backend
        self._registered: list[Any] = []
        self._is_outer = not is_within_run()
        self._agreements: dict[tuple[Any, ...], tuple[StepAgreement, list[int], list[Any]]] = {}
        # Set by an optimizer that scales losses: if a gradient that is not reduced overflows, all ranks must see it.
        self.spread_overflow = False

    def register_local(self, variable: Any) -> None:
        """Do not reduce the gradient of a variable."""
        self._registered.append(variable)

    def active(self) -> bool:
        """Whether this rank reduces gradients with other ranks."""
        process_set = self.options.process_set
        if not process_set.included():
            return False
        return (process_set.size() or 0) > 1 or ranks_may_change()

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The reduced gradients: sparse ones as such, None where no rank has a gradient.

        If another rank has one, a missing gradient counts as zero. For a graph the ranks compare their gradients when it
        is first traced. If it is traced again with other gradients, None stays None, and if another rank has a gradient
        there, the step fails on both ranks. Gradients of local variables are not reduced, but divided by the number of
        ranks with `scale_local_gradients`.

        Raises:
            ValueError: the ranks' variables or settings differ. The errors of the reduction.
        """
        gradients, variables = list(gradients), list(variables)
        if not self.active():
            return gradients
        reduced_indices = self._reduced_indices(variables)
        if self.options.scale_local_gradients:
            for index in set(range(len(variables))).difference(reduced_indices):
                if gradients[index] is not None:
                    share = self.backend.one_of(self.options.process_set)
                    gradients[index] = self.backend.scaled(gradients[index], share)
        if not reduced_indices:
            return gradients
        if self.spread_overflow:
            self._spread_overflow(gradients, variables, set(reduced_indices))
        reduced = self._reduce(
            [gradients[i] for i in reduced_indices], [variables[i] for i in reduced_indices]
        )
        for index, gradient in zip(reduced_indices, reduced):
            gradients[index] = gradient
        return gradients

    def agree_first(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[int]:
        """Compare this rank's gradients with those of the other ranks before the first of several passes: a rank that
        reduces in each pass would wait for a rank that first sums several passes.

        Returns:
            Indices of variables for which reduce() returns a gradient in a graph, although this rank may have no
            gradient of it.
        """
        if not self.active():
            return []
        reduced_indices = self._reduced_indices(list(variables))
        own = [self._kind(gradients[i]) for i in reduced_indices]
        if not reduced_indices:
            return []
        agreement, first = self._agreement_on([variables[i] for i in reduced_indices], own)
        if self.backend.mode() == "eager" or own != first:
            return []
        return [i for i, kind in zip(reduced_indices, agreement.kinds) if kind != NONE]

    def _reduced_indices(self, variables: list[Any]) -> list[int]:
        """Indices of the variables whose gradients are reduced."""
        local = {id(self.backend.identity(v)) for v in self._local_variables()}
        return [i for i, v in enumerate(variables) if id(self.backend.identity(v)) not in local]

    def _spread_overflow(self, gradients: list[Any], variables: list[Any], reduced_indices: set[int]) -> None:
        """Let all ranks see that a gradient which is not reduced is not finite: make a reduced gradient NaN."""
        local = [g for i, g in enumerate(gradients) if g is not None and i not in reduced_indices]
        carriers = [i for i in sorted(reduced_indices) if gradients[i] is not None]
        if not local or (not carriers and self.backend.mode() != "eager"):
            return
        factor = self.backend.nan_unless_finite(local)
        if not carriers:
            if float(factor) == 1.0:
                return
            carriers = [min(reduced_indices)]
            gradients[carriers[0]] = self.backend.zeros_for(variables[carriers[0]], DENSE)
        carrier = min(carriers, key=lambda i: bool(self.backend.sparse_kind(gradients[i])))
        gradients[carrier] = self.backend.scaled(gradients[carrier], factor)

    def _kind(self, gradient: Any) -> int:
        if gradient is None:
            return NONE
        return (not self.options.sparse_as_dense and self.backend.sparse_kind(gradient)) or DENSE

    def _local_variables(self) -> list[Any]:
        of_layers = (v for layer in self.options.local_layers for v in layer.trainable_weights)
        return [*self._registered, *of_layers]

    def _reduce(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        own = [self._kind(g) for g in gradients]
        agreement, first = self._agreement_on(variables, own)
        if self.backend.mode() == "eager":
            return self._reduce_eagerly(gradients, variables, own, agreement)
        return self._reduce_in_graph(gradients, variables, own, agreement, own == first)

    def _reduce_eagerly(
        self, gradients: list[Any], variables: list[Any], own: list[int], agreement: StepAgreement
    ) -> list[Any]:
        """Reduce gradients, where the variables that have one may differ between steps and between ranks."""
        kinds = agreement.kinds
        presence_is_sent = agreement.complete and DENSE in kinds  # with the first dense gradients
        if not presence_is_sent:
            present = [NONE if mine == NONE else agreed or mine for mine, agreed in zip(own, kinds)]
            kinds = kinds_on_any_rank(present, agreement, self.options.process_set)
        sent = [
            None if kind == NONE else self._of_kind(gradient, variable, kind)
            for gradient, variable, kind in zip(gradients, variables, kinds)
        ]
        presence = [mine != NONE for mine in own] if presence_is_sent else None
        result, reduced_presence = self._reduce_kinds(sent, variables, kinds, agreement, presence)
        if presence_is_sent and NONE in own:
            for index, is_present in enumerate(self.backend.any_rank_has(reduced_presence)):
                if not is_present:
                    result[index] = None
        return result

    def _reduce_in_graph(
        self,
        gradients: list[Any],
        variables: list[Any],
        own: list[int],
        agreement: StepAgreement,
        as_agreed: bool,
    ) -> list[Any]:
        """Make the operations that reduce gradients in a graph.

        A traced graph is fixed, and one rank alone may trace it again. So each variable has an operation, also if no rank
        had a gradient of it: a rank that has one now meets tensors that do not fit, and all ranks get an error instead
        of waiting.
        """
        backend = self.backend
        wanted = agreement.kinds if as_agreed else own
        kinds = [agreed or DENSE for agreed in agreement.kinds]
        sent = [
            backend.misfit_for(variable, kind) if want == NONE else self._of_kind(gradient, variable, kind)
            for gradient, variable, kind, want in zip(gradients, variables, kinds, wanted)
        ]
        absent = [index for index, want in enumerate(wanted) if want == NONE]
        if len(absent) == len(wanted):
            if not as_agreed:  # no operation of this graph lets the other ranks fail
                for name in self._names(self._batches(sent, variables, kinds), agreement):
                    backend.report("allreduce", name, "no gradients here", self.options.process_set)
            return gradients
        result, _ = self._reduce_kinds(sent, variables, kinds, agreement, None)
        outcomes = [result[index] for index in absent]
        for index in absent:
            result[index] = None
        return backend.depending_on(outcomes, result)

    def _of_kind(self, gradient: Any, variable: Any, kind: int) -> Any:
        """The gradient as one of this kind; zeros for None."""
        if gradient is None:
            return self.backend.zeros_for(variable, kind)
        if (self.backend.sparse_kind(gradient) or DENSE) == kind:
            return gradient
        return self.backend.dense(gradient) if kind == DENSE else self.backend.sparse(gradient, kind)

    def _reduce_kinds(
        self,
        sent: list[Any],
        variables: list[Any],
        kinds: list[int],
        agreement: StepAgreement,
        presence: list[bool] | None,
    ) -> tuple[list[Any], Any]:
        """The reduced gradients, without those of the kind NONE, and the reduced `presence` (see Backend.reduce())."""
        backend = self.backend
        result: list[Any] = [None] * len(sent)
        batches = self._batches(sent, variables, kinds)
        if initial_weights.checked():
            self._announce_weights(batches, variables, agreement)
        outcomes, reduced_presence = backend.reduce(
            [[sent[i] for i in b] for b in batches],
            self._names(batches, agreement),
            variables,
            self.options,
            presence,
        )
        for batch, tensors in zip(batches, outcomes):
            for index, tensor in zip(batch, tensors):
                result[index] = tensor
        for index, kind in enumerate(kinds):
            if kind not in (NONE, DENSE):
                name = f"keras.{agreement.number}.sparse.{index}"
                result[index] = backend.reduce_sparse(sent[index], name, self.options)
        return result, reduced_presence

    def _announce_weights(
        self, batches: list[list[int]], variables: list[Any], agreement: StepAgreement
    ) -> None:
        number = self.options.process_set.process_set_id or 0
        for batch, name in zip(batches, self._names(batches, agreement)):
            weights = [
                (self.backend.description_of(v)[0], lambda v=v: self.backend.values_of(v))
                for v in (variables[i] for i in batch)
            ]
            initial_weights.announce(f"{self.backend.batch_prefix}{name}", weights, _REMEDY, number)

    def _names(self, batches: list[list[int]], agreement: StepAgreement) -> list[str]:
        """The names of the operations that reduce the batches."""
        return [
            f"keras.{agreement.number}.gradient.{'.'.join(map(str, sorted({b[0], b[-1]})))}" for b in batches
        ]

    def _agreement_on(self, variables: list[Any], own: list[int]) -> tuple[StepAgreement, list[int]]:
        """The ranks' agreement on these variables, and the kinds that this rank had when it was made."""
        # The variables are kept, so that no other object gets their ids.
        mode = self.backend.mode()
        key = mode, *(id(self.backend.identity(v)) for v in variables)
        if key not in self._agreements:
            settings = {**self.options.settings(), "mode": mode}
            described = [(*self.backend.description_of(v), kind) for v, kind in zip(variables, own)]
            agreement = agree(RankDescription(settings, described), self.options.process_set, self._is_outer)
            self._agreements[key] = agreement, own, variables
        return self._agreements[key][:2]

    def _batches(self, gradients: list[Any], variables: list[Any], kinds: list[int]) -> list[list[int]]:
        """The indices of the dense gradients, in lists each of which one operation reduces."""
        indices = [i for i, kind in enumerate(kinds) if kind == DENSE]
        groups = self.options.groups
        if groups is None:
            return self.backend.batches(indices, gradients, variables)
        if isinstance(groups, int):
            return [part for part in split_list(indices, groups) if part] if indices else []
        number = {id(self.backend.identity(v)): n for n, group in enumerate(groups) for v in group}
        members: dict[Any, list[int]] = {}
        for index in indices:
            group = number.get(id(self.backend.identity(variables[index])), f"alone.{index}")
            members.setdefault(group, []).append(index)
        return list(members.values())


# The base classes of distributed optimizers of Keras 2 and Keras 3, by which other code recognizes them; their state.


class CallableList(list[Any]):
    """A list that returns itself when it is called: both `optimizer.variables` and `optimizer.variables()` are in use."""

    def __call__(self) -> "CallableList":
        return self


class DistributedState:
    """The state of a distributed optimizer that Keras does not know of: its reducer, and the sums of several passes."""

    def __init__(self, keras: ModuleType, options: Options, backend: Backend) -> None:
        self.keras, self.options, self.backend = keras, options, backend
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
    _hvd_state_class: type[Any]
    built: bool
    _HAS_AGGREGATE_GRAD = True

    @property
    def _hvd(self) -> Any:
        """The state of a distributed optimizer that Keras does not know of, so that no checkpoint contains it."""
        return vars(self).get("_hvd_state") or self._hvd_begin(self._hvd_options)

    def _hvd_begin(self, options: Options) -> Any:
        """Set and return a new state."""
        state = self._hvd_state_class(self._hvd_keras, options, self._hvd_backend)
        self.__dict__["_hvd_state"] = state
        return state

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of a variable."""
        self._hvd.reducer.register_local(var)

    def _hvd_forget_sums(self) -> None:
        if "_hvd_state" in vars(self):
            self._hvd.forget_sums()


class DistributedScaler(Optimizer):
    """Base class of optimizers that scale losses and whose inner optimizer is a Distributed one."""

    _HAS_AGGREGATE_GRAD = True

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of a variable."""
        self.inner_optimizer.register_local_var(var)
