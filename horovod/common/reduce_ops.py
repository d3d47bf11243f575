"""Reduce ops as Horovod's front ends take them: the constants, and the arguments ``op`` and ``average`` together."""

from __future__ import annotations

import warnings
from typing import Any

from hvd_core._frontend.operations import Adasum, Average, Max, Min, Product, Sum

__all__ = ["BOTH_GIVEN", "Adasum", "Average", "Max", "Min", "Product", "Sum", "op_from"]

BOTH_GIVEN = "The op parameter supersedes average. Please provide only one of them."


def op_from(op: int | None, average: Any, deprecated: bool = True, stacklevel: int = 3) -> int:
    """The reduce op that the arguments ``op`` and ``average`` mean together; Average if neither is given.

    Args:
        op: a reduce op, or None.
        average: None, or anything truthy for Average and falsy for Sum. Programs also pass a name in its place.
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
