"""allreduce, reduce, reducescatter: operation x dtype x count x place, against NumPy."""

import ctypes as C
import platform
from pathlib import Path

import numpy as np
import pytest

from abi_ctypes import (
    ALLREDUCE,
    AVG,
    BFLOAT16,
    MAX,
    MIN,
    PROD,
    REDUCE,
    REDUCESCATTER,
    SUM,
    DeviceProps,
    new,
)
from reference import OPS, check, check_sums, columns_for, digest, pieces, same_bits, sample

pytestmark = pytest.mark.timeout(180)
COUNTS = (0, 1, 17, 1023, 40_003)
LARGE = 1_000_001
# Large buffers are divided by the size of their elements alone.
OF_EACH_SIZE = ("bool", "bfloat16", "float32", "int64")
EVERY_OPERATION = 50_000  # up to this count each operation is tried
DTYPES = [
    "uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "bool",
]  # fmt: skip


def number(dtype):
    return BFLOAT16 if dtype == "bfloat16" else None


def matrix(comm, dtype, counts):
    """Digests of all results, which must be the same on all ranks: the values are compared on the first rank alone."""
    digests = []
    for count in counts:
        columns = columns_for(comm, dtype, count)
        for name, op in OPS.items():
            if dtype == "bool" and op == AVG:
                continue
            if count > EVERY_OPERATION and name not in ("sum", "max"):
                continue  # buffers are divided alike for every operation
            mine = columns[comm.rank].copy()
            out = np.zeros_like(mine)
            comm.run(ALLREDUCE, [mine], [out], op=op, dtype=number(dtype), poll=name == "min")
            if comm.rank == 0:
                check(out, dtype, op, columns, f"{name} of {count}")
            assert np.array_equal(mine, columns[comm.rank]), "the input of an out-of-place operation changed"
            comm.run(ALLREDUCE, [mine], [mine], op=op, dtype=number(dtype))
            assert same_bits(mine, out), f"{name} of {count}: in place differs from out of place"
            digests.append(digest(out))
    return digests


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce_matrix(ranks, dtype, size):
    results = ranks(size, matrix, dtype, (*COUNTS, LARGE) if dtype in OF_EACH_SIZE else COUNTS)
    assert all(r == results[0] for r in results), "ranks ended with different bits"


@pytest.mark.parametrize("size", [1, 4, 5])
def test_allreduce_other_sizes(ranks, size):
    results = ranks(size, matrix, "float32", (*COUNTS, LARGE))
    assert all(r == results[0] for r in results)


def test_allreduce_between_threads(ranks):
    results = ranks(3, matrix, "float16", (0, 17, 50_000), threads=True)
    assert all(r == results[0] for r in results)


def kernels_in_use(comm):
    """The name of the instruction set whose kernels this rank's backend computes with."""
    device, props = C.c_void_p(), new(DeviceProps)
    table = comm.backend.device_api
    comm.backend.call(table, "open", 0, None, C.byref(device))
    comm.backend.call(table, "props", device, C.byref(props))
    comm.backend.call(table, "close", device)
    return props.arch.decode()


def of_the_processor():
    """The flags of the processor as the kernel lists them."""
    line = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("flags")), "")
    return set(line.split())


NEEDS = {
    "base": set(),
    "avx2": {"avx2", "f16c"},
    "avx512": {"avx2", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
}


def best_kernels():
    return next(isa for isa in reversed(NEEDS) if NEEDS[isa] <= of_the_processor())


def test_the_best_kernels_are_chosen(ranks):
    if platform.machine() != "x86_64":
        pytest.skip(f"there are no kernels for instruction sets of {platform.machine()} to choose from")
    assert ranks(1, kernels_in_use) == [best_kernels()]


@pytest.mark.parametrize("isa", ["base", "avx2"])
def test_other_kernels(ranks, isa):
    """The kernels that this processor would not choose, where it can run them."""
    if not NEEDS[isa] <= of_the_processor():
        pytest.skip(f"this processor has no {', '.join(sorted(NEEDS[isa] - of_the_processor()))}")
    if isa == best_kernels():
        pytest.skip(f"this processor chooses {isa} by itself: the other tests of this module are about it")
    chosen = {"options": {"isa": isa}}
    assert ranks(1, kernels_in_use, **chosen) == [isa]
    for dtype in ("float32", "float16", "bfloat16", "float64", "int8", "int32", "uint64", "bool"):
        results = ranks(2, matrix, dtype, (17, 1023, 40_003), **chosen)
        assert all(r == results[0] for r in results)
        if dtype != "bool":
            results = ranks(3, scaled, dtype, **chosen)
            assert all(r == results[0] for r in results)


def scaled(comm, dtype):
    """Digests as of matrix()."""
    digests = []
    for count in (33, 70_000):
        columns = columns_for(comm, dtype, count)
        for op in (SUM, MIN, AVG):
            for pre, post in ((0.5, 1.0), (1.0, 3.0), (2.0, 0.25)):
                out = np.zeros_like(columns[comm.rank])
                comm.run(
                    ALLREDUCE, [columns[comm.rank]], [out], op=op, dtype=number(dtype), pre=pre, post=post
                )
                if comm.rank == 0:
                    check(out, dtype, op, columns, f"op {op} factors {pre} {post}", pre=pre, post=post)
                digests.append(digest(out))
    return digests


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8"])
def test_factors(ranks, dtype, size):
    results = ranks(size, scaled, dtype)
    assert all(r == results[0] for r in results), "ranks ended with different bits"


def lists(comm, lengths, offset):
    """Many buffers in one call, each at an odd address when offset is not 0; digests as of matrix()."""
    digests = []
    columns = columns_for(comm, "float32", sum(lengths))
    values = pieces(columns[comm.rank], lengths)
    spaces = [np.zeros(n * 4 + offset, np.uint8) for n in lengths]
    mine = [
        s[offset:].view(np.float32) if offset == 0 else np.frombuffer(s.data, np.float32, offset=offset)
        for s in spaces
    ]
    for place in ("out of", "in"):
        for to, value in zip(mine, values, strict=True):
            to[...] = value
        outs = mine if place == "in" else [np.zeros(n, np.float32) for n in lengths]
        comm.run(ALLREDUCE, mine, outs, op=SUM)
        if comm.rank == 0:
            check_sums(outs, columns, f"{place} place")
        digests.append(digest(np.concatenate(outs)))
    return digests


@pytest.mark.parametrize(
    "lengths",
    [
        [1, 0, 5, 1000, 0, 3],
        [40_000, 1, 70_001, 16, 16_384, 2],
        [3] * 2000,
        [37] * 5000,
        [0, 0, 0],
        [20_000] * 9,
    ],
    ids=lambda lengths: f"{len(lengths)}x{lengths[0]}",
)
@pytest.mark.parametrize("size", [2, 3])
def test_vectored(ranks, lengths, size):
    results = ranks(size, lists, lengths, 0)
    assert all(r == results[0] for r in results), "ranks ended with different bits"


def test_unaligned_buffers(ranks):
    results = ranks(2, lists, [5, 40_000, 1, 100_000], 1)
    assert results[0] == results[1], "ranks ended with different bits"


def many_sizes(comm):
    """Sizes around every boundary in a row, so that slots and areas are reused in all combinations; digests as of
    matrix()."""
    digests = []
    for count in [*range(0, 40), 4095, 4096, 4097, 8191, 8192, 8193, *range(16_000, 200_000, 7_919), 500_000]:
        columns = columns_for(comm, "float32", count)
        buffer = columns[comm.rank].copy()
        comm.run(ALLREDUCE, [buffer], [buffer], op=SUM)
        if comm.rank == 0:
            check(buffer, "float32", SUM, columns, f"sum of {count}")
        digests.append(digest(buffer))
    return digests


OPTIONS = {
    "shm": [{}, {"chunk_kib": 4, "small_kib": 1}, {"spin_us": 0}],
    "tcp": [{}, {"chunk_kib": 16, "small_kib": 0}, {"sockets_per_peer": 3, "chunk_kib": 16}],
}


@pytest.mark.parametrize("choice", [0, 1, 2])
@pytest.mark.parametrize("size", [2, 4])
def test_many_sizes_in_a_row(ranks, backend_name, size, choice):
    results = ranks(size, many_sizes, options=OPTIONS[backend_name][choice])
    assert all(r == results[0] for r in results), "ranks ended with different bits"


def rule_numbers(comm):
    def reduce(values, dtype, op, **more):
        mine = np.asarray([v[comm.rank] for v in values], dtype)
        comm.run(ALLREDUCE, [mine], [mine], op=op, **more)
        return mine

    nan = float("nan")
    for op in (MIN, MAX):
        for dtype in ("float32", "float64", "float16"):
            got = reduce([(nan, 1), (1, nan), (2, 1), (nan, nan)], dtype, op)
            assert np.isnan(got[[0, 1, 3]]).all() and got[2] == (1 if op == MIN else 2), (op, dtype, got)
    # Truncated toward zero, and from the exact sum: 127 + 127 does not fit the type, its average does.
    assert reduce([(-3, 0), (3, 0), (127, 127), (-128, -127)], "int8", AVG).tolist() == [-1, 1, 127, -127]
    big = 2**63 - 1
    assert reduce([(big, big - 2), (-big, -big)], "int64", AVG).tolist() == [big - 1, -big]
    top = 2**31 - 1
    assert reduce([(top, top - 1), (-top - 1, -top)], "int32", AVG).tolist() == [top - 1, -top]
    # Sums wrap like the type.
    assert reduce([(127, 1), (-128, -1)], "int8", SUM).tolist() == [-128, 127]
    # 2048 + 1 is not a float16, but the sum is formed in float32 and divided before it is rounded.
    assert reduce([(2048, 1), (65504, 65504)], "float16", AVG).tolist() == [1024.0, 65504.0]
    # Subnormals, halfway cases and overflow of float16 round to nearest even.
    tiny = 2.0**-24
    assert reduce([(tiny, tiny), (2048, 1), (2050, 1), (65504, 16)], "float16", SUM).tolist() == [
        2 * tiny,
        2048.0,
        2052.0,
        float("inf"),
    ]
    return True


def test_rules_for_numbers(ranks):
    assert ranks(2, rule_numbers) == [True, True]


def reduce_to_root(comm):
    for count in (0, 5, 300_000):
        columns = [sample("float32", r, count) for r in range(comm.size)]
        for root in range(comm.size):
            out = np.full(count, 99, np.float32)
            comm.run(REDUCE, [columns[comm.rank]], [out], op=SUM, root=root)
            if comm.rank == root:
                check(out, "float32", SUM, columns, f"reduce of {count} to {root}")
            else:
                assert (out == 99).all()
    pieces = [np.ones(3, np.float32) for _ in range(30_000)]
    comm.run(REDUCE, pieces, pieces, op=SUM, root=1)
    assert (np.concatenate(pieces) == (comm.size if comm.rank == 1 else 1)).all()


@pytest.mark.parametrize("size", [2, 3])
def test_reduce(ranks, size):
    ranks(size, reduce_to_root)


def scatter_parts(comm, parts_of):
    """parts_of: for each buffer, how many elements each rank receives."""
    total = [sum(parts) for parts in parts_of]
    columns = [[sample("float32", r + 3 * i, n) for i, n in enumerate(total)] for r in range(comm.size)]
    outs = [np.zeros(parts[comm.rank], np.float32) for parts in parts_of]
    flat = [n for parts in parts_of for n in parts]
    comm.run(REDUCESCATTER, columns[comm.rank], outs, op=PROD, counts=total, out_counts=flat)
    for i, parts in enumerate(parts_of):
        at = sum(parts[: comm.rank])
        mine = [c[i][at : at + parts[comm.rank]] for c in columns]
        check(outs[i], "float32", PROD, mine, f"buffer {i}")


@pytest.mark.parametrize(
    "parts_of", [[[1, 2, 3]], [[0, 0, 5]], [[50_000, 200_000, 7], [1, 90_000, 0]]], ids=str
)
def test_reducescatter(ranks, parts_of):
    ranks(3, scatter_parts, parts_of)
