"""The kernels of backends/nccl, compiled for the host: every type, cast, factor and reduction bit by bit, any
alignment, batches of any shape in one launch; and their machine code, where there is a compiler for it."""

import ctypes
import importlib.util
import itertools
import re
import shutil
import subprocess

import ml_dtypes
import numpy as np
import pytest

import host_kernels
from host_kernels import KERNELS, ROOT

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
FLOATS, SMALL_FLOATS, BOOL = (6, 7, 8, 10, 11, 12), (6, 7, 10, 11, 12), 9
names = {"ids": lambda n: np.dtype(TYPES[n]).name}
# As many multiprocessors as a small device has: a launch of few threads, each of which does much.
PROCESSORS = 2
UINT8, FLOAT32 = 0, 7


class Copy(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("src", "dst", "count")),
        *((name, ctypes.c_int32) for name in ("src_dtype", "dst_dtype")),
        ("scale", ctypes.c_double),
    ]


@pytest.fixture(scope="module")
def kernels():
    library = ctypes.CDLL(str(host_kernels.build()))
    where, number = ctypes.c_void_p, ctypes.c_int32
    library.run_batch.argtypes = [where, ctypes.c_uint64, ctypes.c_uint32, where]
    library.plan_batch.argtypes = [where, ctypes.c_uint64, ctypes.c_uint32, where]
    library.run_reduce.argtypes = [number, number, where, where, ctypes.c_uint64, ctypes.c_uint32]
    library.reference_reduce.argtypes = [number, number, where, where, ctypes.c_uint64]
    library.reference_scale.argtypes = [number, where, ctypes.c_uint64, ctypes.c_double]
    return library


FACTS = ("table", "kinds", "items", "tiles", "tile_bytes", "blocks")


def batch(kernels, rows, processors=PROCESSORS, run=True):
    """rows: (source address, its type, target address, its type, scale, count). The facts of the launch."""
    copies = (Copy * max(1, len(rows)))()
    for copy, (src, src_dtype, dst, dst_dtype, scale, count) in zip(copies, rows, strict=False):
        copy.src, copy.dst, copy.count = src, dst, count
        copy.src_dtype, copy.dst_dtype, copy.scale = src_dtype, dst_dtype, scale
    facts = (ctypes.c_uint32 * len(FACTS))()
    call = kernels.run_batch if run else kernels.plan_batch
    launches = call(copies, len(rows), processors, facts)
    assert launches == (1 if any(row[5] for row in rows) else 0)
    return dict(zip(FACTS, facts, strict=True))


def patterns(dtype):
    """All bit patterns of narrow types, many of the others, numbers of every size, and the ends of all types."""
    kind = np.dtype(TYPES[dtype])
    if dtype == BOOL:
        return np.array([0, 1, 1, 0, 2, 255], np.uint8).view(np.bool_)
    if kind.itemsize <= 2:
        return np.arange(1 << (8 * kind.itemsize), dtype=f"u{kind.itemsize}").view(kind)
    random = np.random.default_rng(dtype)
    bits = random.integers(0, 256, 20011 * kind.itemsize, dtype=np.uint8).view(kind)
    steps = np.array(
        [0, 0.5, 1, 1.5, 2, 100, 127, 128, 255, 256, 448, 464, 480, 57344, 61440, 65519, 65520, 2.0**15]
    )
    powers = np.concatenate([steps, 2.0 ** np.arange(-160, 128)])
    if dtype in FLOATS:
        near = np.concatenate(
            [powers, -powers, powers * (1 + 2.0**-11), powers * (1 + 2.0**-8), random.normal(size=5000)]
        )
        edges = np.array([2.0**n + d for n in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, 0, 1)])
        return np.concatenate([bits, near.astype(kind), edges.astype(kind), -edges.astype(kind)])
    limits = np.iinfo(kind)
    edges = [n + d for n in (limits.min, limits.max, 0, 1 << 7, 1 << 8, 1 << 15, 1 << 24) for d in (-1, 0, 1)]
    return np.concatenate([bits, np.array([n for n in edges if limits.min <= n <= limits.max], kind)])


def same_bits(got, wanted, dtype):
    """A NaN equals every NaN; all other values are compared bit by bit."""
    if dtype in FLOATS:
        with np.errstate(invalid="ignore"):
            lost, missing = np.isnan(got.astype(np.float64)), np.isnan(wanted.astype(np.float64))
        np.testing.assert_array_equal(lost, missing)
        got, wanted = got[~lost], wanted[~lost]
    unsigned = f"u{np.dtype(TYPES[dtype]).itemsize}"
    np.testing.assert_array_equal(got.view(unsigned), wanted.view(unsigned))


def cast(value, source, target, scale):
    """What NumPy makes of it: factors within a type are of that type; else in float if that loses nothing, or in double;
    integers cut off and held within."""
    to = np.dtype(TYPES[target])
    with np.errstate(all="ignore"):
        if source not in FLOATS and target not in FLOATS and scale == 1:
            return (value.view(np.uint8) != 0 if source == BOOL else value).astype(to)
        if source == BOOL:
            value = value.view(np.uint8) != 0
        fits = source == target or float(np.float32(scale)) == scale
        if source in SMALL_FLOATS and target in SMALL_FLOATS and fits:
            return (value.astype(np.float32) * np.float32(scale)).astype(to)
        real = value.astype(np.float64) * scale
        if target == BOOL:
            return real != 0
        if target in FLOATS:
            return real if target == 8 else real.astype(np.float32).astype(to)
        limits = np.iinfo(to)
        above, below = real >= float(limits.max), real <= float(limits.min)
        within = np.where(np.isnan(real) | above | below, 0, real).astype(to)
        return np.where(above, limits.max, np.where(below, limits.min, within)).astype(to)


@pytest.mark.parametrize("source", TYPES, **names)
def test_casts_with_and_without_a_factor_are_numpys(kernels, source):
    value = patterns(source)
    for target, scale in itertools.product(TYPES, (1.0, 0.0, 0.5, 1 / 3, -3.0)):
        if target == source and scale in (0.0, 1.0):
            continue
        out = np.zeros(value.size, TYPES[target])
        batch(kernels, [(value.ctypes.data, source, out.ctypes.data, target, scale, value.size)])
        same_bits(out, cast(value, source, target, scale or 1.0), target)


@pytest.mark.parametrize("dtype", TYPES, **names)
def test_scaling_in_place_is_that_of_backends_on_the_host(kernels, dtype):
    for factor in (0.5, 1 / 3, -2.0, 1e30, 1e-30):
        wanted, got = patterns(dtype).copy(), patterns(dtype).copy()
        assert kernels.reference_scale(dtype, wanted.ctypes.data, wanted.size, factor) == 0
        batch(kernels, [(got.ctypes.data, dtype, got.ctypes.data, dtype, factor, got.size)])
        same_bits(got, wanted, dtype)


@pytest.mark.parametrize("dtype", TYPES, **names)
def test_reductions_are_those_of_backends_on_the_host(kernels, dtype):
    first = patterns(dtype)
    size = np.dtype(TYPES[dtype]).itemsize
    for op, turn in itertools.product(range(4), (0, 1, 4099)):
        # At addresses that groups can have, and at others.
        for skew in (0, 1):
            room = np.zeros(first.nbytes + 16, np.uint8)
            got = room[skew : skew + first.nbytes]
            got[:] = first.view(np.uint8)
            wanted, other = first.copy(), np.roll(first, turn)
            assert kernels.reference_reduce(dtype, op, wanted.ctypes.data, other.ctypes.data, first.size) == 0
            args = (dtype, op, got.ctypes.data, other.ctypes.data, first.size, PROCESSORS)
            assert kernels.run_reduce(*args) == 0
            assert not room[skew + size * first.size :].any()
            if op >= 2 and dtype in FLOATS:  # zeros of either sign are one value to MIN and MAX
                with np.errstate(invalid="ignore"):
                    got, wanted = (x.view(first.dtype).astype(np.float64) + 0.0 for x in (got.copy(), wanted))
                np.testing.assert_array_equal(got, wanted)
            else:
                same_bits(got.copy().view(first.dtype), wanted, dtype)


def aligned(nbytes, fill=0xDB):
    """(array of bytes, its address) at a multiple of 64."""
    room = np.full(nbytes + 64, fill, np.uint8)
    skip = -room.ctypes.data % 64
    return room[skip : skip + nbytes], room.ctypes.data + skip


def test_bits_pass_at_any_alignment_and_nothing_beside_them_changes(kernels):
    """Every pair of distances from a multiple of 16, lengths around units and tiles, all in one launch."""
    rows, places = [], []
    lengths = (0, 1, 2, 3, 15, 16, 17, 31, 33, 100, 511, 2047, 4095, 4096, 4097, 9001)
    span = 9001 + 48
    pairs = list(itertools.product(range(17), range(17)))
    source, source_at = aligned(span * len(pairs))
    target, target_at = aligned(span * len(pairs))
    source[:] = np.random.default_rng(1).integers(0, 256, source.size, dtype=np.uint8)
    wanted = target.copy()
    for i, (skip, lead) in enumerate(pairs):
        count = lengths[i % len(lengths)]
        rows.append((source_at + i * span + skip, UINT8, target_at + i * span + lead, UINT8, 1.0, count))
        places.append((i * span + skip, i * span + lead, count))
        wanted[i * span + lead : i * span + lead + count] = source[i * span + skip : i * span + skip + count]
    facts = batch(kernels, rows)
    np.testing.assert_array_equal(target, wanted)
    assert facts["kinds"] == 1 and facts["items"] == sum(1 for row in rows if row[5])


@pytest.mark.parametrize("types", [(7, 7), (10, 7), (7, 6), (8, 12), (3, 5)], ids=lambda t: f"{t[0]}-{t[1]}")
def test_elements_pass_at_any_alignment_and_nothing_beside_them_changes(kernels, types):
    source, target = types
    from_type, to_type = np.dtype(TYPES[source]), np.dtype(TYPES[target])
    rows, checks = [], []
    span = 5000 * 8 + 64
    shifts = (0, 1, 2, 4, 6, 8, 12, 16)
    pairs = list(itertools.product(shifts, shifts, (1, 3, 511, 513, 4999)))
    begin, begin_at = aligned(span * len(pairs))
    end, end_at = aligned(span * len(pairs))
    wanted = end.copy()
    for i, (skip, lead, count) in enumerate(pairs):
        value = (np.arange(count) % 120 - (0 if target == 0 else 60)).astype(from_type)
        begin[i * span + skip :][: value.nbytes] = value.view(np.uint8)
        rows.append((begin_at + i * span + skip, source, end_at + i * span + lead, target, 0.25, count))
        out = cast(value, source, target, 0.25)
        wanted[i * span + lead :][: out.nbytes] = out.view(np.uint8)
        checks.append(to_type.itemsize)
    batch(kernels, rows)
    np.testing.assert_array_equal(end, wanted)


def test_a_batch_of_all_types_and_factors_is_one_launch(kernels):
    """More kinds than the arguments have room for; items in any order, most of them tiny."""
    random = np.random.default_rng(3)
    rows, checks = [], []
    for i in range(3000):
        source = list(TYPES)[i % 15]
        target = source if i % 3 else list(TYPES)[int(random.integers(15))]
        scale = (1.0, 0.5, 0.1)[int(random.integers(3))]
        count = int(random.integers(0, 40)) if i % 500 else 30_000
        value = random.choice(patterns(source), count)
        out = np.zeros(count, TYPES[target])
        rows.append((value.ctypes.data, source, out.ctypes.data, target, scale, count))
        checks.append((value, source, target, scale, out))
    facts = batch(kernels, rows, processors=4)
    assert facts["table"] == 1 and facts["kinds"] > 8
    for value, source, target, scale, out in checks:
        if source == target and scale == 1:
            np.testing.assert_array_equal(out.view(np.uint8), value.view(np.uint8))
        else:
            same_bits(out, cast(value, source, target, scale), target)


def test_the_gradients_of_a_resnet_fit_into_the_arguments(kernels):
    """161 tensors, as the usual model has them; one more than fits, and the table goes to the device."""
    data, out = np.arange(200, dtype=np.float32), np.zeros(200, np.float32)
    row = [(data.ctypes.data + 4 * i, FLOAT32, out.ctypes.data + 4 * i, FLOAT32, 1.0, 1) for i in range(164)]
    assert batch(kernels, row[:161])["table"] == 0
    assert batch(kernels, row[:163])["table"] == 0
    assert batch(kernels, row)["table"] == 1
    np.testing.assert_array_equal(out[:164], data[:164])


def test_work_is_spread_over_all_processors_whatever_the_sizes(kernels):
    """Planned, not run: a tensor of 3 GiB beside thousands of small ones, and one that is far beyond 32 bits."""
    gib = 1 << 30
    rows = [(1 << 40, UINT8, 1 << 41, UINT8, 1.0, 3 * gib)] + [
        (1 << 42, UINT8, 1 << 43, UINT8, 1.0, 1)
    ] * 5000
    facts = batch(kernels, rows, processors=132, run=False)
    warps = facts["blocks"] * 4
    assert facts["items"] == 5003 and facts["blocks"] == 132 * 5
    # No warp has twice the average to do, and none is without.
    assert warps <= facts["tiles"] and -(-facts["tiles"] // warps) * facts["tile_bytes"] < 2 * 3 * gib / warps
    small = batch(kernels, [(1 << 40, FLOAT32, 1 << 41, FLOAT32, 0.5, 1)], processors=132, run=False)
    assert small["blocks"] == 1 and small["tiles"] == 1
    huge = batch(kernels, [(1 << 40, UINT8, 1 << 50, UINT8, 1.0, 5 << 40)], processors=132, run=False)
    assert huge["items"] == 5 << 10 and huge["tiles"] == (5 << 40) // huge["tile_bytes"]
    assert batch(kernels, [], run=False)["blocks"] == 0


@pytest.fixture(scope="module")
def ptx():
    """The module that makes the kernels' text."""
    spec = importlib.util.spec_from_file_location("make_ptx", KERNELS / "make_ptx.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_text_for_the_driver_is_that_of_these_sources(ptx):
    text = (KERNELS / "generated" / "kernels.ptx").read_text()
    assert f"// Sources: {ptx.digest()}" in text, (
        "the kernels have changed: run backends/nccl/csrc/kernels/make_ptx.py"
    )
    # A driver of 2017 knows this version, and devices from Pascal on have what is in it.
    assert re.findall(r"^\.(?:version|target) (.+)$", text, re.M) == ["6.0", "sm_60"]
    assert re.findall(r"^\.visible \.entry (\w+)", text, re.M) == ["hvd_copy_scale", "hvd_reduce"]
    # Arguments are read where they are, and nothing spills.
    assert ".local" not in text and "cvta.param" not in text


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc to compile the kernels with")
def test_the_compiler_makes_of_the_sources_what_is_checked_in(ptx, tmp_path):
    kept = (KERNELS / "generated" / "kernels.ptx").read_text()
    made = ptx.make("nvcc", ROOT / "hvd_core" / "include")
    if f"with nvcc {ptx.release('nvcc')};" in kept:
        assert made == kept
    else:  # another release's code looks different
        assert [line for line in made.splitlines() if line.startswith(".v")]
    command = [
        "nvcc",
        "-cubin",
        "-arch=sm_80",
        "-Xptxas",
        "-v",
        KERNELS / "generated" / "kernels.ptx",
        "-o",
        tmp_path / "cubin",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("0 bytes spill stores, 0 bytes spill loads") == 2
    # Five blocks of 128 threads share 65536 registers.
    used = [int(n) for n in re.findall(r"Used (\d+) registers", done.stderr)]
    assert len(used) == 2 and max(used) <= 65536 // (5 * 128)
