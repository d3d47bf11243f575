"""Names of the original Horovod's DistributedOptimizer that programs read, beside its documented methods.

A name that a known program reads exists here with its meaning. Other private names of the original raise an
AttributeError that names what took their place: an empty dictionary in the place of another bookkeeping would mislead.
Belongs to the thread of the optimizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from horovod.torch.compression import Compressor

if TYPE_CHECKING:
    from horovod.torch._reducer import GradientReducer

_HOOKS = (
    "the hooks belong to the optimizer; its public methods are synchronize(), skip_synchronize() and step()"
)
_COUNTS = "backward passes are counted by the optimizer; see backward_passes_per_step and set_backward_passes_per_step()"
_GROUPS = "groups are formed from the argument `groups`, which `_groups` holds"
_DELTAS = "with op=hvd.Adasum step() does the whole step; it has no parts that a program could call"

# The private names of the original, with what took their place here.
REPLACED = {
    "_handles": "poll and wait with optimizer.synchronize(), or call hvd.allreduce_async_() and hvd.synchronize()",
    "_grad_accs": _HOOKS,
    "_register_hooks": _HOOKS,
    "_register_hook": _HOOKS,
    "_make_hook": _HOOKS,
    "_allreduce_delay": _COUNTS,
    "_num_groups": _GROUPS,
    "_p_to_group": _GROUPS,
    "_group_counts": _GROUPS,
    "_grouped_allreduce_grad_async": _GROUPS,
    "_sparse_allreduce_grad_async": "_allreduce_grad_async() takes sparse gradients too",
    "_starting_models": _DELTAS,
    "_optimizer": "the class of the optimizer derives from that of the wrapped one, whose state it shares",
}
_OF_ADASUM = {
    "_allreduce_grad_async": _DELTAS,
    "_synchronized": _DELTAS,
    "_should_synchronize": _DELTAS,
    "gradient_predivide_factor": "it is an argument for op=hvd.Average",
    "sparse_as_dense": _DELTAS,
    "_groups": _DELTAS,
}


def _why(optimizer: Any, name: str, replaced: str) -> str:
    return (
        f"'{type(optimizer).__name__}' object has no attribute '{name}', a private name of Horovod 0.28's optimizer. "
        f"Here {replaced}."
    )


class OriginalNames:
    """Says what took the place of a name that an optimizer does not have. `_replaced_names`: by name."""

    _replaced_names = REPLACED

    def __getattr__(self, name: str) -> Any:
        # Called where a name is not found otherwise. An optimizer of a program may have such a method too.
        replaced = type(self)._replaced_names.get(name)
        if replaced is not None:
            raise AttributeError(_why(self, name, replaced), name=name, obj=self)
        inherited = getattr(super(), "__getattr__", None)
        if inherited is not None:
            return inherited(name)
        text = f"'{type(self).__name__}' object has no attribute '{name}'"
        raise AttributeError(text, name=name, obj=self)


class NamesOfReductions(OriginalNames):
    """The names that programs read, for an optimizer with a GradientReducer in `_reducer`."""

    _reducer: GradientReducer
    _asked_groups: int | list[Any] | None = None

    @property
    def gradient_predivide_factor(self) -> float:
        """The argument of DistributedOptimizer."""
        return self._reducer.factors[1]

    @property
    def sparse_as_dense(self) -> bool:
        """Whether sparse gradients are reduced as dense tensors."""
        return self._reducer.sparse_as_dense

    @property
    def _compression(self) -> type[Compressor]:
        """The class that compresses gradients."""
        return self._reducer.compression

    @property
    def _groups(self) -> int | list[Any] | None:
        """The argument `groups` of DistributedOptimizer."""
        return self._asked_groups

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        """The parameters whose gradients are reduced. A new set."""
        return set(self._reducer.slots)

    def _allreduce_grad_async(self, p: torch.Tensor) -> tuple[Any, Any]:
        """Start reducing the gradient of a parameter now, instead of the hook. synchronize() waits for it.

        Args:
            p: a parameter of the optimizer, with or without a gradient.

        Returns:
            The handle of the reduction, as `hvd.poll` takes it (a function for a sparse gradient), and the context of the
            compression.

        Raises:
            ValueError: the optimizer does not reduce the gradient of `p`.
        """
        return self._reducer.start(p)


class NamesOfAdasum(OriginalNames):
    """The names that programs read, for an optimizer with op=hvd.Adasum. `_compression` is an attribute of it."""

    _replaced_names = REPLACED | _OF_ADASUM
    param_groups: list[dict[str, Any]]

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        """The parameters whose changes are combined. A new set."""
        return {param for group in self.param_groups for param in group["params"] if param.requires_grad}
