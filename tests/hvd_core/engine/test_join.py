"""Join with every operation: what a rank that has no more data contributes, also to process sets."""

import numpy as np
import pytest

import hvd_core as hvd
from harness.rank import expect
from hvd_core._runtime import runtime


@pytest.mark.ranks(3)
def test_every_operation_while_one_rank_has_joined():
    rank = hvd.rank()
    if rank != 1:
        x = np.array([2.0, -3.0]) * (rank + 1)
        reduced = {
            op: hvd.allreduce(x, name=f"r{op}", op=op)
            for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product, hvd.Adasum)
        }
        both = np.stack([np.array([2.0, -3.0]) * k for k in (1, 3)])
        assert np.array_equal(reduced[hvd.Sum], both.sum(0))
        assert np.allclose(reduced[hvd.Average], both.sum(0) / 3)  # of the whole set, as in Horovod
        assert np.array_equal(reduced[hvd.Min], both.min(0)) and np.array_equal(reduced[hvd.Max], both.max(0))
        assert np.array_equal(reduced[hvd.Product], both.prod(0))
        assert np.allclose(reduced[hvd.Adasum], both.mean(0))  # parallel vectors, and nothing from rank 1
        assert hvd.allgather(np.array([rank] * (rank + 1))).tolist() == [0, 2, 2, 2]
        assert hvd.broadcast(np.array([rank]), 2) == 2
        expect(hvd.HorovodInternalError, lambda: hvd.broadcast(np.ones(1), 1), "root rank 1", "joined")
        out, received = hvd.alltoall(np.array([rank, 10 + rank, 20 + rank]), splits=[1, 1, 1])
        assert out.tolist() == [0 + 10 * rank, 2 + 10 * rank] and received.tolist() == [1, 0, 1]
        mine = hvd.reducescatter(np.arange(5.0), op=hvd.Sum)
        assert mine.tolist() == ([0.0, 2.0], None, [8.0])[rank]
        low = hvd.reducescatter(np.arange(5.0) + rank, op=hvd.Min)
        assert low.tolist() == ([0.0, 1.0], None, [4.0])[rank]
        a, b = hvd.grouped_allreduce([np.ones(2), np.ones(1, np.int32)], op=hvd.Sum)
        assert (a == 2).all() and b == 2
        hvd.barrier()
        expect(
            hvd.HorovodInternalError,
            lambda: hvd.allreduce(np.ones(1), op=hvd.Max, prescale_factor=2.0),
            "prescale",
            "joined",
        )
    last = hvd.join()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == 3
    assert (hvd.allgather(np.array([last])) == last).all() and last != 1


@pytest.mark.ranks(4, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})
def test_join_and_process_sets():
    rank = hvd.rank()
    sets = [hvd.add_process_set(r) for r in ([0, 1], [1, 2, 3], [3])]
    if rank != 1:
        for step in range(5 + rank):
            for ps in sets:
                if not ps.included():
                    continue
                live = [r for r in ps.ranks if r != 1 and step < 5 + r]
                assert hvd.allreduce(np.array([1.0]), op=hvd.Sum, process_set=ps) == len(live), (step, ps)
                assert hvd.allgather(np.array([rank]), process_set=ps).tolist() == live
    if rank == 3:  # done when all others have joined, also rank 0, which meets this one in none of the sets
        assert hvd.allreduce(np.array([1.0]), op=hvd.Sum) == 1
    last = hvd.join()
    assert last == 3
    for ps in sets:
        if ps.included():
            assert hvd.allreduce(np.array([1.0]), op=hvd.Sum, process_set=ps) == ps.size()
    hvd.barrier()


@pytest.mark.ranks(3, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})
def test_a_set_may_begin_and_end_while_ranks_have_joined():
    rank = hvd.rank()
    if rank != 2:
        ps = hvd.add_process_set([0, 2])
        if rank == 0:
            assert hvd.allreduce(np.ones(2), op=hvd.Sum, process_set=ps).tolist() == [1, 1]
        hvd.add_process_set([1])
        hvd.remove_process_set(ps)
    hvd.join()
    assert sorted(runtime.engine().process_sets()) == [0, 2]
