"""Groups, messages and failures of torch.distributed over hvd. On three ranks, of which two are a group."""

import gc
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import horovod.torch as hvd
from groups import default_group
from harness.rank import expect

pytestmark = pytest.mark.ranks(3, framework="torch")


def test_groups_of_some_ranks():
    with default_group():
        last = dist.new_group([hvd.size() - 1])
        pair, overlapping = dist.new_group([0, 1]), dist.new_group([0, hvd.size() - 1])
        again = dist.new_group([0, 1])
        assert (dist.get_rank(last) == 0) == (hvd.rank() == hvd.size() - 1)
        for _ in range(3):
            for group, ranks in (
                (pair, {0, 1}),
                (overlapping, {0, hvd.size() - 1}),
                (again, {0, 1}),
                (last, {hvd.size() - 1}),
            ):
                if hvd.rank() in ranks:
                    tensor = torch.tensor([float(hvd.rank() + 1)])
                    dist.all_reduce(tensor, group=group)
                    assert tensor.item() == sum(rank + 1 for rank in ranks)
        if hvd.rank() in (0, 1):
            dist.destroy_process_group(pair)
            tensor = torch.ones(2)
            dist.broadcast(tensor, 1, group=again)
        alone = dist.new_group([hvd.rank()], use_local_synchronization=True)
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=alone)
        assert tensor.sum() == 3
        # The numbers of hvd's own sets are those that they would be without these groups.
        assert sorted(hvd.mpi_ops._basics._get_process_set_ids_and_ranks()) == [0]
    with default_group():  # again
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == hvd.size()


def test_other_backends_for_other_devices():
    """A group of which hvd serves the devices, and Gloo host memory; no rank has such a device."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with default_group(backend="cuda:hvd,cpu:gloo"):
        for _ in range(2):
            tensor = torch.tensor([3, 5, 1 << hvd.rank()])
            dist.all_reduce(tensor, dist.ReduceOp.BOR)  # which hvd has not
            assert tensor.tolist() == [3, 5, (1 << hvd.size()) - 1]
        found = [None] * hvd.size()
        dist.all_gather_object(found, hvd.rank())
        assert found == list(range(hvd.size()))
        assert type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__ == "ProcessGroupGloo"
        assert dist.group.WORLD._get_backend(torch.device("cuda")) is dist.group.WORLD
        dist.barrier()
        group = dist.new_group([0, 1], backend="cpu:hvd,cuda:gloo")
        if hvd.rank() < 2:
            tensor = torch.ones(2)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [2, 2]
            expect(NotImplementedError, lambda: dist.all_reduce(tensor.int(), dist.ReduceOp.BOR, group=group))


def test_both_apis_at_once():
    with default_group():
        for _ in range(5):
            theirs, ours = torch.ones(4), torch.ones(4)
            work = dist.all_reduce(theirs, async_op=True)
            handle = hvd.allreduce_async_(ours, op=hvd.Sum)
            if hvd.rank() == 0:
                hvd.synchronize(handle)
                work.wait()
            else:
                work.wait()
                hvd.synchronize(handle)
            assert theirs.sum() == ours.sum() == 4 * hvd.size()


@pytest.mark.ranks(2, 3, framework="torch")  # of two ranks, the one before is also the one after
def test_messages():
    with default_group():
        left, right = (hvd.rank() - 1) % hvd.size(), (hvd.rank() + 1) % hvd.size()
        received = torch.empty(5)
        # No rank waits for another: a ring.
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.full((5,), float(hvd.rank())), right),
                dist.P2POp(dist.irecv, received, left),
            ]
        )
        for work in works:
            work.wait()
        assert received.tolist() == [left] * 5
        if hvd.rank() == 0:
            for tag in (7, 8):
                dist.send(torch.full((2,), float(tag)), 1, tag=tag)
            second, first = torch.empty(3), torch.empty(3)
            dist.recv(first, 1)
            dist.recv(second, 1)
            assert first[0] == 1 and second[0] == 2
        elif hvd.rank() == 1:
            first, second = torch.empty(2), torch.empty(2)
            later, sooner = dist.irecv(second, 0, tag=8), dist.irecv(first, 0, tag=7)
            later.wait()
            sooner.wait()
            assert (first[0], second[0]) == (7, 8) and later.source_rank() == 0
            works = [dist.isend(torch.full((3,), value), 0) for value in (1.0, 2.0)]
            for work in works:
                work.wait()
        expect(ValueError, lambda: dist.send(torch.ones(1), hvd.rank()))
        things = [None]
        if hvd.rank() == 0:
            dist.send_object_list([{"a": 1}], 1)
        elif hvd.rank() == 1:
            dist.recv_object_list(things, 0)
            assert things == [{"a": 1}]


@pytest.mark.ranks(2, framework="torch")
def test_receives_from_any_source_of_two():
    with default_group():
        if hvd.rank() == 0:
            tensor = torch.empty(2)
            assert dist.recv(tensor, tag=5) == 1
            assert tensor.tolist() == [1.0, 7.0]
        else:
            dist.send(torch.tensor([1.0, 7.0]), 0, tag=5)


def test_receives_from_any_source_of_several():
    with default_group():
        expect(NotImplementedError, lambda: dist.recv(torch.empty(1)), "any source")


def test_a_mistake_of_one_rank_fails_on_all():
    with default_group():
        wrong = hvd.rank() == hvd.size() - 1
        text = expect(RuntimeError, lambda: dist.all_reduce(torch.ones(3 if wrong else 4)))
        assert "Mismatched" in text and "shape" in text
        text = expect(
            RuntimeError,
            lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32 if wrong else torch.float32)),
        )
        assert "data types" in text
        expect(
            RuntimeError, lambda: dist.barrier() if wrong else dist.all_reduce(torch.ones(4)), "Mismatched"
        )
        expect(RuntimeError, lambda: dist.broadcast(torch.ones(4), 1 if wrong else 0), "root")
        expect(RuntimeError, lambda: dist.reduce(torch.ones(4), 1 if wrong else 0), "root")
        op = dist.ReduceOp.MAX if wrong else dist.ReduceOp.SUM
        expect(RuntimeError, lambda: dist.all_reduce(torch.ones(4), op), "reduction")
        # A call that is refused on one rank before the engine sees it.
        op = dist.ReduceOp.BXOR if wrong else dist.ReduceOp.SUM
        expect(RuntimeError, lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32), op), "BXOR")
        output = torch.empty(hvd.size() * (3 if wrong else 2))
        expect(
            (RuntimeError, ValueError),
            lambda: dist.all_gather_into_tensor(output, torch.ones(2)),
            "all_gather",
        )
        splits = [1] * hvd.size()
        received = [2] + [1] * (hvd.size() - 1) if wrong else splits
        expect(
            RuntimeError,
            lambda: dist.all_to_all_single(
                torch.empty(sum(received)), torch.ones(hvd.size()), received, splits
            ),
            "splits",
        )
        root = torch.ones(2) if hvd.rank() == 0 else None
        expect(
            RuntimeError,
            lambda: (
                dist.gather(torch.ones(2), [root] * hvd.size() if hvd.rank() == 0 else None)
                if not wrong
                else dist.scatter(torch.ones(2), None, src=0)
            ),
        )
        # A failure in a future, and the group goes on.
        work = dist.all_reduce(torch.ones(5 if wrong else 6), async_op=True)
        expect(RuntimeError, work.get_future().wait, "Mismatched")
        assert work.exception() is not None and not work.is_success()
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        assert tensor.sum() == 4 * hvd.size()
        if hvd.rank() < 2:
            size = 3 if hvd.rank() == 1 else 2
            expect(
                RuntimeError,
                lambda: dist.send(torch.ones(2), 1) if hvd.rank() == 0 else dist.recv(torch.ones(size), 0),
            )


def test_limits_of_time():
    with default_group():
        group = dist.new_group([0, 1], timeout=timedelta(seconds=60))
        if hvd.rank() == 0:
            work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
            expect(RuntimeError, lambda: work.wait(timedelta(milliseconds=50)), "Timed out", "50ms")
            expect(RuntimeError, lambda: group.monitored_barrier(timedelta(milliseconds=50)), "Rank 1 failed")
            group.set_timeout(timedelta(milliseconds=150))
            tensor = torch.ones(3)
            expect(RuntimeError, lambda: dist.all_reduce(tensor, group=group), "Timed out", "150ms")
        dist.barrier()
        if hvd.rank() == 1:
            dist.all_reduce(torch.ones(2), group=group)
            # The calls that rank 0 has given up on are under way still.
            dist.barrier(group=group)
            dist.all_reduce(torch.ones(3), group=group)
        if hvd.rank() == 0:
            assert work.wait()


def test_works_outlive_their_way_through_cpp():
    """PyTorch 2.4 forgets the half of a work that is in Python; DDP and functional collectives come by this way."""
    from horovod.torch.distributed import _work

    with default_group() as group:
        options = dist.AllreduceOptions()
        if hasattr(options, "asyncOp"):
            options.asyncOp = True
        for get in (lambda work: work.wait(), lambda work: work.get_future().wait()):
            tensor = torch.full((1000,), hvd.rank() + 1.0)
            work = dist.ProcessGroup.allreduce(group, [tensor], options)
            gc.collect()
            get(work)
            assert (tensor == hvd.size() * (hvd.size() + 1) / 2).all()
        before = len(_work._kept)
        for _ in range(100):
            work = dist.all_reduce(torch.ones(8), async_op=True)
        work.wait()
        assert len(_work._kept) <= before + 9
