"""hvd/backend_reduce.hpp against NumPy and ml_dtypes: every element type and reduction, as compiled for use and again
with a trap on undefined behaviour."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

import abi_toolchain

TYPES = {
    0: np.uint8,
    1: np.int8,
    2: np.uint16,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float16,
    7: np.float32,
    8: np.float64,
    9: np.bool_,
    10: ml_dtypes.bfloat16,
    11: ml_dtypes.float8_e4m3fn,
    12: ml_dtypes.float8_e5m2,
    13: np.uint32,
    14: np.uint64,
}
SUM, PROD, MIN, MAX, AVG = range(5)
FOLDS = {SUM: np.add, PROD: np.multiply, MIN: np.minimum, MAX: np.maximum}
UNSUPPORTED = 3


@pytest.fixture(scope="module", params=abi_toolchain.ARITHMETIC)
def arithmetic(request):
    out = abi_toolchain.arithmetic(request.param)
    library = ctypes.CDLL(str(out))
    where = ctypes.c_void_p
    library.combine.argtypes = [ctypes.c_int32, ctypes.c_int32, where, where, where, ctypes.c_uint64]
    library.reduce.argtypes = [ctypes.c_int32, ctypes.c_int32, where, where, ctypes.c_uint64]
    library.scale.argtypes = [ctypes.c_int32, where, ctypes.c_uint64, ctypes.c_double]
    library.divide.argtypes = [ctypes.c_int32, where, ctypes.c_uint64, ctypes.c_uint32]
    return library


def is_float(dtype):
    return dtype in (6, 7, 8, 10, 11, 12)


def operands(dtype):
    """Two arrays with all pairs of 8-bit values, or many pairs of values of another type."""
    kind = np.dtype(TYPES[dtype])
    if kind.itemsize == 1:
        values = np.arange(2 if dtype == 9 else 256, dtype=np.uint8)
        a, b = (x.ravel() for x in np.meshgrid(values, values))
        return a.view(kind).copy(), b.view(kind).copy()
    random = np.random.default_rng(dtype)
    bits = random.integers(0, 256, (2, 20011 * kind.itemsize), dtype=np.uint8).view(kind)
    if kind.itemsize == 2:
        every = np.arange(1 << 16, dtype=np.uint16).view(kind)
        neighbours = (np.arange(1 << 16, dtype=np.uint16) + np.uint16(1)).view(kind)
        bits = [np.concatenate([bits[0], every, every]), np.concatenate([bits[1], neighbours, every[::-1]])]
    if is_float(dtype):  # numbers of one size as well, or a sum would always be one of its operands
        near = random.normal(size=(2, 20011)).astype(kind)
        bits = [np.concatenate([bits[i], near[i]]) for i in range(2)]
    return bits[0].copy(), bits[1].copy()


def expected(dtype, op, a, b):
    if dtype == 9:
        return (a | b) if op in (SUM, MAX) else (a & b)
    with np.errstate(all="ignore"):
        if is_float(dtype) and a.itemsize < 4:
            return FOLDS[op](a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)
        return FOLDS[op](a, b)


def check_same(got, want, dtype):
    if not is_float(dtype):
        np.testing.assert_array_equal(got, want)
        return
    # All NaNs are equal; zeros of either sign are one value to MIN and MAX; all else bit by bit.
    with np.errstate(invalid="ignore"):  # casting a signalling NaN
        got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda n: np.dtype(TYPES[n]).name)
def test_reductions_are_those_of_numpy(arithmetic, dtype):
    a, b = operands(dtype)
    for op in FOLDS:
        want = expected(dtype, op, a, b)
        out = np.zeros_like(a)
        assert arithmetic.combine(dtype, op, out.ctypes.data, a.ctypes.data, b.ctypes.data, a.size) == 0
        check_same(out, want, dtype)
        into = a.copy()
        assert arithmetic.reduce(dtype, op, into.ctypes.data, b.ctypes.data, a.size) == 0
        assert into.tobytes() == out.tobytes()
        # The result replaces the second operand.
        into = b.copy()
        assert arithmetic.combine(dtype, op, into.ctypes.data, a.ctypes.data, into.ctypes.data, a.size) == 0
        assert into.tobytes() == out.tobytes()


@pytest.mark.parametrize("dtype", TYPES, ids=lambda n: np.dtype(TYPES[n]).name)
def test_addresses_need_not_be_aligned_and_nothing_else_is_touched(arithmetic, dtype):
    width, n = np.dtype(TYPES[dtype]).itemsize, 37
    a, b = (np.resize(x[::-1], n) for x in operands(dtype))
    want = expected(dtype, SUM, a, b)
    inout = np.full(n * width + 65, 0xA5, np.uint8)
    other = np.zeros(n * width + 3, np.uint8)
    inout[33 : 33 + n * width] = np.frombuffer(a.tobytes(), np.uint8)
    other[3:] = np.frombuffer(b.tobytes(), np.uint8)
    assert arithmetic.reduce(dtype, SUM, inout.ctypes.data + 33, other.ctypes.data + 3, n) == 0
    check_same(np.frombuffer(inout[33 : 33 + n * width].tobytes(), a.dtype), want, dtype)
    assert (inout[:33] == 0xA5).all() and (inout[33 + n * width :] == 0xA5).all()


@pytest.mark.parametrize("factor", [0.5, -1.0, 1 / 3, 1e30, float("nan")])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda n: np.dtype(TYPES[n]).name)
def test_factors(arithmetic, dtype, factor):
    a, _ = operands(dtype)
    got = a.copy()
    assert arithmetic.scale(dtype, got.ctypes.data, a.size, factor) == 0
    with np.errstate(all="ignore"):
        if dtype == 9:
            want = a
        elif is_float(dtype):
            # In the type that the elements are computed in: neither a wider product nor a wider factor.
            computed = a.dtype if a.itemsize >= 4 else np.dtype(np.float32)
            want = (a.astype(computed) * computed.type(factor)).astype(a.dtype)
        else:
            want = truncated(a, factor)
    check_same(got, want, dtype)


@pytest.mark.parametrize("dtype", [n for n in TYPES if is_float(n)], ids=lambda n: np.dtype(TYPES[n]).name)
def test_averages_are_divided(arithmetic, dtype):
    a, _ = operands(dtype)
    for divisor in (1, 2, 3, 7):
        got = a.copy()
        assert arithmetic.divide(dtype, got.ctypes.data, a.size, divisor) == 0
        computed = a.dtype if a.itemsize >= 4 else np.dtype(np.float32)
        with np.errstate(all="ignore"):
            check_same(got, (a.astype(computed) / computed.type(divisor)).astype(a.dtype), dtype)


def truncated(values, factor):
    """Integers times a factor in double: truncated toward zero, clamped to the type, and 0 for NaN."""
    limits = np.iinfo(values.dtype)
    x = np.trunc(values.astype(np.float64) * factor)
    within = (x > float(limits.min)) & (x < float(limits.max))
    want = np.where(within, x, 0).astype(values.dtype)
    want[x >= float(limits.max)] = limits.max
    want[x <= float(limits.min)] = limits.min
    return want


def test_what_there_is_no_arithmetic_for_is_refused(arithmetic):
    a = np.ones(4, np.float32)
    assert arithmetic.reduce(7, AVG, a.ctypes.data, a.ctypes.data, 4) == UNSUPPORTED
    assert arithmetic.reduce(15, SUM, a.ctypes.data, a.ctypes.data, 4) == UNSUPPORTED
    assert arithmetic.reduce(-1, SUM, a.ctypes.data, a.ctypes.data, 4) == UNSUPPORTED
    assert arithmetic.scale(15, a.ctypes.data, 4, 2.0) == UNSUPPORTED
    assert arithmetic.divide(4, a.ctypes.data, 4, 2) == UNSUPPORTED
    assert (a == 1).all()
