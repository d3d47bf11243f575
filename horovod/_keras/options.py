"""The checked arguments of DistributedOptimizer. No Keras, no framework; any thread."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from horovod.common.arguments import (
    Average,
    Sum,
    check_backward_passes,
    check_groups,
    check_predivide_factor,
    check_registered,
)
from horovod.common.compression import NoneCompressor
from horovod.common.process_sets import ProcessSet, global_process_set

_Options = TypeVar("_Options")


def from_arguments(kind: type[_Options], arguments: dict[str, Any]) -> _Options:
    """An instance of a dataclass, whose fields get the arguments of their names.

    Args:
        arguments: of the calling function, as locals() returns them; others than those of the fields are left out.
    """
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: value for name, value in arguments.items() if name in names})


@dataclass(frozen=True)
class Options:
    """The arguments of DistributedOptimizer that concern the reduction, under the same names.

    Raises:
        ValueError: an op other than Average and Sum; a factor without Average or not above 0; a number of passes that is
            not positive; bad groups; a process set that is not registered.
    """

    name: str | None = None
    compression: Any = NoneCompressor
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: int = Average
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    groups: int | Sequence[Any] | None = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    local_layers: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.op not in (Average, Sum) or isinstance(self.op, bool):
            raise ValueError("op currently only supports Average and Sum")
        check_predivide_factor(self.gradient_predivide_factor, self.op)
        check_backward_passes(self.backward_passes_per_step)
        check_groups(self.groups, "variables", lambda variable: True)
        check_registered(self.process_set, "DistributedOptimizer")

    def without_variables(self) -> "Options":
        """These options without the parts that belong to one model: lists of variables, and layers."""
        groups = self.groups if isinstance(self.groups, int) else None
        return replace(self, groups=groups, local_layers=())

    def settings(self) -> dict[str, Any]:
        """The options that must be the same on all ranks, in a form that JSON can represent."""
        groups = self.groups if self.groups is None or isinstance(self.groups, int) else len(self.groups)
        return {
            "op": self.op,
            "gradient_predivide_factor": float(self.gradient_predivide_factor),
            "backward_passes_per_step": self.backward_passes_per_step,
            "compression": getattr(self.compression, "__name__", type(self.compression).__name__),
            "sparse_as_dense": bool(self.sparse_as_dense),
            "groups": groups,
        }


def list_of_layers(local_layers: Any) -> tuple[Any, ...]:
    """The argument `local_layers` (a layer of Keras or a list of them) as a tuple. Raises ValueError for other values."""
    if local_layers is None:
        return ()
    listed = tuple(local_layers) if isinstance(local_layers, (list, tuple, set)) else (local_layers,)
    for entry in listed:
        if not hasattr(entry, "trainable_weights"):
            raise ValueError(
                f"local_layers takes a Keras layer or a list of them, but found {type(entry).__name__}: {entry!r:.80}."
            )
    return listed
