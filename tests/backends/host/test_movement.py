"""broadcast, allgather(v), alltoall(v) and barrier of each backend, and sizes beyond 2^31 bytes."""

import time

import numpy as np
import pytest

from abi_ctypes import ALLGATHER, ALLTOALL, BARRIER, BROADCAST, FLOAT8
from reference import sample

pytestmark = pytest.mark.timeout(180)


def broadcasts(comm):
    for dtype in ("uint8", "float32", "int64", "bool"):
        for count in (0, 1, 17, 1023, 1_000_001):
            for root in range(comm.size):
                value = sample(dtype, root, count)
                source = value.copy() if comm.rank == root else np.zeros_like(value)
                out = np.zeros_like(value)
                comm.run(BROADCAST, [source], [out], root=root)
                assert np.array_equal(out, value), (dtype, count, root)
                comm.run(BROADCAST, [source], [source], root=root)
                assert np.array_equal(source, value), (dtype, count, root)
    parts = [
        sample("int32", i, i % 50) if comm.rank == 1 else np.zeros(i % 50, np.int32) for i in range(3000)
    ]
    comm.run(BROADCAST, parts, parts, root=1)
    wanted = np.concatenate([sample("int32", i, i % 50) for i in range(3000)])
    assert np.array_equal(np.concatenate(parts), wanted)


@pytest.mark.parametrize("size", [2, 4])
def test_broadcast(ranks, size):
    ranks(size, broadcasts)


def gathers(comm, parts_of):
    """parts_of: for each buffer, how many elements each rank contributes."""
    flat = [n for parts in parts_of for n in parts]
    mine = [sample("int32", comm.rank + 5 * i, parts[comm.rank]) for i, parts in enumerate(parts_of)]
    wanted = [
        np.concatenate([sample("int32", r + 5 * i, n) for r, n in enumerate(parts)])
        for i, parts in enumerate(parts_of)
    ]
    counts = [m.size for m in mine]
    outs = [np.zeros_like(w) for w in wanted]
    comm.run(ALLGATHER, mine, outs, counts=counts, out_counts=flat)
    assert all(np.array_equal(o, w) for o, w in zip(outs, wanted, strict=True))
    # In place: each rank's part already stands in the output.
    for out, parts, part in zip(outs, parts_of, mine, strict=True):
        at = sum(parts[: comm.rank])
        out[...] = -1
        out[at : at + part.size] = part
    comm.run(ALLGATHER, outs, outs, counts=counts, out_counts=flat)
    assert all(np.array_equal(o, w) for o, w in zip(outs, wanted, strict=True))


@pytest.mark.parametrize(
    "parts_of",
    [
        [[1, 2, 3]],
        [[0, 7, 0]],
        [[0, 0, 0]],
        [[100_000, 0, 300_001]],
        [[5, 5, 5], [90_000, 1, 2], [0, 0, 40_000]],
    ],
    ids=str,
)
def test_allgatherv(ranks, parts_of):
    ranks(3, gathers, parts_of)


def equal_gather(comm):
    for count in (1, 6, 20_000, 1_000_001):
        out = np.zeros((comm.size, count), np.float64)
        comm.run(ALLGATHER, [sample("float64", comm.rank, count)], [out], counts=[count])
        assert all(np.array_equal(out[r], sample("float64", r, count)) for r in range(comm.size))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_allgather_of_equal_parts(ranks, size):
    ranks(size, equal_gather)


def exchange(comm, table):
    """table[i][j]: elements that rank i sends to rank j."""
    gives, gets = table[comm.rank], [row[comm.rank] for row in table]
    data = [sample("int16", 10 * comm.rank + to, n) for to, n in enumerate(gives)]
    out = np.zeros(sum(gets), np.int16)
    comm.run(ALLTOALL, [np.concatenate(data)], [out], in_counts=gives, out_counts=gets)
    assert np.array_equal(
        out, np.concatenate([sample("int16", 10 * i + comm.rank, n) for i, n in enumerate(gets)])
    )


@pytest.mark.parametrize(
    "table",
    [[[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[0, 0, 0]] * 3, [[100_000, 0, 5], [0, 0, 333_333], [1, 70_000, 0]]],
    ids=["small", "nothing", "large"],
)
def test_alltoallv(ranks, table):
    ranks(3, exchange, table)


def meet(comm):
    for turn in range(comm.size):
        if comm.rank == turn:
            time.sleep(0.05)
            left = time.monotonic()
        comm.run(BARRIER)
        passed = time.monotonic()
        if comm.rank == turn:
            assert passed >= left
    for _ in range(200):
        comm.run(BARRIER, poll=True)
    comm.finalize()
    return time.monotonic()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_barrier_and_finalize(ranks, size):
    ranks(size, meet)


def moves_float8(comm):
    value = np.arange(64, dtype=np.uint8) if comm.rank == 0 else np.zeros(64, np.uint8)
    comm.run(BROADCAST, [value], [value], dtype=FLOAT8)
    assert np.array_equal(value, np.arange(64, dtype=np.uint8))


def test_float8_is_moved(ranks):
    ranks(2, moves_float8)


def huge(comm):
    count = 2**31 + 4099
    value = np.zeros(count, np.uint8)
    marks = [0, 1, 2**31 - 1, 2**31, 2**31 + 1, count - 1]
    if comm.rank == 0:
        value[marks] = [1, 2, 3, 4, 5, 6]
    comm.run(BROADCAST, [value], [value], seconds=150)
    assert value[marks].tolist() == [1, 2, 3, 4, 5, 6] and int(np.count_nonzero(value)) == 6


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_more_than_2_31_bytes(ranks):
    """Needs a little over 4 GiB of memory."""
    ranks(2, huge, timeout=280)
