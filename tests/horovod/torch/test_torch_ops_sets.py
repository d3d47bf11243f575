"""Checks of process sets that are added and removed, and of join(). Run on every rank by tests/harness."""

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from harness.rank import needs
from horovod.common.exceptions import HorovodInternalError, OperationFailedError
from test_torch_ops_scatter import OPERATIONS
from torch_support import expect, raises

pytestmark = pytest.mark.ranks(1, 3, framework="torch")


def test_sets_that_need_to_be_dynamic():
    with raises(ValueError, "HOROVOD_DYNAMIC_PROCESS_SETS"):
        hvd.add_process_set([0])
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.remove_process_set(hvd.ProcessSet([0])) is False


@needs(lambda: hvd.size() == 1, "with more ranks [0] is not the set of all")
def test_the_set_of_one_rank_is_there_already():
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    with raises(ValueError, "duplicate process set"):
        hvd.add_process_set([0])


@needs(ranks=2)
def test_sets_that_come_and_go():
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    for _ in range(2):
        first = hvd.add_process_set([0])
        second = hvd.add_process_set(hvd.ProcessSet([hvd.size() - 1]))
        assert sorted((first.process_set_id, second.process_set_id)) == [1, 2]
        ids = hvd.allgather(torch.tensor([[first.process_set_id, second.process_set_id]]))
        assert all(row.tolist() == ids[0].tolist() for row in ids)
        known = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
        assert known[first.process_set_id] == [0] and known[0] == list(range(hvd.size()))
        assert hvd.mpi_ops._basics._process_set_size(second.process_set_id) == 1
        with raises(ValueError, "Attempted to add a duplicate process set"):
            hvd.add_process_set([0])
        with raises(ValueError, "Attempted to add a duplicate process set"):
            hvd.add_process_set(list(range(hvd.size())))
        with raises(ValueError, str(hvd.size())):
            hvd.add_process_set([0, hvd.size()])
        assert first.included() == (hvd.rank() == 0) and (
            first.rank() == 0 if hvd.rank() == 0 else first.size() == 1
        )
        if hvd.rank() != 0:
            with raises(ValueError, "Process is not part of provided process set."):
                first.rank()
        assert hvd.remove_process_set(first) is True and first.process_set_id is None
        assert hvd.remove_process_set(second) is True and hvd.remove_process_set(second) is False
    number = hvd.mpi_ops._basics._add_process_set_impl([0])
    assert number > 0 and hvd.mpi_ops._basics._add_process_set_impl([0]) == number
    assert hvd.mpi_ops._basics._remove_process_set_impl(number) == number
    assert hvd.mpi_ops._basics._remove_process_set_impl(99) == -3
    assert hvd.mpi_ops._basics._comm_process_set_id(None) == -3  # this job has no communicator


@needs(ranks=2)
def test_who_is_no_member():
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    some = hvd.add_process_set(list(range(hvd.size()))[:-1])
    for name, operation in OPERATIONS.items():
        tensor = torch.ones(len(some.ranks), 2)
        if hvd.rank() == hvd.size() - 1:
            with raises(ValueError, f"Rank {hvd.rank()} is not a member of the provided process set."):
                operation(tensor, name=name, process_set=some)
        else:
            operation(tensor, name=name, process_set=some)
            operation(tensor, process_set=some)
    if hvd.rank() == hvd.size() - 1:
        with raises(ValueError, "is not a member"):
            hvd.barrier(some)
    else:
        hvd.barrier(some)
        with raises(ValueError, f"invalid root rank {hvd.size() - 1}"):
            hvd.broadcast(torch.ones(1), hvd.size() - 1, process_set=some)
        assert hvd.broadcast_object({"from": hvd.rank()}, 0, process_set=some) == {"from": 0}
        assert hvd.allgather_object(hvd.rank(), process_set=some) == some.ranks
    hvd.barrier()
    # Operations that are pending in a set fail when the set is removed.
    handle = None
    if hvd.rank() == 0 and len(some.ranks) > 1:
        handle = hvd.alltoall_async(torch.ones(len(some.ranks)), name="pending", process_set=some)
    assert hvd.remove_process_set(some)
    if handle is not None:
        with raises(HorovodInternalError, "Process set has been removed"):
            hvd.synchronize(handle)
    for operation in OPERATIONS.values():
        with raises(ValueError, "does not exist, or has not been registered"):
            operation(torch.ones(2), process_set=some)
    with raises(ValueError, "has not been registered"):
        hvd.barrier(some)
    assert not hvd.mpi_ops._handle_map


@needs(ranks=2)
def test_gradients_within_a_set():
    members = [0, hvd.size() - 1] if hvd.size() > 2 else [hvd.size() - 1]
    hvd.shutdown()
    some = hvd.ProcessSet(members)
    hvd.init(process_sets=[some])
    if some.included():
        gradients_within(some, members)
    hvd.barrier()


def gradients_within(some, members):
    n = len(members)
    for name, operation, wanted in (
        ("allreduce", lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=some), n),
        ("reducescatter", lambda x: hvd.reducescatter(x, op=hvd.Sum, process_set=some), n),
        ("allgather", lambda x: hvd.allgather(x, process_set=some), 1),
        ("alltoall", lambda x: hvd.alltoall(x, process_set=some), 1),
        (
            "broadcast",
            lambda x: hvd.broadcast(x, members[-1], process_set=some),
            int(members[-1] == hvd.rank()),
        ),
    ):
        leaf = torch.ones(2 * n, 3, requires_grad=True)
        operation(leaf).sum().backward()
        expect(leaf.grad, np.full((2 * n, 3), wanted), torch.float32, name)


def test_join_with_every_operation():
    """Rank 0 has no more data: it contributes neutral data, or no rows, and the results are dropped there."""
    if hvd.rank() == 0:
        assert hvd.join() == hvd.size() - 1
    else:
        every_operation_without_rank_0()


def every_operation_without_rank_0():
    others = list(range(hvd.size()))[1:]
    mine = torch.full((2 * hvd.size(), 2), float(hvd.rank() + 1))
    total = sum(r + 1.0 for r in others)

    def whole(value):
        return np.full((2 * hvd.size(), 2), value)

    for name in (None, "joined"):
        expect(hvd.allreduce(mine, op=hvd.Sum, name=name), whole(total), torch.float32)
        expect(hvd.allreduce(mine, op=hvd.Average, name=name), whole(total / hvd.size()), torch.float32)
        expect(hvd.allreduce(mine, op=hvd.Min, name=name), whole(2.0), torch.float32)
        expect(hvd.allreduce(-mine, op=hvd.Max, name=name), whole(-2.0), torch.float32)
        expect(
            hvd.allreduce(mine, op=hvd.Product, name=name),
            whole(np.prod([r + 1.0 for r in others])),
            torch.float32,
        )
        # Parallel vectors.
        expect(hvd.allreduce(torch.ones(3), op=hvd.Adasum, name=name), np.ones(3), torch.float32)
        for out in hvd.grouped_allreduce([mine, mine * 2], op=hvd.Sum, name=name)[:1]:
            expect(out, whole(total), torch.float32)
        expect(hvd.reducescatter(mine, op=hvd.Sum, name=name), np.full((2, 2), total), torch.float32)
        gathered = hvd.allgather(mine[: hvd.rank() + 1, 0].contiguous(), name=name)
        assert gathered.tolist() == [r + 1.0 for r in others for _ in range(r + 1)]
        output, received = hvd.alltoall(mine, splits=[2] * hvd.size(), name=name)
        assert received.tolist() == [0] + [2] * len(others)
        assert output[:, 0].tolist() == [r + 1.0 for r in others for _ in range(2)]
        root = hvd.size() - 1
        expect(hvd.broadcast(mine, root, name=name), whole(root + 1.0), torch.float32)
        with raises(HorovodInternalError, "root rank 0", "has joined"):
            hvd.broadcast(mine, 0, name=name)
        hvd.barrier()
    # One after the other, the highest rank last.
    for batch in range(hvd.rank()):
        hvd.allreduce(torch.ones(1), name=f"batch.{batch}")
    assert hvd.join() == hvd.size() - 1


def test_after_a_join_everything_goes_on():
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()
    assert hvd.alltoall(torch.arange(hvd.size())).tolist() == [hvd.rank()] * hvd.size()
    assert hvd.join(-1) in range(hvd.size()) and hvd.join(device=0) in range(hvd.size())
    assert not hvd.mpi_ops._handle_map


def test_broadcasts_of_models_within_a_set():
    if hvd.size() < 3:
        pytest.skip("a set of some ranks needs a rank that is not in it")
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    some = hvd.add_process_set([0, 2])
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0 + hvd.rank(), momentum=0.5 + hvd.rank())
    model(torch.full((1, 2), float(hvd.rank()))).sum().backward()
    optimizer.step()
    before = model.weight.detach().clone()
    if hvd.rank() == 1:
        with raises(ValueError, "not a member"):
            hvd.broadcast_parameters(model.state_dict(), 2, process_set=some)
        assert torch.equal(model.weight, before)
    else:
        hvd.broadcast_parameters(model.state_dict(), 2, process_set=some)
        hvd.broadcast_optimizer_state(optimizer, 2, process_set=some)
        assert optimizer.param_groups[0]["lr"] == 3.0
        found = hvd.allgather_object(f"{model.state_dict()} {optimizer.state_dict()}", process_set=some)
        assert found[0] == found[1]
        wrong = {"a" if hvd.rank() else "b": torch.ones(1)}
        with raises(OperationFailedError, "'a' is on rank 2, but not on rank 0"):
            hvd.broadcast_parameters(wrong, 2, process_set=some)
    hvd.barrier()
