"""Which tensors the ranks have alike when a state is sent: ranks that are in step need not send them.

After a death all survivors have restored the same commit, so nothing has to be sent but what they have for themselves
(the running statistics of a batch norm, say). Each rank computes a short sum over each tensor, which takes a fraction of
the time that sending does, and the sums are compared. One thread of a rank calls all of this.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import hvd_core

__all__ = ["alike", "is_in_step", "sync"]

# A prime number of words, so that no common shape repeats in a column.
_COLUMNS = 1021
_in_step = False


@contextlib.contextmanager
def sync(in_step: bool) -> Iterator[None]:
    """A context in which states are sent. `in_step`: all ranks have restored the same commit; equal on all ranks."""
    global _in_step
    _in_step = in_step
    try:
        yield
    finally:
        _in_step = False


def is_in_step() -> bool:
    """Whether alike() compares anything."""
    return _in_step


def alike(arrays: Sequence[Any]) -> list[bool]:
    """Whether each of the arrays is the same on all ranks. If the ranks are not in step, all of them count as different.

    A collective call of all ranks, with the copies that they have restored. Raises HorovodInternalError: a rank is gone.

    Args:
        arrays: what np.asarray() takes, best without a copy. None, or an array of objects, is never the same.
    """
    if not _in_step or not arrays:
        return [False] * len(arrays)
    found = [None if array is None else np.asarray(array) for array in arrays]
    found = [None if array is None or array.dtype.hasobject else array for array in found]
    sums = np.stack([_sum_of(array) for array in found])
    of_ranks = hvd_core.allgather(sums, "horovod.elastic.sums").reshape(-1, 2)
    if len(of_ranks) != len(sums) * hvd_core.size():
        return [False] * len(arrays)
    same = (of_ranks.reshape(hvd_core.size(), len(sums), 2) == sums).all(axis=(0, 2))
    return [array is not None and bool(ok) for array, ok in zip(found, same)]


def _sum_of(array: np.ndarray | None) -> np.ndarray:
    """128 bits that differ if the array does: a hash of the sums of the columns, as a hash of all bytes takes longer than
    sending them."""
    found = hashlib.blake2b(digest_size=16)
    if array is not None:
        whole = np.ascontiguousarray(array)
        found.update(f"{whole.dtype} {whole.shape}".encode())
        data = whole.reshape(-1).view(np.uint8)
        rows = data.nbytes // (8 * _COLUMNS)
        if rows > 8:
            summed = data[: rows * 8 * _COLUMNS]
            found.update(summed.view(np.uint64).reshape(rows, _COLUMNS).sum(axis=0))
            data = data[summed.nbytes :]
        found.update(data)
    return np.frombuffer(found.digest(), np.int64)
