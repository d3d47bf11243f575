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


class GradientReducer:
    """Reduces lists of gradients for one optimizer."""

    def __init__(self, options: Options, backend: Backend):
        self.options = options
        self.backend = backend
        self._registered: list[Any] = []
        self._plans: dict[tuple, tuple[Plan, list]] = {}

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
            None where no rank has a gradient. Where another rank has one, a missing one counts as zero. Gradients of
            local variables are not reduced, but divided by the number of ranks if so asked.

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
        reduced = self._reduce([gradients[i] for i in travelling], [variables[i] for i in travelling])
        for index, gradient in zip(travelling, reduced):
            gradients[index] = gradient
        return gradients

    def introduce(self, gradients: Sequence, variables: Sequence) -> None:
        """Compare with the other ranks what will be reduced, for optimizers that first sum up several passes: a rank that
        reduces at once would wait for one that does not.

        Raises:
            ValueError: as reduce().
        """
        if self.active():
            travelling = self._travelling(list(variables))
            own = [self._kind(gradients[i]) for i in travelling]
            if travelling:
                self._plan([variables[i] for i in travelling], own)

    def _travelling(self, variables: list) -> list[int]:
        """Which of the variables' gradients are reduced."""
        local = {id(self.backend.identity(v)) for v in self._local_variables()}
        return [i for i, v in enumerate(variables) if id(self.backend.identity(v)) not in local]

    def _kind(self, gradient: Any) -> int:
        if gradient is None:
            return NONE
        return (not self.options.sparse_as_dense and self.backend.sparse_kind(gradient)) or DENSE

    def _local_variables(self) -> list:
        of_layers = (v for layer in self.options.local_layers for v in layer.trainable_weights)
        return [*self._registered, *of_layers]

    def _reduce(self, gradients: list, variables: list) -> list:
        backend = self.backend
        if self.options.sparse_as_dense:
            gradients = [backend.dense(g) if backend.sparse_kind(g) else g for g in gradients]
        own = [self._kind(g) for g in gradients]
        plan = self._plan(variables, own)
        kinds = plan.kinds
        if not plan.complete and backend.mode() == "eager":
            kinds = agreement.agree_on_presence(own, plan, self.options.process_set)
        self._check_kinds(own, kinds, variables)
        gradients = [
            backend.missing(variable, kind) if gradient is None and kind != NONE else gradient
            for gradient, variable, kind in zip(gradients, variables, kinds)
        ]
        prefix = f"keras.{plan.number}"
        dense = [i for i, kind in enumerate(kinds) if kind == DENSE]
        result: list = [None] * len(gradients)
        batches = self._batches(dense, gradients, variables)
        names = [f"{prefix}.gradient.{'.'.join(map(str, sorted({b[0], b[-1]})))}" for b in batches]
        outcomes = backend.reduce(
            [[gradients[i] for i in b] for b in batches], names, variables, self.options
        )
        for batch, tensors in zip(batches, outcomes):
            for index, tensor in zip(batch, tensors):
                result[index] = tensor
        for index, kind in enumerate(kinds):
            if kind not in (NONE, DENSE):
                name = f"{prefix}.sparse.{index}"
                result[index] = backend.reduce_sparse(gradients[index], name, self.options)
        return result

    def _plan(self, variables: list, own: list[int]) -> Plan:
        # The variables are kept, so that their addresses stay theirs.
        key = tuple(id(self.backend.identity(v)) for v in variables)
        if key not in self._plans:
            settings = {**self.options.settings(), "mode": self.backend.mode()}
            described = [(*self.backend.described(v), kind) for v, kind in zip(variables, own)]
            plan = agreement.agree(Description(settings, described), self.options.process_set)
            self._plans[key] = plan, variables
        return self._plans[key][0]

    def _check_kinds(self, own: list[int], kinds: list[int], variables: list) -> None:
        for mine, agreed, variable in zip(own, kinds, variables):
            if mine not in (NONE, agreed):
                raise ValueError(
                    f"The gradient of {self.backend.described(variable)[0]} is of another kind than when ranks agreed "
                    "on what they reduce: there was none then, or it has become dense or sparse. Make a new "
                    "DistributedOptimizer (and compile the model with it), on all ranks."
                )

    def _batches(self, indices: list[int], gradients: list, variables: list) -> list[list[int]]:
        """Which gradients are reduced in one operation."""
        groups = self.options.groups
        if groups is None:
            return self.backend.batches(indices, gradients)
        if isinstance(groups, int):
            return [part for part in split_list(indices, groups) if part] if indices else []
        number = {id(self.backend.identity(v)): n for n, group in enumerate(groups) for v in group}
        members: dict[Any, list[int]] = {}
        for index in indices:
            group = number.get(id(self.backend.identity(variables[index])), f"alone.{index}")
            members.setdefault(group, []).append(index)
        return list(members.values())
