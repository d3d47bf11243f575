"""What a reduction must give by the ABI's rules, from NumPy in float64 (integers: exactly)."""

import functools
import hashlib

import numpy as np

from abi_ctypes import AVG, MAX, MIN, PROD, SUM
from table_driver import as_bfloat16, from_bfloat16

OPS = {"sum": SUM, "product": PROD, "min": MIN, "max": MAX, "average": AVG}
FOLD = {SUM: np.add, AVG: np.add, PROD: np.multiply, MIN: np.minimum, MAX: np.maximum}
# After so many elements, and after so many ranks, samples repeat themselves.
PERIOD = 251


def sample(dtype, rank, count):
    """Data that depends on rank and index; sums and products stay finite, and float32 sums of a few ranks are exact."""
    once = _period(dtype, rank % PERIOD)
    return np.tile(once, -(-count // PERIOD))[:count] if count > PERIOD else once[:count].copy()


@functools.cache
def _period(dtype, rank):
    i = np.arange(PERIOD, dtype=np.uint64)
    spread = (i * np.uint64(2654435761) + np.uint64(rank) * np.uint64(40503)) % np.uint64(PERIOD)
    if dtype == "bool":
        return (spread % 3 == 0).astype(bool)
    if dtype == "bfloat16":
        return as_bfloat16((spread.astype(np.float32) - 125) / 64)
    if dtype.startswith("float"):
        return ((spread.astype(np.float64) - 125) / 64).astype(dtype)
    return (spread.astype(np.int64) - (125 if dtype.startswith("int") else 0)).astype(dtype)


def columns_for(comm, dtype, count):
    """Each rank's sample, of which a rank needs its own; the first rank, which compares the results, needs all."""
    return [sample(dtype, r, count) if comm.rank in (0, r) else None for r in range(comm.size)]


def digest(array):
    """For results that must have the same bits on all ranks, so that the first rank alone compares the values."""
    return hashlib.sha256(array).hexdigest()


def same_bits(a, b):
    return np.array_equal(a.view(np.uint8), b.view(np.uint8))


def scaled(values, factor):
    """Integers by a factor in float64: truncated toward zero, held within the type."""
    limits = np.iinfo(values.dtype)
    exact = np.trunc(values.astype(np.float64) * factor)
    return np.clip(exact, limits.min, limits.max).astype(values.dtype)


def expected(dtype, op, columns, pre=1.0, post=1.0):
    """(value, tolerance) for one array per rank; the tolerance is relative to the largest intermediate."""
    if dtype == "bool":
        fold = np.logical_or if op in (SUM, MAX) else np.logical_and
        return fold.reduce(columns), 0.0
    if dtype == "bfloat16":
        columns = [from_bfloat16(c) for c in columns]
    if dtype.startswith(("float", "bfloat")):
        wide = (c.astype(np.float64) * pre if pre != 1 else c.astype(np.float64) for c in columns)
        value = functools.reduce(FOLD[op], wide)
        if op == AVG:
            value = value / len(columns)
        if post != 1:
            value = value * post
        return value, {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-6, "float64": 1e-14}[dtype]
    kind = np.dtype(dtype)
    columns = [scaled(c, pre) if pre != 1 else c for c in columns]
    if op == AVG:
        total = np.add.reduce([c.astype(np.int64) for c in columns])
        value = (np.sign(total) * (np.abs(total) // len(columns))).astype(kind)
    else:
        value = columns[0]
        for c in columns[1:]:
            value = FOLD[op](value, c)  # wraps as the type does
    if post != 1:
        value = scaled(value, post)
    return value, 0.0


def check(got, dtype, op, columns, what, **factors):
    """Raises AssertionError, saying what, when `got` is not what the ranks' columns reduce to."""
    # Samples repeat themselves. Where the result does so too, its first period stands for all of it.
    if got.size > PERIOD and all(np.array_equal(a[PERIOD:], a[:-PERIOD]) for a in (got, *columns)):
        got, columns = got[:PERIOD], [c[:PERIOD] for c in columns]
    value, tolerance = expected(dtype, op, columns, **factors)
    if tolerance == 0.0:
        assert np.array_equal(got, value), (
            f"{what}: {got[got != value][:4]} instead of {value[got != value][:4]}"
        )
        return
    got = from_bfloat16(got) if dtype == "bfloat16" else got
    scale = max(1.0, float(np.max(np.abs(value), initial=0.0)))
    worst = np.max(np.abs(got.astype(np.float64) - value), initial=0.0)
    assert worst <= tolerance * scale, f"{what}: off by {worst}, allowed {tolerance * scale}"


def pieces(column, lengths):
    """The column cut into one buffer for each length."""
    ends = np.cumsum(lengths).tolist()
    return [column[end - n : end] for n, end in zip(lengths, ends, strict=True)]


def check_sums(outs, columns, what):
    """Raises AssertionError unless the buffers behind each other are the exact sum of the ranks' float32 columns."""
    got = np.concatenate(outs)
    wanted = np.add.reduce(columns, dtype=np.float64)
    wrong = np.flatnonzero(got != wanted)
    if wrong.size:
        buffer = np.searchsorted(np.cumsum([out.size for out in outs]), wrong[0], "right")
        raise AssertionError(f"buffer {buffer}, {what}: {got[wrong[:4]]} instead of {wanted[wrong[:4]]}")
