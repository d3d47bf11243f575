"""Reduce ops. Callers number them as Horovod does: ``hvd.Average`` is 0. Data and a pure function; any thread."""

from __future__ import annotations

from typing import Any

from hvd_core.types import USER_REDUCTIONS

_NUMBER_OF = {reduction.label: number for number, reduction in USER_REDUCTIONS.items()}

Average = _NUMBER_OF["Average"]
Sum = _NUMBER_OF["Sum"]
Adasum = _NUMBER_OF["Adasum"]
Min = _NUMBER_OF["Min"]
Max = _NUMBER_OF["Max"]
Product = _NUMBER_OF["Product"]

ENGINE_NUMBERS = {number: reduction.number for number, reduction in USER_REDUCTIONS.items()}
"""The engine's number of each reduce op. Hot paths look an op up here, and call engine_number() if it is missing."""

OF_ENGINE_NUMBER = {number: op for op, number in ENGINE_NUMBERS.items()}


def text_of(op: Any) -> str:
    """A reduce op for messages: ``Min``; ``op=17`` for a value that is not a reduce op."""
    return USER_REDUCTIONS[op].label if isinstance(op, int) and op in USER_REDUCTIONS else f"op={op!r}"


def engine_number(op: Any) -> int:
    """The engine's number of a reduce op. Raises ValueError if ``op`` is not a reduce op."""
    try:
        return ENGINE_NUMBERS[op]
    except (KeyError, TypeError):
        raise ValueError(
            f"Unknown reduce op {op!r:.80}. Use hvd.Average, Sum, Min, Max, Product or Adasum."
        ) from None
