"""Checks of gradients, run on every rank by tests/harness. The wanted values follow from the definitions."""

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from torch_support import as_float64, expect

pytestmark = pytest.mark.ranks(1, 3, framework="torch")


def weights(rank, shape, seed=0):
    """The incoming gradient, different on each rank."""
    return torch.from_numpy(
        np.random.RandomState(1000 * seed + rank).randint(-4, 5, shape).astype(np.float64)
    )


def leaf(shape):
    return torch.ones(shape, dtype=torch.float64, requires_grad=True)


def test_allreduce():
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, hvd.size())):
        for name in (None, f"grad.{op}"):
            x = leaf((3, 4))
            y = hvd.allreduce(x * 2, op=op, name=name, prescale_factor=0.5, postscale_factor=4.0)
            y.backward(weights(hvd.rank(), (3, 4)))
            wanted = 2 * 2.0 * sum(as_float64(weights(r, (3, 4))) for r in range(hvd.size())) / divisor
            expect(x.grad, wanted, torch.float64)


def test_allreduce_of_an_expanded_gradient():
    x = leaf((5,))
    hvd.allreduce(x, op=hvd.Sum).sum().backward()  # the incoming gradient is one element with strides of 0
    expect(x.grad, np.full(5, hvd.size()), torch.float64)


def test_allreduce_with_compression():
    x = leaf((6,))
    hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16).backward(weights(hvd.rank(), (6,)))
    expect(x.grad, sum(as_float64(weights(r, (6,))) for r in range(hvd.size())), torch.float64)


def test_second_derivative():
    x = leaf((2,))
    (first,) = torch.autograd.grad((hvd.allreduce(x, op=hvd.Sum) ** 2).sum(), x, create_graph=True)
    first.sum().backward()
    # y = n x on all ranks; d/dx sum over ranks of y^2 = n * 2 n x, differentiated once more the same way.
    expect(first, np.full(2, 2.0 * hvd.size() ** 2), torch.float64)
    expect(x.grad, np.full(2, 2.0 * hvd.size() ** 2), torch.float64)


def test_grouped_allreduce():
    for name in (None, "grouped.grad"):
        xs = [leaf((3,)), leaf((2, 2))]
        ys = hvd.grouped_allreduce(xs, op=hvd.Average, name=name, prescale_factor=2.0)
        torch.autograd.backward(ys, [weights(hvd.rank(), (3,)), weights(hvd.rank(), (2, 2), 1)])
        expect(
            xs[0].grad,
            2 * sum(as_float64(weights(r, (3,))) for r in range(hvd.size())) / hvd.size(),
            torch.float64,
        )
        expect(
            xs[1].grad,
            2 * sum(as_float64(weights(r, (2, 2), 1)) for r in range(hvd.size())) / hvd.size(),
            torch.float64,
        )


def test_grouped_allreduce_where_one_output_is_unused():
    xs = [leaf((3,)), leaf((2,))]
    hvd.grouped_allreduce(xs, op=hvd.Sum)[0].sum().backward()
    expect(xs[0].grad, np.full(3, hvd.size()), torch.float64)
    expect(xs[1].grad, np.zeros(2), torch.float64)


def test_allgather():
    # The gradient is the AVERAGE over ranks of the incoming one, this rank's rows of it.
    for name in (None, "gather.grad"):
        for rows in (lambda r: 2, lambda r: r + 1, lambda r: r):
            x = leaf((rows(hvd.rank()), 3))
            total = sum(rows(r) for r in range(hvd.size()))
            hvd.allgather(x, name=name).backward(weights(hvd.rank(), (total, 3)))
            average = sum(as_float64(weights(r, (total, 3))) for r in range(hvd.size())) / hvd.size()
            start = sum(rows(r) for r in range(hvd.rank()))
            expect(x.grad, average[start : start + rows(hvd.rank())], torch.float64)


def test_gradients_keep_no_rows_of_others():
    for gather in (hvd.allgather, lambda x: hvd.grouped_allgather([x])[0]):
        x = leaf((4, 2))
        (gather(x) * 2).sum().backward()
        expect(x.grad, np.full((4, 2), 2.0), torch.float64)
        assert x.grad.untyped_storage().nbytes() == x.grad.numel() * 8


def test_grouped_allgather():
    xs = [leaf((hvd.rank() + 1,)), leaf((2, 2))]
    total = sum(r + 1 for r in range(hvd.size()))
    ys = hvd.grouped_allgather(xs, name="grouped.gather.grad")
    torch.autograd.backward(ys, [weights(hvd.rank(), (total,)), weights(hvd.rank(), (2 * hvd.size(), 2), 1)])
    first = sum(as_float64(weights(r, (total,))) for r in range(hvd.size())) / hvd.size()
    second = sum(as_float64(weights(r, (2 * hvd.size(), 2), 1)) for r in range(hvd.size())) / hvd.size()
    start = sum(r + 1 for r in range(hvd.rank()))
    expect(xs[0].grad, first[start : start + hvd.rank() + 1], torch.float64)
    expect(xs[1].grad, second[2 * hvd.rank() : 2 * hvd.rank() + 2], torch.float64)


def test_contrastive_loss():
    # As CLIP-style training uses it: every rank computes the loss of the whole batch.
    generator = torch.Generator().manual_seed(3)
    everything = torch.randn(2 * hvd.size(), 4, dtype=torch.float64, generator=generator)
    mine = everything[2 * hvd.rank() : 2 * hvd.rank() + 2].clone().requires_grad_()
    gathered = hvd.allgather(mine)
    (gathered @ gathered.T).exp().sum().backward()
    whole = everything.clone().requires_grad_()
    (whole @ whole.T).exp().sum().backward()
    expect(mine.grad, as_float64(whole.grad)[2 * hvd.rank() : 2 * hvd.rank() + 2], torch.float64)


def test_broadcast():
    for root in {0, hvd.size() - 1}:
        x = leaf((4,))
        hvd.broadcast(x * 3, root, name=f"broadcast.grad.{root}").backward(weights(hvd.rank(), (4,)))
        average = sum(as_float64(weights(r, (4,))) for r in range(hvd.size())) / hvd.size()
        expect(x.grad, 3 * average if root == hvd.rank() else np.zeros(4), torch.float64)


def test_alltoall():
    # The gradient of each row is sent back to the rank that sent the row.
    for name, named_splits in (("alltoall.grad", True), (None, True), (None, False)):
        splits = [to + 1 for to in range(hvd.size())] if named_splits else [2] * hvd.size()
        kept = 1 if named_splits else 0
        x = leaf((sum(splits) + kept, 2))
        result = hvd.alltoall(x * 3, splits if named_splits else None, name)
        output = result[0] if named_splits else result
        incoming = [
            as_float64(weights(r, (hvd.size() * (r + 1 if named_splits else 2), 2)))
            for r in range(hvd.size())
        ]
        output.backward(torch.from_numpy(incoming[hvd.rank()]))
        rows = [
            3 * incoming[to][hvd.rank() * splits[to] : (hvd.rank() + 1) * splits[to]]
            for to in range(hvd.size())
        ]
        expect(x.grad, np.concatenate([*rows, np.zeros((kept, 2))]), torch.float64, str(name))
        if named_splits:
            assert result[1].tolist() == [hvd.rank() + 1] * hvd.size() and not result[1].requires_grad


def test_alltoall_twice_differentiated():
    x = leaf((hvd.size(), 2))
    (first,) = torch.autograd.grad((hvd.alltoall(x) ** 3).sum(), x, create_graph=True)
    first.sum().backward()
    expect(first, np.full((hvd.size(), 2), 3.0), torch.float64)
    expect(x.grad, np.full((hvd.size(), 2), 6.0), torch.float64)


def test_reducescatter():
    rows = 2 * hvd.size() + 1  # rank 0 gets one more
    for op, factor in ((hvd.Sum, hvd.size()), (hvd.Average, 1)):
        for name in (None, f"scatter.grad.{op}"):
            x, others = leaf((rows, 3)), leaf((hvd.size(),))
            how = {"op": op, "name": name, "prescale_factor": 0.5, "postscale_factor": 4.0}
            incoming = [weights(r, (2 + (r == 0), 3)) for r in range(hvd.size())]
            kept = incoming[hvd.rank()].clone()
            hvd.reducescatter(x, **how).backward(incoming[hvd.rank()])
            wanted = 2.0 * factor * np.concatenate([as_float64(w) for w in incoming])
            expect(x.grad, wanted, torch.float64, f"{op} {name}")
            assert torch.equal(incoming[hvd.rank()], kept), "the incoming gradient was changed"
            x.grad = None
            ys = hvd.grouped_reducescatter([x, others], **how)
            torch.autograd.backward(ys, [incoming[hvd.rank()], weights(hvd.rank(), (1,), 1)])
            expect(x.grad, wanted, torch.float64, f"grouped {op} {name}")
            second = (
                2.0 * factor * np.concatenate([as_float64(weights(r, (1,), 1)) for r in range(hvd.size())])
            )
            expect(others.grad, second, torch.float64, f"grouped {op} {name}")


def test_reducescatter_twice_differentiated():
    x = leaf((hvd.size(),))
    (first,) = torch.autograd.grad((hvd.reducescatter(x, op=hvd.Sum) ** 2).sum(), x, create_graph=True)
    first.sum().backward()
    # y = n x on all ranks; as for an allreduce.
    expect(first, np.full(hvd.size(), 2.0 * hvd.size() ** 2), torch.float64)
    expect(x.grad, np.full(hvd.size(), 2.0 * hvd.size() ** 2), torch.float64)


def test_reducescatter_without_a_gradient():
    x = leaf((hvd.size(),))
    y = hvd.reducescatter(x, op=hvd.Max)
    try:
        y.sum().backward()
    except NotImplementedError as error:
        assert "hvd.Average and hvd.Sum" in str(error)
    else:
        raise AssertionError("the maximum has a gradient")


def test_no_graph_without_need():
    x = leaf((2,))
    with torch.no_grad():
        assert not hvd.allreduce(x).requires_grad
    assert not hvd.allreduce(x.detach()).requires_grad
    assert (
        hvd.allreduce(x).requires_grad
        and hvd.allgather(x).requires_grad
        and hvd.broadcast(x, 0).requires_grad
        and hvd.alltoall(leaf((hvd.size(),))).requires_grad
        and hvd.reducescatter(x).requires_grad
    )
    assert not hvd.allreduce_(torch.ones(2)).requires_grad


def test_names_that_clients_import():
    from horovod.torch.mpi_ops import (
        HorovodAllgather,
        HorovodAllreduce,
        HorovodAlltoall,
        HorovodBroadcast,
        HorovodGroupedReducescatter,
        HorovodReducescatter,
    )

    x = leaf((2,))
    out = HorovodAllreduce.apply(x, None, None, hvd.Sum, 1.0, 1.0, hvd.global_process_set)
    expect(out, np.full(2, hvd.size()), torch.float64)
    assert HorovodAllgather.apply(x, None, hvd.global_process_set).shape[0] == 2 * hvd.size()
    expect(HorovodBroadcast.apply(x, 0, None, hvd.global_process_set), np.ones(2), torch.float64)
    y = leaf((hvd.size(),))
    assert HorovodAlltoall.apply(y, None, None, hvd.global_process_set).shape == (hvd.size(),)
    rows, received = HorovodAlltoall.apply(y, [1] * hvd.size(), None, hvd.global_process_set)
    assert rows.shape == (hvd.size(),) and received.tolist() == [1] * hvd.size()
    scattered = HorovodReducescatter.apply(y, None, hvd.Sum, hvd.global_process_set, 1.0, 1.0)
    expect(scattered, np.full(1, hvd.size()), torch.float64)
    grouped = HorovodGroupedReducescatter.apply(None, hvd.Sum, hvd.global_process_set, 1.0, 1.0, y)
    expect(grouped[0], np.full(1, hvd.size()), torch.float64)
