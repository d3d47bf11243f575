"""From the gradients of this rank to those of all: which ones travel, under which names, in which groups.

The same for every version of Keras and every backend; what touches tensors is done by the backend (``backends``).
One thread per optimizer.
"""

import os
from collections.abc import Sequence
from typing import Any

from horovod._keras import agreement
from horovod._keras.agreement import DENSE, NONE, Description, Plan
from horovod._keras.backends import Backend
from horovod._keras.options import Options
from horovod.common.util import split_list


def same_variables(before: Sequence, now: Sequence, backend: Backend) -> None:
    """Raises ValueError where the gradients of several passes are to be summed, but not of the same variables."""
    if [id(backend.identity(v)) for v in before] != [id(backend.identity(v)) for v in now]:
        raise ValueError(
            "With backward_passes_per_step > 1 an optimizer takes the gradients of the same variables each time, but "
            f"there were {len(before)} and are {len(now)} now, or others. Make a new optimizer where other layers are to "
            "be trained."
        )


class GradientReducer:
    """Reduces lists of gradients for one optimizer."""

    def __init__(self, options: Options, backend: Backend):
        self.options = options
        self.backend = backend
        self._registered: list[Any] = []
        self._plans: dict[tuple, tuple[Plan, list[int], list]] = {}
        # Whether an optimizer that scales losses asks if gradients are finite: those that stay here count for all then.
        self.spread_overflow = False

    def register_local(self, variable: Any) -> None:
        """Leave the gradient of a variable to this rank."""
        self._registered.append(variable)

    def active(self) -> bool:
        """Whether there is anybody to reduce with."""
        process_set = self.options.process_set
        if not process_set.included():
            return False
        return process_set.size() > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"

    def reduce(self, gradients: Sequence, variables: Sequence) -> list:
        """The reduced gradients, in the order of `variables`.

        Args:
            gradients: one per variable: a tensor of the backend, sparse ones included, or None.
            variables: the same on all ranks, in the same order.

        Returns:
            None where no rank has a gradient. Where another rank has one, a missing one counts as zero. In a graph that
            is so for the gradients that there are when it is first traced; traced again with other ones, None stays
            None, and if another rank has a gradient there the step fails on both. Gradients of local variables are
            not reduced, but divided by the number of ranks if so asked.

        Raises:
            ValueError: the ranks' variables or settings differ. HorovodInternalError or the framework's own error: the
                reduction failed, here or elsewhere.
        """
        gradients, variables = list(gradients), list(variables)
        if not self.active():
            return gradients
        travelling = self._travelling(variables)
        if self.options.scale_local_gradients:
            for index in set(range(len(variables))).difference(travelling):
                if gradients[index] is not None:
                    gradients[index] = self.backend.scaled(
                        gradients[index], 1.0 / self.options.process_set.size()
                    )
        if not travelling:
            return gradients
        if self.spread_overflow:
            self._spread_overflow(gradients, variables, set(travelling))
        reduced = self._reduce([gradients[i] for i in travelling], [variables[i] for i in travelling])
        for index, gradient in zip(travelling, reduced):
            gradients[index] = gradient
        return gradients

    def introduce(self, gradients: Sequence, variables: Sequence) -> list[int]:
        """Compare with the other ranks what will be reduced, for optimizers that first sum up several passes: a rank that
        reduces at once would wait for one that does not.

        Returns:
            Of which variables reduce() gives a gradient in a graph although this rank has none.

        Raises:
            ValueError: as reduce().
        """
        if not self.active():
            return []
        travelling = self._travelling(list(variables))
        own = [self._kind(gradients[i]) for i in travelling]
        if not travelling:
            return []
        plan, first = self._plan([variables[i] for i in travelling], own)
        if self.backend.mode() == "eager" or own != first:
            return []
        return [i for i, kind in zip(travelling, plan.kinds) if kind != NONE]

    def _travelling(self, variables: list) -> list[int]:
        """Which of the variables' gradients are reduced."""
        local = {id(self.backend.identity(v)) for v in self._local_variables()}
        return [i for i, v in enumerate(variables) if id(self.backend.identity(v)) not in local]

    def _spread_overflow(self, gradients: list, variables: list, travelling: set[int]) -> None:
        """Let all ranks see that a gradient which stays here is not finite: in one that travels."""
        here = [g for i, g in enumerate(gradients) if g is not None and i not in travelling]
        carriers = [i for i in sorted(travelling) if gradients[i] is not None]
        if not here or (not carriers and self.backend.mode() != "eager"):
            return
        factor = self.backend.nan_unless_finite(here)
        if not carriers:
            if float(factor) == 1.0:
                return
            carriers = [min(travelling)]
            gradients[carriers[0]] = self.backend.missing(variables[carriers[0]], DENSE)
        carrier = min(carriers, key=lambda i: bool(self.backend.sparse_kind(gradients[i])))
        gradients[carrier] = self.backend.scaled(gradients[carrier], factor)

    def _kind(self, gradient: Any) -> int:
        if gradient is None:
            return NONE
        return (not self.options.sparse_as_dense and self.backend.sparse_kind(gradient)) or DENSE

    def _local_variables(self) -> list:
        of_layers = (v for layer in self.options.local_layers for v in layer.trainable_weights)
        return [*self._registered, *of_layers]

    def _reduce(self, gradients: list, variables: list) -> list:
        own = [self._kind(g) for g in gradients]
        plan, first = self._plan(variables, own)
        if self.backend.mode() == "eager":
            return self._reduce_now(gradients, variables, own, plan)
        return self._reduce_in_graph(gradients, variables, own, plan, own == first)

    def _reduce_now(self, gradients: list, variables: list, own: list[int], plan: Plan) -> list:
        """Which variables have a gradient may change with every step, and differ between ranks."""
        kinds = plan.kinds
        told = plan.complete and DENSE in kinds  # who has what rides with the gradients
        if not told:
            here = [NONE if mine == NONE else agreed or mine for mine, agreed in zip(own, kinds)]
            kinds = agreement.agree_on_presence(here, plan, self.options.process_set)
        sent = [
            None if kind == NONE else self._fitting(gradient, variable, kind)
            for gradient, variable, kind in zip(gradients, variables, kinds)
        ]
        presence = [mine != NONE for mine in own] if told else None
        result, anywhere = self._exchange(sent, variables, kinds, plan, presence)
        if told and NONE in own:
            for index, there in enumerate(self.backend.marked(anywhere)):
                if not there:
                    result[index] = None
        return result

    def _reduce_in_graph(
        self, gradients: list, variables: list, own: list[int], plan: Plan, as_agreed: bool
    ) -> list:
        """What is traced is fixed, and a rank may trace anew alone. So each variable has an operation, also where no
        rank had a gradient of it: one that has it now meets what does not fit, and all get an error, not a wait."""
        backend = self.backend
        wanted = plan.kinds if as_agreed else own
        kinds = [agreed or DENSE for agreed in plan.kinds]
        sent = [
            backend.absent(variable, kind) if want == NONE else self._fitting(gradient, variable, kind)
            for gradient, variable, kind, want in zip(gradients, variables, kinds, wanted)
        ]
        absent = [index for index, want in enumerate(wanted) if want == NONE]
        if len(absent) == len(wanted):
            if not as_agreed:  # nothing will wait for our part
                for name in self._names(self._batches_of(sent, variables, kinds), plan):
                    backend.poison("allreduce", name, "no gradients here", self.options.process_set)
            return gradients
        result, _ = self._exchange(sent, variables, kinds, plan, None)
        outcomes = [result[index] for index in absent]
        for index in absent:
            result[index] = None
        return backend.after(outcomes, result)

    def _fitting(self, gradient: Any, variable: Any, kind: int) -> Any:
        """A gradient, or zeros for none, of the kind that was agreed on."""
        if gradient is None:
            return self.backend.missing(variable, kind)
        if (self.backend.sparse_kind(gradient) or DENSE) == kind:
            return gradient
        return self.backend.dense(gradient) if kind == DENSE else self.backend.sparse(gradient, kind)

    def _exchange(
        self, sent: list, variables: list, kinds: list[int], plan: Plan, presence: list[bool] | None
    ) -> tuple[list, Any]:
        """What comes of gradients of these kinds; and of `presence`, marks that are above 0 then where any rank's is."""
        backend = self.backend
        result: list = [None] * len(sent)
        batches = self._batches_of(sent, variables, kinds)
        outcomes, anywhere = backend.reduce(
            [[sent[i] for i in b] for b in batches],
            self._names(batches, plan),
            variables,
            self.options,
            presence,
        )
        for batch, tensors in zip(batches, outcomes):
            for index, tensor in zip(batch, tensors):
                result[index] = tensor
        for index, kind in enumerate(kinds):
            if kind not in (NONE, DENSE):
                name = f"keras.{plan.number}.sparse.{index}"
                result[index] = backend.reduce_sparse(sent[index], name, self.options)
        return result, anywhere

    def _names(self, batches: list[list[int]], plan: Plan) -> list[str]:
        return [f"keras.{plan.number}.gradient.{'.'.join(map(str, sorted({b[0], b[-1]})))}" for b in batches]

    def _plan(self, variables: list, own: list[int]) -> tuple[Plan, list[int]]:
        """What was agreed on, and the kinds that this rank had then."""
        # The variables are kept, so that their addresses stay theirs.
        mode = self.backend.mode()
        key = mode, *(id(self.backend.identity(v)) for v in variables)
        if key not in self._plans:
            settings = {**self.options.settings(), "mode": mode}
            described = [(*self.backend.described(v), kind) for v, kind in zip(variables, own)]
            plan = agreement.agree(Description(settings, described), self.options.process_set)
            self._plans[key] = plan, own, variables
        return self._plans[key][:2]

    def _batches_of(self, sent: list, variables: list, kinds: list[int]) -> list[list[int]]:
        return self._batches([i for i, kind in enumerate(kinds) if kind == DENSE], sent, variables)

    def _batches(self, indices: list[int], gradients: list, variables: list) -> list[list[int]]:
        """Which gradients are reduced in one operation."""
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
