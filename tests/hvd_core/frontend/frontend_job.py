"""For tests of the table of functions: the options of their jobs, the table, and the values that ranks contribute."""

from __future__ import annotations

import functools

import numpy as np

import hvd_core as hvd
import native_table as nt

JOB = {"process_sets": "dynamic"}


@functools.cache
def table() -> nt.Table:
    """It outlives the engines of a process."""
    return nt.Table(hvd.frontend_table())


def ways():
    """(verb, options) for each way to pass a call to the table."""
    return (
        ("run", {}),
        ("submit", {}),
        ("submit", {"urgent": True}),
        ("submit", {"urgent": True, "stay_ns": 100_000}),
    )


def data(of: int, shape: tuple, dtype: str, seed: int = 0) -> np.ndarray:
    """The values that rank `of` contributes: small whole numbers, different ones at each index."""
    count = int(np.prod(shape, dtype=np.int64))
    values = (np.arange(count) * 7 + of * 3 + seed) % 4 + 1
    return values.reshape(shape).astype(dtype)


def everyone(shape: tuple, dtype: str, seed: int = 0, ranks: list[int] | None = None) -> np.ndarray:
    members = range(hvd.size()) if ranks is None else ranks
    return np.stack([data(r, shape, dtype, seed).astype(np.float64) for r in members])


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape, (found.shape, expected.shape)
    np.testing.assert_allclose(
        found.astype(np.float64), expected, rtol=2e-3 if found.dtype.itemsize < 4 else 1e-6
    )
