"""The checked arguments of DistributedOptimizer. No Keras, no framework; any thread."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from horovod.common.basics import HorovodBasics
from horovod.common.process_sets import ProcessSet, global_process_set

Average, Sum = HorovodBasics.Average, HorovodBasics.Sum


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
    groups: int | Sequence | None
    process_set: ProcessSet
    scale_local_gradients: bool
    local_layers: tuple

    def without_variables(self) -> "Options":
        """These options without the parts that belong to one model: lists of variables, and layers."""
        groups = self.groups if isinstance(self.groups, int) else None
        return replace(self, groups=groups, local_layers=())

    def settings(self) -> dict:
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
    groups: int | Sequence | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    local_layers: Sequence = (),
) -> Options:
    """The arguments as Options.

    Raises:
        ValueError: an op other than Average and Sum; a factor without Average or not above 0; a number of passes that is
            not positive; bad groups; a process set that is not registered.
    """
    if op not in (Average, Sum) or isinstance(op, bool):
        raise ValueError("op currently only supports Average and Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if gradient_predivide_factor <= 0:
        raise ValueError(f"gradient_predivide_factor must be > 0, but is {gradient_predivide_factor!r}.")
    if backward_passes_per_step <= 0:
        raise ValueError(f"backward_passes_per_step must be > 0, but is {backward_passes_per_step!r}.")
    if num_groups:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=5
        )
        groups = num_groups if groups is None else groups
    if groups is not None:
        _check_groups(groups)
    if process_set.process_set_id is None:
        raise ValueError(
            f"DistributedOptimizer got a process set that does not exist, or has not been registered: {process_set}. "
            "Pass it to hvd.init(process_sets=...) or hvd.add_process_set() first."
        )
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


def _check_groups(groups: Any) -> None:
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        return
    if not isinstance(groups, (list, tuple)) or not all(isinstance(g, (list, tuple)) for g in groups):
        raise ValueError(
            f"groups should be a positive integer or a list of lists of variables, not {groups!r:.200}."
        )
    members = [id(variable) for group in groups for variable in group]
    if len(set(members)) != len(members):
        raise ValueError("A variable can only appear once in groups.")
