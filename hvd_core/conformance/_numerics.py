"""Data for the cases, their expected results, and the allowed errors.

References are computed by NumPy in float64 (integers: exactly, in their own type). Stored values are NumPy arrays of an
element's bits: bfloat16 is uint16, float8 is uint8.
"""

from __future__ import annotations

import functools

import numpy as np

from hvd_core.conformance._abi import AVG, MAX, MIN, PROD, SUM
from hvd_core.types import DTYPES, REDUCTIONS

OPS = {name: op.number for name, op in REDUCTIONS.items()}
NUMBERS = {name: dtype.number for name, dtype in DTYPES.items()}
_STORED = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
# Unit roundoff and the smallest positive number: the error of one rounding.
ROUNDING = {
    "float64": (2.0**-53, 2.0**-1074),
    "float32": (2.0**-24, 2.0**-149),
    "float16": (2.0**-11, 2.0**-24),
    "bfloat16": (2.0**-8, 2.0**-133),
    "float8_e4m3fn": (2.0**-4, 2.0**-9),
    "float8_e5m2": (2.0**-3, 2.0**-16),
}
_FOLD = {SUM: np.add, AVG: np.add, PROD: np.multiply, MIN: np.minimum, MAX: np.maximum}

# After so many elements, samples repeat themselves.
PERIOD = 251


def stored(dtype: str) -> np.dtype:
    """The NumPy type that an element's bits are kept in."""
    return np.dtype(_STORED.get(dtype, dtype))


def is_float(dtype: str) -> bool:
    """Whether results are subject to rounding."""
    return dtype in ROUNDING


@functools.cache
def _float8_values(dtype: str) -> np.ndarray:
    """The 256 numbers of a float8 type."""
    bits = np.arange(256)
    width, bias = (3, 7) if dtype == "float8_e4m3fn" else (2, 15)
    exponent, fraction = (bits & 0x7F) >> width, (bits & ((1 << width) - 1)) / (1 << width)
    sign = np.where(bits & 0x80, -1.0, 1.0)
    value = sign * np.where(
        exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias)
    )
    if dtype == "float8_e4m3fn":
        value[(bits & 0x7F) == 0x7F] = np.nan
    else:
        top = exponent == 31
        value[top] = np.where(fraction[top] == 0, sign[top] * np.inf, np.nan)
    return value


def to_stored(dtype: str, values: np.ndarray) -> np.ndarray:
    """Real numbers as elements of ``dtype``, rounded to nearest even."""
    elements: np.ndarray
    if dtype != "bfloat16":
        with np.errstate(over="ignore", invalid="ignore"):
            elements = np.asarray(values).astype(stored(dtype))
        return elements
    with np.errstate(over="ignore"):
        narrow = np.asarray(values, np.float32)
    bits = narrow.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    elements = np.where(np.isnan(narrow), np.uint16(0x7FC0), rounded.astype(np.uint16))
    return elements


def to_real(dtype: str, elements: np.ndarray) -> np.ndarray:
    """Elements of a floating type as float64."""
    values: np.ndarray
    if dtype.startswith("float8"):
        values = _float8_values(dtype)[elements]
    elif dtype == "bfloat16":
        with np.errstate(invalid="ignore"):
            values = (elements.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    else:
        values = elements.astype(np.float64)
    return values


def sample(dtype: str, rank: int, count: int, salt: int = 0) -> np.ndarray:
    """``count`` elements that depend on rank and index, chosen so that a narrower type cannot hold them.

    64-bit integers lie near 2**40 + rank, float64 differ in the thirteenth digit, 8-bit sums overflow.
    """
    return np.resize(_period(dtype, rank, salt), count)


@functools.lru_cache(maxsize=4096)
def _period(dtype: str, rank: int, salt: int) -> np.ndarray:
    """The elements of sample() until they repeat. Cases ask for the same samples again and again."""
    i = np.arange(PERIOD, dtype=np.uint64)
    spread = (i * np.uint64(2654435761) + np.uint64(40503 * (rank + 31 * salt + 1))) % np.uint64(PERIOD)
    made: np.ndarray
    if dtype == "bool":
        made = spread % np.uint64(3) != np.uint64(0)
    elif dtype.startswith("float8"):
        # Numbers from 1/4 to 7/4 of either sign: sums and products of them are finite, and none is a NaN.
        values = _float8_values(dtype)
        usable = np.flatnonzero((np.abs(values) >= 0.25) & (np.abs(values) <= 1.75)).astype(np.uint8)
        made = usable[(spread % np.uint64(usable.size)).astype(np.intp)]
    elif dtype == "float64":
        made = (spread.astype(np.float64) - 125.0) / 64 + 1e-12 * (spread.astype(np.float64) + 1 + rank)
    elif is_float(dtype):
        made = to_stored(dtype, (spread.astype(np.float64) - 125.0) / 64)
    elif dtype in ("int64", "uint64"):
        made = (spread + np.uint64(2**40 + rank)).astype(dtype)
    elif dtype in ("int32", "uint32"):
        made = (spread + np.uint64(2**24 + 1 + rank)).astype(dtype)
    else:
        made = (spread.astype(np.int64) - (125 if dtype.startswith("int") else 0)).astype(dtype)
    return made


def _scaled(values: np.ndarray, factor: float) -> np.ndarray:
    """Integers by a factor in float64: truncated toward zero, held within the type."""
    limits = np.iinfo(values.dtype)
    scaled = np.clip(np.trunc(values.astype(np.float64) * factor), limits.min, limits.max)
    elements: np.ndarray = scaled.astype(values.dtype)
    return elements


def reduced(
    dtype: str, op: int, columns: list[np.ndarray], pre: float = 1.0, post: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """(value, allowed): what one array per rank reduces to, and how far each element may be off (0: exact).

    Floating values come as float64. The bound is that of a sum in any order with every step rounded to the type:
    (ranks + 2) roundings of the sum of magnitudes.
    """
    if dtype == "bool":
        fold = np.logical_or if op in (SUM, MAX) else np.logical_and
        return fold.reduce(columns), np.zeros(columns[0].shape)
    if is_float(dtype):
        unit, tiny = ROUNDING[dtype]
        wide = [to_real(dtype, c) * pre for c in columns]
        share = 1.0 / len(columns) if op == AVG else 1.0
        value = functools.reduce(_FOLD[op], wide) * share * post  # NumPy's own reduce begins with +0.0
        if op in (MIN, MAX):
            roundings, magnitude = (0 if pre == 1 and post == 1 else 3), np.abs(value)
        elif op == PROD:
            roundings, magnitude = len(columns) + 2 + (len(columns) if pre != 1 else 0), np.abs(value)
        else:
            magnitude = np.add.reduce([np.abs(w) for w in wide]) * share * abs(post)
            roundings = len(columns) + 2
        return value, roundings * unit * magnitude + (tiny if roundings else 0.0)
    columns = [_scaled(c, pre) if pre != 1 else c for c in columns]
    if op == AVG:
        total = (
            [c.astype(object) for c in columns]
            if columns[0].itemsize == 8
            else [c.astype(np.int64) for c in columns]
        )
        whole = np.add.reduce(total)
        value = (np.sign(whole) * (np.abs(whole) // len(columns))).astype(columns[0].dtype)
    else:
        value = columns[0]
        for column in columns[1:]:
            value = _FOLD[op](value, column)  # wraps as the type does
    return (_scaled(value, post) if post != 1 else value), np.zeros(value.shape)


def compare(dtype: str, got: np.ndarray, value: np.ndarray, allowed: np.ndarray | None = None) -> str:
    """ "" when ``got`` is as it must be; else the first places where it is not. ``allowed`` None: the same bits."""
    if got.shape != value.shape:
        return f"{got.size} elements instead of {value.size}"
    if allowed is None or not is_float(dtype):
        wrong = got.view(np.uint8 if got.dtype == bool else got.dtype) != value.view(
            np.uint8 if value.dtype == bool else value.dtype
        )
        shown = value
    else:
        got = to_real(dtype, got)
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(got - value) <= allowed) & ~(np.isnan(got) & np.isnan(value)) & (got != value)
        shown = value
    if not wrong.any():
        return ""
    at = np.flatnonzero(wrong)
    pairs = ", ".join(f"[{i}] {got[i]!r} instead of {shown[i]!r}" for i in at[:3])
    return f"{at.size} of {got.size} elements are wrong: {pairs.replace('np.', '')}"
