"""The arithmetic of prescale_factor and postscale_factor on two ranks, in NumPy, and the comparison of bits.

The rule is that of Horovod 0.28:
  float32, float64   value * factor, both in the element's type
  float16, bfloat16  float32(value) * float32(factor), rounded to the type; sums are rounded to the type likewise
  integers           float64(value) * factor, truncated toward zero
prescale_factor multiplies before the sum, postscale_factor after it. An average is a sum with postscale_factor / ranks.
"""

from __future__ import annotations

import numpy as np

import hvd_core as hvd
from expected import BFLOAT16, is_float

DTYPES = [
    np.dtype(t)
    for t in ("float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "int64")
] + ([BFLOAT16] if BFLOAT16 else [])
THIRD = 1.0 / 3.0
FACTORS = (
    (0.3, 1.0),
    (1.0, 1.7),
    (0.3, 1.7),
    (THIRD, 3.0),
    (0.5, 1.0),
    (1.0, 0.25),
    (2.0, 1.0),
    (1e-3, 700.0),
)
COUNT = 3001  # no multiple of what vectors hold


def values(dtype: np.dtype, rank: int) -> np.ndarray:
    """Random elements. Floats: of size one, of every exponent, subnormal, infinite; integers: of every size."""
    random = np.random.default_rng(1000 * rank + dtype.num)
    if not is_float(dtype):
        limits = np.iinfo(dtype)
        shift = random.integers(1, dtype.itemsize * 8 - 1, COUNT)
        wide = random.integers(int(limits.min) // 2, int(limits.max) // 2, COUNT, dtype=np.int64)
        return (wide >> shift).astype(dtype)
    near = random.normal(size=COUNT).astype(dtype)
    bits = random.integers(0, 256, COUNT * dtype.itemsize, dtype=np.uint8).view(dtype)
    every = np.where(np.isnan(bits.astype(np.float64)), dtype.type(1), bits)
    small = (bits.view(f"u{dtype.itemsize}") >> (6 if dtype.itemsize == 2 else 9)).view(dtype)
    kind = random.integers(0, 4, COUNT)
    chosen = np.where(kind < 2, near, np.where(kind == 2, every, small)).astype(dtype)
    chosen[:: COUNT // 5] = np.inf if rank == 0 else -1.5
    return chosen


def scaled(x: np.ndarray, factor: float) -> np.ndarray:
    if factor == 1:
        return x
    if x.dtype == np.float64:
        return x * np.float64(factor)
    if is_float(x.dtype):
        return (x.astype(np.float32) * np.float32(factor)).astype(x.dtype)
    return np.trunc(x.astype(np.float64) * factor).astype(x.dtype)


def wanted(op: str, columns: list[np.ndarray], pre: float, post: float) -> np.ndarray:
    """What the rule gives. Results that a type cannot hold are the caller's care: see held()."""
    first, second = (scaled(c, pre) for c in columns)
    computed = np.float32 if is_float(first.dtype) and first.itemsize == 2 else first.dtype
    total = (first.astype(computed) + second.astype(computed)).astype(first.dtype)
    return scaled(total, post / len(columns) if op == "Average" else post)


def held(op: str, columns: list[np.ndarray], pre: float, post: float) -> np.ndarray:
    """Where every product of integers fits its type: what happens to the others is not agreed upon."""
    dtype = columns[0].dtype
    if is_float(dtype):
        return np.ones(COUNT, bool)
    limits = np.iinfo(dtype)
    steps = [np.abs(c.astype(np.float64)) * max(1.0, abs(pre)) for c in columns]
    total = sum(steps) * max(1.0, abs(post))
    return (total < limits.max * 0.99) & np.logical_and.reduce([s < limits.max * 0.99 for s in steps])


def differences(got: np.ndarray, want: np.ndarray, where: np.ndarray) -> str:
    """The first elements whose bits differ, in words. All NaNs are equal."""
    kind = f"u{want.dtype.itemsize}"
    off = (got.view(kind) != want.view(kind)) & where
    if is_float(want.dtype):
        off &= ~(np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))
    at = np.flatnonzero(off)
    return "" if at.size == 0 else f"{at.size} differ, [{at[0]}] {got[at[0]]!r} instead of {want[at[0]]!r}"


def check_bits() -> None:
    """On two ranks: allreduce, reducescatter and fused groups of every dtype, with factors, give the rule's bits."""
    me = hvd.rank()
    assert hvd.size() == 2
    wrong = []
    with np.errstate(all="ignore"):
        for pre, post in FACTORS:
            for op in ("Sum", "Average"):
                factors = {"op": getattr(hvd, op), "prescale_factor": pre, "postscale_factor": post}
                columns = [[values(dtype, rank) for rank in (0, 1)] for dtype in DTYPES]
                results = [wanted(op, pair, pre, post) for pair in columns]
                masks = [held(op, pair, pre, post) for pair in columns]
                handles = [hvd.allreduce_async(pair[me], **factors) for pair in columns]
                kinds = {"allreduce": [hvd.synchronize(h) for h in handles]}
                kinds["group"] = hvd.grouped_allreduce([pair[me] for pair in columns], **factors)
                for kind, said in kinds.items():
                    for got, want, mask in zip(said, results, masks):
                        found = differences(got, want, mask)
                        if found:
                            wrong.append(f"{kind} {op} {want.dtype} by {pre:g}, {post:g}: {found}")
                begin, end = (0, (COUNT + 1) // 2) if me == 0 else ((COUNT + 1) // 2, COUNT)
                said = hvd.grouped_reducescatter([pair[me] for pair in columns], **factors)
                for got, want, mask in zip(said, results, masks):
                    found = differences(got, want[begin:end], mask[begin:end])
                    if found:
                        wrong.append(f"reducescatter {op} {want.dtype} by {pre:g}, {post:g}: {found}")
    assert not wrong, f"{len(wrong)} of the cases:\n" + "\n".join(wrong)


if __name__ == "__main__":
    hvd.init()
    check_bits()
    print("done")


def check_quotient_that_is_too_small() -> None:
    """postscale_factor / ranks may be too small for a double: the results are 0 (nearly, for float64), not unscaled."""
    for dtype in DTYPES:
        for tiny in (5e-324, -5e-324):
            ones = np.ones(7, dtype)
            found = hvd.allreduce(ones, op=hvd.Average, postscale_factor=tiny, name="tiny")
            assert np.abs(found.astype(np.float64)).max() < 1e-320, (dtype, tiny, found)
            rows = hvd.reducescatter(np.ones(6, dtype), op=hvd.Average, postscale_factor=tiny, name="tiny")
            assert np.abs(rows.astype(np.float64)).max() < 1e-320, (dtype, tiny, rows)
