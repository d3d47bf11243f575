"""The collectives of torch.distributed over hvd. On three ranks, as parts are uneven then."""

import pytest
import torch
import torch.distributed as dist

import horovod.torch as hvd
from groups import default_group
from harness.rank import expect

pytestmark = pytest.mark.ranks(3, framework="torch")

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
]
SHAPES = [(), (1,), (0,), (7,), (3, 4, 5), (1000, 33)]


def mine(shape, dtype=torch.float32, rank=None):
    rank = hvd.rank() if rank is None else rank
    return (
        (torch.arange(max(1, torch.Size(shape).numel())) % 5 + rank + 1)[: torch.Size(shape).numel()]
        .reshape(shape)
        .to(dtype)
    )


def of_all(shape, dtype=torch.float32):
    return [mine(shape, dtype, rank) for rank in range(hvd.size())]


def test_reductions():
    with default_group():
        for dtype in DTYPES:
            for shape in SHAPES:
                tensor = mine(shape, dtype)
                dist.all_reduce(tensor)
                assert torch.equal(tensor, sum(of_all(shape, dtype))), (dtype, shape)
        parts = torch.stack(of_all((5,)))
        for op, expected in (
            (dist.ReduceOp.MAX, parts.amax(0)),
            (dist.ReduceOp.MIN, parts.amin(0)),
            (dist.ReduceOp.PRODUCT, parts.prod(0)),
            (dist.ReduceOp.AVG, parts.mean(0)),
        ):
            tensor = mine((5,))
            work = dist.all_reduce(tensor, op, async_op=True)
            assert work.wait() and work.is_completed() and work.is_success()
            torch.testing.assert_close(tensor, expected)
        for root in range(hvd.size()):
            tensor = mine((6,))
            dist.reduce(tensor, root)
            assert torch.equal(tensor, parts_sum((6,)) if root == hvd.rank() else mine((6,)))
        transposed = torch.zeros(4, 3).t().copy_(mine((3, 4)))
        dist.all_reduce(transposed)
        assert torch.equal(transposed, parts_sum((3, 4)))
        complex_one = torch.complex(mine((4,)), -mine((4,)))
        dist.all_reduce(complex_one)
        assert torch.equal(complex_one, torch.complex(parts_sum((4,)), -parts_sum((4,))))
        with dist._coalescing_manager():
            several = [mine((n,)) for n in (1, 5, 9)]
            for tensor in several:
                dist.all_reduce(tensor)
        assert all(torch.equal(tensor, parts_sum(tensor.shape)) for tensor in several)


def parts_sum(shape):
    return sum(of_all(shape))


def test_movements():
    with default_group():
        for dtype in (*DTYPES, torch.bool, torch.complex64):
            for shape in SHAPES[:5]:
                expected = of_all(shape, dtype)
                for root in range(hvd.size()):
                    tensor = mine(shape, dtype) if root == hvd.rank() else torch.zeros(shape, dtype=dtype)
                    dist.broadcast(tensor, root)
                    assert torch.equal(tensor, expected[root])
                gathered = [torch.empty(shape, dtype=dtype) for _ in range(hvd.size())]
                dist.all_gather(gathered, mine(shape, dtype))
                assert all(map(torch.equal, gathered, expected)), (dtype, shape)
                root = hvd.size() - 1
                gathered = (
                    [torch.empty(shape, dtype=dtype) for _ in range(hvd.size())]
                    if root == hvd.rank()
                    else None
                )
                dist.gather(mine(shape, dtype), gathered, dst=root)
                assert root != hvd.rank() or all(map(torch.equal, gathered, expected))
                part = torch.empty(shape, dtype=dtype)
                dist.scatter(part, expected if root == hvd.rank() else None, src=root)
                assert torch.equal(part, expected[hvd.rank()])
        whole = torch.empty(hvd.size() * 3, 2)
        rows = list(whole.view(hvd.size(), 3, 2).unbind())
        dist.all_gather(rows, mine((3, 2)))  # straight into one memory
        assert torch.equal(whole, torch.cat(of_all((3, 2))))
        for output in (torch.empty(hvd.size() * 3, 2), torch.empty(hvd.size(), 3, 2)):
            dist.all_gather_into_tensor(output, mine((3, 2)))
            assert torch.equal(output.view(-1, 2), torch.cat(of_all((3, 2))))
        place = whole.view(hvd.size(), 3, 2)[hvd.rank()].copy_(mine((3, 2)))
        dist.all_gather_into_tensor(whole, place)  # the input lies in the output
        assert torch.equal(whole, torch.cat(of_all((3, 2))))
        uneven = [torch.empty(rank + 1) for rank in range(hvd.size())]
        dist.all_gather(uneven, mine((hvd.rank() + 1,)))
        assert all(torch.equal(t, mine((r + 1,), rank=r)) for r, t in enumerate(uneven))


def test_calls_that_are_waited_for_at_once():
    """all_reduce of one tensor has a short way; these tensors take it, or another one."""
    with default_group():
        expected = parts_sum((2, 3))
        weights = torch.nn.Parameter(mine((2, 3)))
        trained = mine((2, 3)).requires_grad_()
        strided = torch.zeros(3, 2).t().copy_(mine((2, 3)))
        negative = torch.complex(torch.zeros(2, 3), -mine((2, 3))).conj().imag
        assert negative.is_neg()
        for tensor in (weights, trained, strided, negative, mine((2, 3)), mine((2, 3))[:, :]):
            dist.all_reduce(tensor)
            assert torch.equal(tensor.detach(), expected)
        for shape in ((), (0,), (0, 4)):
            tensor = mine(shape)
            dist.all_reduce(tensor)
            assert torch.equal(tensor, parts_sum(shape))
        for op, wanted in (
            (dist.ReduceOp.AVG, expected / hvd.size()),
            (dist.ReduceOp.MAX, mine((2, 3), rank=hvd.size() - 1)),
        ):
            tensor = mine((2, 3))
            dist.all_reduce(tensor, op)
            torch.testing.assert_close(tensor, wanted)
        tensor = mine((2, 3))
        dist.all_reduce(tensor, torch._C._distributed_c10d._make_nccl_premul_sum(2.0))
        assert torch.equal(tensor, expected * 2)
        expect(
            RuntimeError,
            lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32), dist.ReduceOp.BAND),
            "BAND",
        )


def test_large_parts_of_a_root():
    """gather, scatter and reduce of tensors that the engine takes one by one."""
    with default_group():
        for shape, dtype in (
            ((20_000,), torch.float32),
            ((300, 300), torch.bool),
            ((9000,), torch.complex64),
        ):
            expected = of_all(shape, dtype)
            for root in range(hvd.size()):
                sent = mine(shape, dtype)
                places = [torch.empty(shape, dtype=dtype) for _ in range(hvd.size())]
                if root == hvd.rank():
                    places[0] = (
                        torch.empty(*reversed(shape), dtype=dtype).t() if len(shape) > 1 else places[0]
                    )
                    sent = places[hvd.rank()].copy_(sent)  # the root's own part is in its place
                dist.gather(sent, places if root == hvd.rank() else None, root)
                assert root != hvd.rank() or all(map(torch.equal, places, expected)), (shape, root)
                part = torch.empty(*reversed(shape), dtype=dtype).t() if len(shape) > 1 else sent
                given = [each.clone() for each in expected]
                work = dist.scatter(part, given if root == hvd.rank() else None, root, async_op=True)
                work.wait()
                assert torch.equal(part, expected[hvd.rank()])
        tensor = mine((3000, 7))
        dist.reduce(tensor, hvd.size() - 1, dist.ReduceOp.AVG)
        wanted = parts_sum((3000, 7)) / hvd.size() if hvd.rank() == hvd.size() - 1 else mine((3000, 7))
        torch.testing.assert_close(tensor, wanted)
        expect(
            (RuntimeError, ValueError),
            lambda: dist.scatter(
                torch.empty(20_000), [torch.empty(20_001)] * hvd.size() if hvd.rank() == 0 else None, 0
            ),
        )
        dist.barrier()


def test_scattered_reductions():
    with default_group():
        summed = parts_sum((hvd.size() * 2, 3))
        output = torch.empty(2, 3)
        dist.reduce_scatter_tensor(output, mine((hvd.size() * 2, 3)))
        assert torch.equal(output, summed.view(hvd.size(), 2, 3)[hvd.rank()])
        output = torch.empty(2, 3)
        dist.reduce_scatter(
            output, list(mine((hvd.size() * 2, 3)).view(hvd.size(), 2, 3).unbind()), dist.ReduceOp.MAX
        )
        assert torch.equal(
            output, torch.stack(of_all((hvd.size() * 2, 3))).amax(0).view(hvd.size(), 2, 3)[hvd.rank()]
        )
        output = torch.empty(hvd.rank() + 1)
        dist.reduce_scatter(output, [mine((rank + 1,)) for rank in range(hvd.size())])
        assert torch.equal(output, parts_sum((hvd.rank() + 1,)))
        in_place, begin = mine((hvd.size() * 2,)), hvd.rank() * 2
        dist.reduce_scatter_tensor(in_place[begin : begin + 2], in_place)
        assert torch.equal(in_place[begin : begin + 2], parts_sum((hvd.size() * 2,))[begin : begin + 2])


def test_exchanges():
    with default_group():
        table = [
            [torch.full((a + 2 * b, 2), float(10 * a + b)) for b in range(hvd.size())]
            for a in range(hvd.size())
        ]
        sent, expected = table[hvd.rank()], [row[hvd.rank()] for row in table]
        received = [torch.empty_like(tensor) for tensor in expected]
        dist.all_to_all(received, sent)
        assert all(map(torch.equal, received, expected))
        output = torch.empty(sum(len(t) for t in expected), 2)
        dist.all_to_all_single(output, torch.cat(sent), [len(t) for t in expected], [len(t) for t in sent])
        assert torch.equal(output, torch.cat(expected))
        expected = torch.stack([t.view(hvd.size(), 2, 3)[hvd.rank()] for t in of_all((hvd.size() * 2, 3))])
        output = torch.empty(hvd.size() * 2, 3)
        dist.all_to_all_single(output, mine((hvd.size() * 2, 3)))
        assert torch.equal(
            output.view(hvd.size(), 2, 3),
            expected,
        )
        output = mine((hvd.size() * 2, 3))
        dist.all_to_all_single(output, output)  # in place
        assert torch.equal(
            output.view(hvd.size(), 2, 3),
            expected,
        )


def test_objects_and_barriers():
    with default_group() as group:
        found = [None] * hvd.size()
        dist.all_gather_object(found, {"rank": hvd.rank(), "text": "x" * hvd.rank()})
        assert found == [{"rank": r, "text": "x" * r} for r in range(hvd.size())]
        things = [("one", 2), None] if hvd.rank() == 0 else [None, None]
        dist.broadcast_object_list(things, 0)
        assert things == [("one", 2), None]
        found = [None] * hvd.size() if hvd.rank() == 0 else None
        dist.gather_object(hvd.rank(), found, 0)
        assert hvd.rank() != 0 or found == list(range(hvd.size()))
        mine_now = [None]
        dist.scatter_object_list(
            mine_now, [f"for {r}" for r in range(hvd.size())] if hvd.rank() == 0 else None, 0
        )
        assert mine_now == [f"for {hvd.rank()}"]
        dist.barrier()
        dist.barrier(async_op=True).wait()
        group.monitored_barrier()
        before = group._get_sequence_number_for_group()
        dist.barrier()
        assert group._get_sequence_number_for_group() == before + 1


def test_futures():
    with default_group():
        first, second = mine((100_000,)), mine((3,))
        works = [dist.all_reduce(tensor, async_op=True) for tensor in (first, second)]
        doubled = [work.get_future().then(lambda f: f.value()[0] * 2) for work in works]
        torch.futures.wait_all(doubled)
        assert torch.equal(doubled[0].value(), parts_sum((100_000,)) * 2)
        assert torch.equal(doubled[1].value(), parts_sum((3,)) * 2)
        assert all(work.is_completed() and work.wait() for work in works)
        tensor = mine((3,))
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        assert torch.equal(work.get_future().value()[0], parts_sum((3,)))

        # As PowerSGD's hook does it: a callback, on the thread that completes futures, waits for another operation.
        def again(done):
            (reduced,) = dist.all_reduce(done.value()[0], async_op=True).get_future().wait()
            return reduced + 1

        chained = dist.all_reduce(mine((3,)), async_op=True).get_future().then(again)
        assert torch.equal(chained.wait(), parts_sum((3,)) * dist.get_world_size() + 1)


def test_tensors_without_data_are_refused():
    with default_group():
        expect(ValueError, lambda: dist.all_reduce(torch.empty(3, device="meta")), "'meta'")
        tensor = mine((3,))
        dist.all_reduce(tensor)
        assert torch.equal(tensor, parts_sum((3,)))
