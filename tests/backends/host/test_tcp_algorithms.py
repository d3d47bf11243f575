"""The ways the tcp backend has to serve one operation: each of them, forced by options, against NumPy."""

import numpy as np
import pytest

from abi_ctypes import ALLREDUCE, AVG, BARRIER, BFLOAT16, BROADCAST, MAX, MIN, PROD, REDUCE, SUM
from reference import check, check_sums, columns_for, digest, pieces, same_bits, sample

pytestmark = pytest.mark.timeout(120)
RING = {"ring_ranks": 2, "small_kib": 0, "chunk_kib": 16}
EVERY_OPERATION = 100_000  # up to this count each operation is tried, with factors and without


@pytest.fixture
def backend_name():
    return "tcp"


def reductions(comm, dtype, counts):
    """Digests of all results, which must be the same on all ranks: the values are compared on the first rank alone."""
    number = BFLOAT16 if dtype == "bfloat16" else None
    digests = []
    for count in counts:
        columns = columns_for(comm, dtype, count)
        for op in (SUM, PROD, MIN, MAX, AVG):
            for factors in ({}, {"pre": 0.5, "post": 3.0}):
                # Larger buffers are divided alike for every operation.
                if count > EVERY_OPERATION and (op, bool(factors)) not in ((SUM, True), (MAX, False)):
                    continue
                mine = columns[comm.rank].copy()
                out = np.zeros_like(mine)
                comm.run(ALLREDUCE, [mine], [out], op=op, dtype=number, **factors)
                if comm.rank == 0:
                    check(out, dtype, op, columns, f"op {op} of {count}, {factors}", **factors)
                comm.run(ALLREDUCE, [mine], [mine], op=op, dtype=number, **factors)
                assert same_bits(mine, out), "in place differs"
                digests.append(digest(out))
    return digests


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [3, 4, 5])
def test_ring(ranks, dtype, size):
    """Slices of more and of fewer chunks than the window, and a last one that is short or empty."""
    counts = (size * 16_384 + 5, 400_001) if size < 5 else (size * 65_536 // 4 + 5,)
    results = ranks(size, reductions, dtype, counts, options=RING)
    assert all(r == results[0] for r in results), "ranks ended with different bits"


@pytest.mark.parametrize(
    "options", [{"small_kib": 0}, {"small_kib": 16_384}, {"sockets_per_peer": 4}], ids=str
)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_at_once_or_in_slices(ranks, options, size):
    results = ranks(size, reductions, "float32", (1, 77, 20_011), options={"chunk_kib": 16, **options})
    assert all(r == results[0] for r in results)


def lists_around_the_ring(comm):
    """Digests as of reductions()."""
    digests = []
    for lengths in ([3] * 30_000, [50_000, 1, 70_001, 0, 16_384, 100_003]):
        columns = columns_for(comm, "float32", sum(lengths))
        mine = [c.copy() for c in pieces(columns[comm.rank], lengths)]
        comm.run(ALLREDUCE, mine, mine, op=SUM)
        if comm.rank == 0:
            check_sums(mine, columns, "in place")
        digests.append(digest(np.concatenate(mine)))
    return digests


def test_lists_around_the_ring(ranks):
    results = ranks(3, lists_around_the_ring, options=RING)
    assert all(r == results[0] for r in results), "ranks ended with different bits"


def reduces(comm):
    for count in (3, 100_000, 2_000_003):
        columns = [sample("float32", r, count) for r in range(comm.size)]
        for root in (0, comm.size - 1):
            out = np.full(count, 99, np.float32)
            comm.run(REDUCE, [columns[comm.rank]], [out], op=SUM, root=root)
            if comm.rank == root:
                check(out, "float32", SUM, columns, f"reduce of {count}")
            else:
                assert (out == 99).all(), "only the root's output is written"


@pytest.mark.parametrize("options", [{}, {"small_kib": 0, "chunk_kib": 16, "sockets_per_peer": 2}], ids=str)
@pytest.mark.parametrize("size", [2, 5])
def test_reduce(ranks, options, size):
    ranks(size, reduces, options=options)


def broadcasts(comm):
    for count in (1, 5_000, 300_000):
        for root in range(comm.size):
            value = sample("int32", root, count)
            got = value.copy() if comm.rank == root else np.zeros_like(value)
            comm.run(BROADCAST, [got], [got], root=root)
            assert np.array_equal(got, value), (count, root)
    comm.run(BARRIER)


@pytest.mark.parametrize("options", [{"small_kib": 0, "chunk_kib": 16}, {"small_kib": 16_384}], ids=str)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_broadcast(ranks, options, size):
    ranks(size, broadcasts, options=options)


def uneven_pace(comm):
    """A root that runs ahead by many operations, which the others find in their sockets later."""
    import time

    for turn in range(200):
        a = np.full(50, turn if comm.rank == 0 else -1, np.int32)
        if comm.rank == 1 and turn == 3:
            time.sleep(0.3)
        comm.run(BROADCAST, [a], [a])
        assert (a == turn).all()
    comm.run(BARRIER)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_may_be_operations_ahead(ranks, size, lanes):
    ranks(size, uneven_pace, options={"sockets_per_peer": lanes})


def barriers_behind_data(comm):
    a = np.zeros(300_000, np.float32)
    for _ in range(100):
        comm.run(ALLREDUCE, [a], [a], seconds=30)
        comm.run(BARRIER, seconds=30)


@pytest.mark.parametrize("size", [3, 4])
def test_headers_that_overtake(ranks, size):
    """Over several connections a header of the next operation may come first, with nothing behind it to wake for."""
    ranks(size, barriers_behind_data, options={"sockets_per_peer": 4, "chunk_kib": 16})
