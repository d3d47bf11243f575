"""How many rows (entries of dimension 0) each rank gets. Pure functions; any thread."""

from __future__ import annotations

import operator
from typing import Any


def scattered_rows(rows: int, ranks: int, rank: int) -> int:
    """The rows that one rank of a process set gets in a reducescatter: the first ``rows % ranks`` ranks get one more.

    Args:
        rows: dimension 0 of the tensor.
        ranks: the size of the set.
        rank: the place of the rank in the set, from 0.
    """
    return rows // ranks + (1 if rank < rows % ranks else 0)


def row_counts(splits: Any) -> list[int]:
    """The ``splits`` of an alltoall as a list of ints, one for each rank of the set.

    Raises:
        ValueError: ``splits`` is not a sequence of integers. Whether they fit the tensor, the engine checks.
    """
    try:
        entries = list(splits)
    except TypeError:
        raise ValueError(f"alltoall expects a 1D splits tensor, not {splits!r:.80}.") from None
    try:
        return [operator.index(entry) for entry in entries]
    except TypeError:
        raise ValueError(
            f"alltoall expects splits to contain 32-bit integer elements, not {splits!r:.80}."
        ) from None
