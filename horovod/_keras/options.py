"""The checked arguments of DistributedOptimizer. No Keras, no framework; any thread."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from horovod.common.arguments import (
    Average,
    Sum,
    check_backward_passes,
    check_groups,
    check_predivide_factor,
    check_registered,
    groups_from,
)
from horovod.common.process_sets import ProcessSet, global_process_set


@dataclass(frozen=True)
class Options:
    """The arguments of DistributedOptimizer that concern the reduction, under the same names."""

    name: str | None
    compression: Any
    sparse_as_dense: bool
    gradient_predivide_factor: float
    op: int
    backward_passes_per_step: int
    average_aggregated_gradients: bool
    groups: int | Sequence[Any] | None
    process_set: ProcessSet
    scale_local_gradients: bool
    local_layers: tuple[Any, ...]

    def without_variables(self) -> "Options":
        """These options without the parts that belong to one model: lists of variables, and layers."""
        groups = self.groups if isinstance(self.groups, int) else None
        return replace(self, groups=groups, local_layers=())

    def settings(self) -> dict[str, Any]:
        """The options that must be the same on all ranks, in a form that JSON can represent."""
        groups = self.groups if self.groups is None or isinstance(self.groups, int) else len(self.groups)
        return {
            "op": self.op,
            "gradient_predivide_factor": self.gradient_predivide_factor,
            "backward_passes_per_step": self.backward_passes_per_step,
            "compression": getattr(self.compression, "__name__", type(self.compression).__name__),
            "sparse_as_dense": bool(self.sparse_as_dense),
            "groups": groups,
        }


def checked(
    name: str | None,
    compression: Any,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Any] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    local_layers: Sequence[Any] = (),
) -> Options:
    """The arguments as Options.

    Raises:
        ValueError: an op other than Average and Sum; a factor without Average or not above 0; a number of passes that is
            not positive; bad groups; a process set that is not registered.
    """
    if op not in (Average, Sum) or isinstance(op, bool):
        raise ValueError("op currently only supports Average and Sum")
    check_predivide_factor(gradient_predivide_factor, op)
    check_backward_passes(backward_passes_per_step)
    groups = groups_from(num_groups, groups, stacklevel=5)
    check_groups(groups, "variables", lambda variable: True)
    check_registered(process_set, "DistributedOptimizer")
    return Options(
        name,
        compression,
        sparse_as_dense,
        float(gradient_predivide_factor),
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        groups,
        process_set,
        scale_local_gradients,
        tuple(local_layers),
    )
