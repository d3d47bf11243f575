"""Small helpers that programs written for Horovod import from here. Pure Python, any thread."""

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["is_iterable", "num_rank_is_power_2", "split_list"]


def num_rank_is_power_2(num_rank: int) -> bool:
    """True when `num_rank` is 1, 2, 4, 8, ...: the numbers of ranks that plain Adasum accepts."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Any], num_parts: int) -> list[list[Any]]:
    """Split `items` into `num_parts` runs whose lengths differ by at most one, the longer ones first.

    There are never more parts than items, and always at least one part.
    """
    num_parts = max(1, min(num_parts, len(items)))
    length, longer = divmod(len(items), num_parts)
    parts, start = [], 0
    for part in range(num_parts):
        end = start + length + (part < longer)
        parts.append(list(items[start:end]))
        start = end
    return parts


def is_iterable(value: Any) -> bool:
    """True when `value` can be iterated over."""
    return isinstance(value, Iterable)
