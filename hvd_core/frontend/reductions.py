"""Reduce ops. Callers number them as Horovod does: ``hvd.Average`` is 0. Data and a pure function; any thread."""

from __future__ import annotations

from typing import Any

NAMES = ("Average", "Sum", "Adasum", "Min", "Max", "Product")
Average, Sum, Adasum, Min, Max, Product = range(6)

# As hvd/backend_abi.h and hvd/frontend_abi.h number them.
ENGINE_NUMBERS = {Average: 4, Sum: 0, Adasum: 100, Min: 2, Max: 3, Product: 1}
"""The engine's number of each reduce op. Hot paths look ops up here, and call engine_number() for what is missing."""

OF_ENGINE_NUMBER = {number: op for op, number in ENGINE_NUMBERS.items()}


def engine_number(op: Any) -> int:
    """The engine's number of a reduce op. Raises ValueError if ``op`` is not a reduce op."""
    try:
        return ENGINE_NUMBERS[op]
    except (KeyError, TypeError):
        raise ValueError(
            f"Unknown reduce op {op!r:.80}. Use hvd.Average, Sum, Min, Max, Product or Adasum."
        ) from None
