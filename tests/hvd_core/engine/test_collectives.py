"""Alltoall and reducescatter through the NumPy API: uneven, empty, changing sizes, groups, and mistakes."""

import numpy as np
import pytest

import hvd_core as hvd
from harness.rank import expect


@pytest.mark.ranks(3)
def test_alltoall_with_sizes_that_change_each_step():
    rank, size = hvd.rank(), hvd.size()
    for step in range(40):
        sizes = np.random.default_rng(step).integers(0, 5, (size, size))  # the same on all ranks
        rows = sizes[rank].sum() + step % 2  # a row at the end that is not sent
        mine = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) + 1000 * rank
        out, received = hvd.alltoall(mine, splits=sizes[rank].tolist(), name="steady")
        assert received.dtype == np.int32 and received.tolist() == sizes[:, rank].tolist()
        begins = [sizes[r, :rank].sum() for r in range(size)]
        want = [
            np.arange(b * 2, (b + n) * 2, dtype=np.float32).reshape(n, 2) + 1000 * r
            for r, (b, n) in enumerate(zip(begins, sizes[:, rank]))
        ]
        assert np.array_equal(out, np.concatenate(want)), step
    assert hvd.alltoall(np.zeros((0, 3))).shape == (0, 3)
    outs, received = hvd.grouped_alltoall([np.full(size, rank), np.full((size, 2), rank, np.uint8)])
    assert outs[0].tolist() == [0, 1, 2] and outs[1].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert [r.tolist() for r in received] == [[1, 1, 1]] * 2


@pytest.mark.ranks(3)
def test_reducescatter_shares_and_groups():
    rank, size = hvd.rank(), hvd.size()
    for rows in range(8):
        whole = np.arange(rows * 2, dtype=np.float64).reshape(rows, 2)
        mine = hvd.reducescatter(whole * (rank + 1), op=hvd.Sum)
        begin = sum(rows // size + (r < rows % size) for r in range(rank))
        assert np.array_equal(mine, whole[begin : begin + len(mine)] * 6), rows
        assert len(mine) == rows // size + (rank < rows % size)
    assert hvd.reducescatter(np.array([7, 8, 9]) + rank).tolist() == [8 + rank]  # the average
    a, b = hvd.grouped_reducescatter([np.ones(4, np.float32), np.full((3, 1), 2, np.int64)], op=hvd.Sum)
    assert a.tolist() == ([3.0, 3.0], [3.0], [3.0])[rank] and b.tolist() == [[6]]
    for op, want in ((hvd.Min, 0), (hvd.Max, 2), (hvd.Product, 0)):
        assert hvd.reducescatter(np.full(3, rank), op=op).tolist() == [want]
    scaled = hvd.reducescatter(np.ones(3), op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
    assert scaled.tolist() == [3.0]


@pytest.mark.ranks(2)
def test_mistakes_in_one_call_fail_that_call_everywhere():
    rank = hvd.rank()

    def both(call, text):
        if rank == 0:
            return expect(ValueError, call, text)
        return expect(hvd.HorovodInternalError, call, text, "rank 0")

    both(lambda: hvd.alltoall(np.ones(4), splits=[2, 3] if rank == 0 else [2, 2], name="a"), "Sum of splits")
    both(lambda: hvd.alltoall(np.ones(4), splits=[2] if rank == 0 else [2, 2], name="a"), "Number of entries")
    both(lambda: hvd.alltoall(np.ones(3 if rank == 0 else 4), name="a"), "even multiple")
    both(lambda: hvd.reducescatter(np.ones(()) if rank == 0 else np.ones(2), name="a"), "scalar")
    for call, text in (
        (lambda: hvd.alltoall(np.ones((4, 2 + rank)), name="b"), "Mismatched ALLTOALL tensor shapes"),
        (lambda: hvd.alltoall(np.ones(()), name="b"), "ALLTOALL a rank-zero tensor"),
        (lambda: hvd.reducescatter(np.ones(4 + rank), name="b"), "Mismatched REDUCESCATTER tensor shapes"),
        (
            lambda: hvd.reducescatter(np.ones(4), name="b", op=(hvd.Sum, hvd.Max)[rank]),
            "Mismatched reduction operation",
        ),
        (
            lambda: hvd.grouped_reducescatter([np.ones(2)] * (1 + rank), name="b"),
            "Mismatched groups",
        ),
        (
            lambda: hvd.allreduce(np.ones(2), name="b", op=(hvd.Sum, hvd.Adasum)[rank]),
            "Mismatched operations",
        ),
    ):
        expect(hvd.HorovodInternalError, call, text)
    expect(ValueError, lambda: hvd.allreduce(np.ones(2, np.int32), op=hvd.Adasum), "Adasum")
    assert hvd.allreduce(np.ones(1), name="a", op=hvd.Sum) == 2
