"""What every collective must give, from NumPy: floats in float64, integers exactly. For the engine's tests.

An array per rank goes in, an array per rank comes out (`Expected`), with the tolerance that the dtype allows.
Knows nothing of the engine. Any thread.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

try:
    import ml_dtypes

    BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    BFLOAT16 = None

FOLD = {
    "Sum": np.add,
    "Average": np.add,
    "Product": np.multiply,
    "Min": np.minimum,
    "Max": np.maximum,
}
# Of the largest value that occurs on the way. The 16-bit types may be rounded once per level of a hierarchy.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-6, "float64": 1e-14}
# After so many elements, samples repeat themselves.
PERIOD = 251


class Expected(NamedTuple):
    arrays: list[np.ndarray]  # one per rank of the set; floats that were computed as float64
    tolerance: float  # absolute
    same_everywhere: bool


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype == BFLOAT16


def sample(dtype: np.dtype, rank: int, shape: tuple[int, ...] | int, salt: int = 0) -> np.ndarray:
    """Data that depends on rank, index and salt; small enough for sums and products of a few ranks to be finite."""
    return np.resize(_period(dtype, rank, salt), shape)


@functools.cache
def _period(dtype: np.dtype, rank: int, salt: int) -> np.ndarray:
    """The values of sample() until they repeat."""
    i = np.arange(PERIOD, dtype=np.uint64)
    spread = (i * np.uint64(2654435761) + np.uint64(rank * 40503 + salt * 69069 + 17)) % np.uint64(PERIOD)
    if dtype == np.bool_:
        values = spread % 3 == 0
    elif is_float(dtype):
        values = (spread.astype(np.float64) - 125) / 64
    else:
        values = spread.astype(np.int64) - (125 if dtype.kind == "i" else 0)
    return values.astype(dtype)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if is_float(array.dtype) else array


def _scale_integers(values: np.ndarray, factor: float) -> np.ndarray:
    limits = np.iinfo(values.dtype)
    exact = np.trunc(values.astype(np.float64) * factor)
    return np.clip(exact, limits.min, limits.max).astype(values.dtype)


def reduced(
    op: str, columns: list[np.ndarray], pre: float = 1.0, post: float = 1.0, divisor: int = 0
) -> tuple[np.ndarray, float]:
    """The reduction of one array per rank, and how far off a result may be.

    `divisor`: what averages divide by; the number of columns unless ranks have joined.
    """
    divisor = divisor or len(columns)
    dtype = columns[0].dtype
    if dtype == np.bool_:
        return functools.reduce(np.logical_or if op in ("Sum", "Max") else np.logical_and, columns), 0.0
    if is_float(dtype):
        wide = [c.astype(np.float64) * pre for c in columns]
        value = functools.reduce(FOLD[op], wide) / (divisor if op == "Average" else 1) * post
        largest = max(1.0, _largest(value), *map(_largest, wide))
        return value, TOLERANCE[dtype.name] * largest * len(columns)
    if pre != 1:
        columns = [_scale_integers(c, pre) for c in columns]
    if op == "Average":
        total = functools.reduce(np.add, [c.astype(np.int64) for c in columns])
        value = (np.sign(total) * (np.abs(total) // divisor)).astype(dtype)
    else:
        value = columns[0].copy()
        for c in columns[1:]:
            value = FOLD[op](value, c)  # wraps as the type does
    return (_scale_integers(value, post) if post != 1 else value), 0.0


def _largest(values: np.ndarray) -> float:
    """The largest magnitude; NaN if there is one."""
    return max(float(np.max(values, initial=0.0)), -float(np.min(values, initial=0.0)))


def adasum(columns: list[np.ndarray]) -> tuple[np.ndarray, float]:
    """Pairs at distance 1, 2, 4...; ranks beyond the largest power of two are combined into the first ones before."""
    tolerance = TOLERANCE[columns[0].dtype.name] * 8 * len(columns)
    values = [c.astype(np.float64) for c in columns]
    power = 1 << (len(values).bit_length() - 1)
    for extra in range(power, len(values)):
        values[extra - power] = _combine(values[extra - power], values[extra])
    values = values[:power]
    while len(values) > 1:
        values = [_combine(a, b) for a, b in zip(values[::2], values[1::2])]
    return values[0], tolerance * max(1.0, _largest(values[0]))


def _combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dot, aa, bb = float(np.sum(a * b)), float(np.sum(a * a)), float(np.sum(b * b))
    tiny = np.sqrt(np.finfo(np.float64).tiny)
    return a * (1.0 if aa < tiny else 1 - dot / (2 * aa)) + b * (1.0 if bb < tiny else 1 - dot / (2 * bb))


def allreduce(op: str, columns: list[np.ndarray], pre: float = 1.0, post: float = 1.0) -> Expected:
    value, tolerance = adasum(columns) if op == "Adasum" else reduced(op, columns, pre, post)
    return Expected([value] * len(columns), tolerance, True)


def allgather(columns: list[np.ndarray]) -> Expected:
    return Expected([np.concatenate(columns)] * len(columns), 0.0, True)


def broadcast(root: int, columns: list[np.ndarray]) -> Expected:
    """`root` is an index into the columns."""
    return Expected([columns[root]] * len(columns), 0.0, True)


def alltoall(columns: list[np.ndarray], splits: list[list[int]]) -> Expected:
    """`splits[r]`: how many rows rank r sends to each."""
    ends = [np.concatenate([[0], np.cumsum(s)]) for s in splits]
    received = [
        np.concatenate([c[ends[s][r] : ends[s][r + 1]] for s, c in enumerate(columns)])
        for r in range(len(columns))
    ]
    return Expected(received, 0.0, False)


def reducescatter(op: str, columns: list[np.ndarray], pre: float = 1.0, post: float = 1.0) -> Expected:
    return scattered(allreduce(op, columns, pre, post))


def scattered(whole: Expected) -> Expected:
    """The rows of an allreduce's result, as reducescatter gives them to the ranks."""
    value, size = whole.arrays[0], len(whole.arrays)
    share, more = divmod(len(value), size)
    ends = np.cumsum([0] + [share + (r < more) for r in range(size)])
    return Expected([value[ends[r] : ends[r + 1]] for r in range(size)], whole.tolerance, False)


def difference(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> str:
    """The difference between a result and the wanted one, in words; empty when they agree."""
    if got.shape != wanted.shape:
        return f"shape {got.shape} instead of {wanted.shape}"
    if got.size == 0 or (tolerance == 0 and got.dtype == wanted.dtype and np.array_equal(got, wanted)):
        return ""
    off = np.abs(_wide(got) - _wide(wanted)) if is_float(got.dtype) else (got != wanted).astype(np.float64)
    if off.max() <= tolerance:  # never true with a NaN
        return ""
    off = np.where(np.isnan(off), np.inf, off)
    worst = int(np.argmax(off.ravel()))
    if off.ravel()[worst] <= tolerance:
        return ""
    return (
        f"element {worst} of {got.size} is {got.ravel()[worst]!r} instead of {wanted.ravel()[worst]!r} "
        f"({int(np.count_nonzero(off > tolerance))} are wrong)"
    )
