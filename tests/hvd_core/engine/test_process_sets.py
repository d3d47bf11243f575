"""Process sets through the NumPy API: static and dynamic, overlapping, ids, removal, and mistakes with them."""

import numpy as np
import pytest

import hvd_core as hvd
from harness.rank import expect
from hvd_core._runtime import runtime

DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


@pytest.mark.ranks(3)
def test_sets_named_in_init():
    rank = hvd.rank()
    hvd.shutdown()
    pair, ends = hvd.ProcessSet([1, 0]), hvd.ProcessSet([0, 2])
    assert pair.size() is None and pair.rank() is None
    hvd.init(process_sets=[pair, ends])
    assert (pair.process_set_id, ends.process_set_id, hvd.global_process_set.process_set_id) == (1, 2, 0)
    assert pair.ranks == [0, 1] and hvd.global_process_set.ranks == [0, 1, 2]
    assert runtime.engine().process_sets() == {0: [0, 1, 2], 1: [0, 1], 2: [0, 2]}
    for ps in (pair, ends):
        assert ps.included() == (rank in ps.ranks) and ps.size() == 2
        if not ps.included():
            expect(ValueError, ps.rank, "Process is not part of provided process set.")
            expect(
                ValueError, lambda: hvd.allreduce(np.ones(1), process_set=ps), f"Rank {rank} is not a member"
            )
            continue
        assert ps.rank() == ps.ranks.index(rank)
        assert hvd.allreduce(np.array([float(rank)]), op=hvd.Sum, process_set=ps) == sum(ps.ranks)
        assert hvd.allgather(np.array([rank]), process_set=ps).tolist() == ps.ranks
        for root in ps.ranks:
            assert hvd.broadcast(np.array([rank]), root, process_set=ps) == root
        outsider = ({0, 1, 2} - set(ps.ranks)).pop()
        expect(ValueError, lambda: hvd.broadcast(np.ones(1), outsider, process_set=ps), "invalid root rank")
        out, received = hvd.alltoall(np.array([rank, rank + 10, 5]), splits=[1, 1], process_set=ps)
        assert out.tolist() == [r + 10 * ps.rank() for r in ps.ranks] and received.tolist() == [1, 1]
        mine = hvd.reducescatter(np.arange(3.0), op=hvd.Sum, process_set=ps)
        assert mine.tolist() == ([0.0, 2.0], [4.0])[ps.rank()]
        hvd.barrier(process_set=ps)
    expect(ValueError, lambda: hvd.add_process_set([0]), "HOROVOD_DYNAMIC_PROCESS_SETS")
    hvd.barrier()  # a rank in no set would end the job for the members
    hvd.shutdown()
    assert pair.process_set_id is None and ends.size() is None
    hvd.init()


@pytest.mark.ranks(2)
def test_a_set_that_stands_twice_in_init_is_refused_and_init_can_be_called_again():
    hvd.shutdown()
    again = hvd.ProcessSet([1])
    expect(ValueError, lambda: hvd.init(process_sets=[again, [1]]), "entry 1", "[1]")
    assert hvd.is_initialized()
    expect(ValueError, lambda: hvd.init(process_sets=[[0, 1]]), "global process set")
    hvd.init(process_sets=[again])
    assert again.process_set_id == 1
    same = hvd.ProcessSet([1])
    hvd.init(process_sets=[same])  # bookkeeping only: it is there
    assert same.process_set_id == 1
    hvd.barrier()


@pytest.mark.ranks(3, env=DYNAMIC)
def test_sets_that_come_and_go():
    rank = hvd.rank()
    a, b, c = (hvd.add_process_set(r) for r in ([0], [1, 2], [0, 1]))
    assert [s.process_set_id for s in (a, b, c)] == [1, 2, 3]
    assert hvd.remove_process_set(b) and hvd.remove_process_set(a)
    assert b.process_set_id is None and not hvd.remove_process_set(b)
    assert not hvd.remove_process_set(hvd.global_process_set)
    expect(ValueError, lambda: hvd.allreduce(np.ones(1), process_set=b), "has not been registered")
    # Numbers that became free first are given out first.
    d, e, f = (hvd.add_process_set(r) for r in ([2], [0, 2], [1]))
    assert [s.process_set_id for s in (d, e, f)] == [2, 1, 4]
    if e.included():
        assert hvd.allgather(np.array([rank]), process_set=e).tolist() == [0, 2]
    for ranks in ([0, 1, 2], [2, 0]):
        expect(ValueError, lambda: hvd.add_process_set(ranks), "Attempted to add a duplicate process set")
    expect(ValueError, lambda: hvd.add_process_set([0, 3]), "Rank 3", "3 ranks of this job")
    expect(ValueError, lambda: hvd.add_process_set([1, 1]), "more than once")
    expect(ValueError, lambda: hvd.add_process_set([]), "at least one rank")
    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == 3


@pytest.mark.ranks(3, env=DYNAMIC)
def test_ranks_that_disagree_about_a_set_all_hear_it():
    rank = hvd.rank()

    def call():
        return hvd.add_process_set([0, 1] if rank == 1 else [0, 2])

    expect(hvd.HorovodInternalError, call, "Mismatched process sets", "rank 1", "ranks 0, 2")
    left, right = hvd.add_process_set([0, 1]), hvd.add_process_set([1, 2])

    def call():
        return hvd.remove_process_set(left if rank == 0 else right)

    expect(hvd.HorovodInternalError, call, "Mismatched process sets")

    def call():
        return hvd.add_process_set([0]) if rank else hvd.remove_process_set(hvd.ProcessSet([7]))

    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == 3


@pytest.mark.ranks(3, env=DYNAMIC)
def test_what_is_pending_in_a_removed_set_fails():
    rank = hvd.rank()
    ps = hvd.add_process_set([0, 1])
    if rank == 0:
        lonely = hvd.allreduce_async(np.ones(4), name="lonely", process_set=ps)
        gathered = hvd.allgather_async(np.ones(4), process_set=ps)
    hvd.remove_process_set(ps)
    if rank == 0:
        for handle in (lonely, gathered):
            expect(hvd.HorovodInternalError, lambda: hvd.synchronize(handle), "Process set has been removed")
    again = hvd.add_process_set([0, 1])
    if again.included():
        assert hvd.allreduce(np.ones(1), name="lonely", op=hvd.Sum, process_set=again) == 2
    hvd.barrier()


@pytest.mark.ranks(4, env=DYNAMIC, timeout=200)
def test_overlapping_sets_in_different_orders():
    rank = hvd.rank()
    sets = [hvd.global_process_set] + [
        hvd.add_process_set(r) for r in ([0, 1], [1, 2], [2, 3], [0, 3], [0, 1, 3])
    ]
    rng = np.random.default_rng(rank)
    for step in range(60):
        mine = [s for s in sets if s.included()]
        rng.shuffle(mine)
        handles = [
            (s, i, hvd.allreduce_async(np.full(1 + i, rank + step), name=f"t{i}", op=hvd.Sum, process_set=s))
            for s in mine
            for i in rng.permutation(3)
        ]
        rng.shuffle(handles)
        for s, i, handle in handles:
            assert (hvd.synchronize(handle) == sum(r + step for r in s.ranks)).all(), (step, s, i)
    hvd.barrier()  # a rank that is in fewer sets would leave before the others are through


@pytest.mark.ranks(3, env=DYNAMIC)
def test_unnamed_operations_are_counted_per_set():
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        for _ in range(3):
            hvd.allreduce(np.ones(1), process_set=pair)
    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == 3
