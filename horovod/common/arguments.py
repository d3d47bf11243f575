"""Arguments that the front ends' operations, optimizers and gradient tapes have in common. Pure functions.

The messages are the same in all front ends; some are Horovod's, which programs compare.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from horovod.common.process_sets import ProcessSet
from hvd_core._frontend.operations import Adasum, Average, Max, Min, Product, Sum

__all__ = [
    "BOTH_GIVEN",
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "check_backward_passes",
    "check_groups",
    "check_predivide_factor",
    "check_registered",
    "groups_from",
    "op_from",
    "predivide_factors",
]


BOTH_GIVEN = "The op parameter supersedes average. Please provide only one of them."


def op_from(op: int | None, average: Any, deprecated: bool = True, stacklevel: int = 3) -> int:
    """The reduce op that the arguments ``op`` and ``average`` mean together; Average if neither is given.

    Args:
        op: a reduce op, or None.
        average: None, or anything truthy for Average and falsy for Sum. Programs also pass a name instead.
        deprecated: warn that ``average`` is deprecated.
        stacklevel: of the warning; 3 is the caller of the function that calls this.

    Raises:
        ValueError: both are given.
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError(BOTH_GIVEN)
    if deprecated:
        warnings.warn(
            "Parameter `average` has been replaced with `op`; use op=hvd.Average or op=hvd.Sum.",
            DeprecationWarning,
            stacklevel=stacklevel,
        )
    return Average if average else Sum


def check_backward_passes(passes: int) -> None:
    """Raises ValueError unless ``backward_passes_per_step`` is above 0."""
    if passes <= 0:
        raise ValueError(f"backward_passes_per_step must be > 0, but is {passes!r}.")


def check_predivide_factor(gradient_predivide_factor: float, op: int) -> None:
    """Raises ValueError for a factor that is not above 0, or that is given with an ``op`` other than Average."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if gradient_predivide_factor <= 0:
        raise ValueError(f"gradient_predivide_factor must be > 0, but is {gradient_predivide_factor!r}.")


def predivide_factors(gradient_predivide_factor: float) -> tuple[float, float]:
    """(prescale_factor, postscale_factor) that divide by the factor before the sum and multiply by it afterwards."""
    return 1.0 / gradient_predivide_factor, float(gradient_predivide_factor)


def check_registered(process_set: ProcessSet, caller: str) -> None:
    """Raises ValueError for a process set that is not registered. ``caller``: for the message, "DistributedOptimizer"."""
    if process_set.process_set_id is None:
        raise ValueError(
            f"{caller} got a process set that does not exist, or has not been registered: {process_set}. "
            "Pass it to hvd.init(process_sets=...) or hvd.add_process_set() first."
        )


def groups_from(num_groups: int, groups: Any, stacklevel: int = 3) -> Any:
    """The argument ``groups``, or the deprecated ``num_groups`` instead. Warns about the latter; 3 is the caller of
    the function that calls this."""
    if not num_groups:
        return groups
    warnings.warn(
        "Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=stacklevel
    )
    return num_groups if groups is None else groups


def check_groups(
    groups: Any,
    member: str,
    is_member: Callable[[Any], bool],
    identity: Callable[[Any], Any] = id,
    zero_is_allowed: bool = False,
) -> None:
    """Check the argument ``groups``.

    Args:
        groups: None, a positive number of groups, or a list of lists of parameters or variables.
        member: the kind of the lists' members, for the messages: "parameters".
        is_member: whether a value is one of these.
        identity: a key that is equal for two objects that are the same parameter.
        zero_is_allowed: accept 0 groups.

    Raises:
        ValueError: `groups` is something else, or two of its members are the same.
    """
    least = 0 if zero_is_allowed else 1
    if groups is None or (isinstance(groups, int) and not isinstance(groups, bool) and groups >= least):
        return
    wanted = f"a {'non-negative' if zero_is_allowed else 'positive'} integer or a list of lists of {member}"
    if not isinstance(groups, (list, tuple)):
        raise ValueError(f"groups should be {wanted}, not {groups!r:.200}.")
    members: list[Any] = []
    for group in groups:
        if not isinstance(group, (list, tuple)) or not all(is_member(value) for value in group):
            raise ValueError(f"groups should be {wanted}, but it contains {group!r:.80}.")
        members.extend(identity(value) for value in group)
    if len(set(members)) != len(members):
        raise ValueError("A parameter or variable can only appear once in groups.")
