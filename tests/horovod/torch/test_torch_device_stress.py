"""Producer, collective and consumer on streams of their own, over and over, on every rank by tests/harness: nothing waits
on the host, memory is given back at once and used again, and one wrong order is one wrong number.

How often: HVD_TEST_TURNS. On a device whose streams are not late by themselves, some turns are held up.
"""

import os
import random

import pytest
import torch

import horovod.torch as hvd
from torch_device import KIND, MODULE, device, hold

pytestmark = [
    pytest.mark.ranks(2, framework="torch", id="eccl_stub", env={"HOROVOD_BACKEND": "eccl_stub"}),
    pytest.mark.ranks(2, framework="torch", id="staged", env={"HOROVOD_BACKEND": "gcu=shm"}),
    pytest.mark.ranks(2, framework="torch", id="no-backend", env={"HOROVOD_BACKEND": "shm"}),
]

TURNS = int(os.environ.get("HVD_TEST_TURNS", "60"))


def sum_of_ranks():
    return hvd.size() * (hvd.size() - 1) // 2


def streams(count):
    return [MODULE.Stream() for _ in range(count)]


def wrong(results, wanted):
    """The first ten places whose numbers are wrong."""
    found = results.cpu()
    at = (found != wanted).nonzero().flatten().tolist()[:10]
    return [(i, found[i].item(), wanted[i].item()) for i in at]


def test_producer_collective_consumer():
    chance, mine = (
        random.Random(7),
        random.Random(hvd.rank()),
    )  # the same on all ranks; different on each rank
    # A name is used again with the same shape, as in the steps of a training.
    counts = [
        chance.choice([1, 17, 1000, 40_000, 300_000] if KIND == "cuda" else [1, 17, 1000]) for _ in range(64)
    ]
    makers, readers = streams(3), streams(2)
    results = torch.zeros(TURNS, dtype=torch.float64, device=device())
    MODULE.synchronize()
    wanted = torch.zeros(TURNS, dtype=torch.float64)
    waiting = []

    def consume(turn, reader, handle):
        with MODULE.stream(reader):
            total = hvd.synchronize(handle)
            results[turn] = total[-1] * 2 + total[0]
            # Freed here, perhaps before the reading stream is done: the next owner of the memory must wait for it.

    for turn in range(TURNS):
        count, in_place, late = counts[turn % 64], turn % 3 == 0, turn % 50 == 0
        with MODULE.stream(makers[turn % 3]):
            if late:
                hold(3)
            made = torch.full((count,), -5.0, device=device())
            made += turn % 1000 + hvd.rank() + 5
            call = hvd.allreduce_async_ if in_place else hvd.allreduce_async
            waiting.append((turn, readers[turn % 2], call(made, op=hvd.Sum, name=f"stress.{turn % 64}")))
            del made
        wanted[turn] = 3.0 * (hvd.size() * (turn % 1000) + sum_of_ranks())
        # Up to six are pending, each rank waits in another order, and each ends before its name is used again.
        while len(waiting) > 5:
            consume(*waiting.pop(0 if waiting[0][0] < turn - 40 else mine.randrange(len(waiting))))
        # Memory is allocated and freed all the time, on the streams whose memory other streams use.
        with MODULE.stream(makers[(turn + 1) % 3]):
            torch.full((count,), -1e9, device=device())
    for entry in waiting:
        consume(*entry)
    MODULE.synchronize()
    assert not wrong(results, wanted), wrong(results, wanted)


def test_groups_between_a_producer_and_a_consumer():
    maker, reader = streams(2)
    turns = max(TURNS // 10, 5)
    results = torch.zeros(turns, dtype=torch.float64, device=device())
    MODULE.synchronize()
    wanted = torch.zeros(turns, dtype=torch.float64)
    for turn in range(turns):
        sizes = [1, 33, 4096, 7]
        with MODULE.stream(maker):
            if turn % 10 == 0:
                hold(3)
            made = [
                torch.full((n,), float(turn + hvd.rank() + i), device=device()) for i, n in enumerate(sizes)
            ]
            handle = hvd.grouped_allreduce_async(made, op=hvd.Sum, name=f"group.{turn % 3}")
            del made
        with MODULE.stream(reader):
            totals = hvd.synchronize(handle)
            results[turn] = sum(total[-1] for total in totals)
            del totals
        wanted[turn] = sum(hvd.size() * (turn + i) + sum_of_ranks() for i in range(4))
    MODULE.synchronize()
    assert not wrong(results, wanted), wrong(results, wanted)


def test_gathers_of_changing_lengths():
    maker, reader = streams(2)
    turns = max(TURNS // 10, 5)
    results = torch.zeros(turns, dtype=torch.float64, device=device())
    MODULE.synchronize()
    wanted = torch.zeros(turns, dtype=torch.float64)
    for turn in range(turns):
        with MODULE.stream(maker):
            rows = torch.full(((turn + hvd.rank()) % 5, 3), float(turn + hvd.rank()), device=device())
            handle = hvd.allgather_async(rows, name=f"rows.{turn % 3}")
            del rows
        with MODULE.stream(reader):
            results[turn] = hvd.synchronize(handle).sum()
        wanted[turn] = sum(3.0 * ((turn + r) % 5) * (turn + r) for r in range(hvd.size()))
    MODULE.synchronize()
    assert not wrong(results, wanted), wrong(results, wanted)


def test_backward_on_another_stream_than_the_optimizer():
    """Hooks run on autograd's stream; step() is called on another stream, which waits for it."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(6))).to(device())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    named = [(f"stress.{name}", parameter) for name, parameter in model.named_parameters()]
    optimizer = hvd.DistributedOptimizer(inner, named_parameters=named)
    worker, stepper = streams(2)
    start = [p.detach().clone() for p in model.parameters()]
    seen = None
    MODULE.synchronize()
    for turn in range(max(TURNS // 20, 4)):
        with MODULE.stream(worker):
            worker.wait_stream(stepper)
            optimizer.zero_grad()
            if turn % 3 == 0:
                hold(3)
            x = torch.full((4, 32), float(hvd.rank() + 1), device=device())
            (model(x) ** 2).mean().backward()
        with MODULE.stream(stepper):
            stepper.wait_stream(worker)
            optimizer.step()
            seen = torch.stack([p.grad.abs().sum() for p in model.parameters()])
    MODULE.synchronize()
    assert bool(torch.isfinite(seen).all()) and float(seen.cpu().min()) > 0
    assert any(not torch.equal(a.cpu(), b.detach().cpu()) for a, b in zip(start, model.parameters()))
    for i, parameter in enumerate(model.parameters()):
        rows = hvd.allgather(parameter.detach().reshape(1, -1), name=f"stress.same.{i}").cpu()
        assert all(torch.equal(rows[0], row) for row in rows), f"ranks differ in parameter {i}"


class _Late(torch.autograd.Function):
    """A parameter's part in a model: its gradient is `value` everywhere, but only after the stream has done `steps`."""

    @staticmethod
    def forward(ctx, parameter, value, steps):
        ctx.shape, ctx.value, ctx.steps = parameter.shape, value, steps
        return parameter.detach().new_zeros(())

    @staticmethod
    def backward(ctx, _):
        gradient = torch.empty(ctx.shape, device=device())
        gradient.fill_(-1e6)
        if ctx.steps:
            hold(1)
        for _ in range(ctx.steps):
            gradient.fill_(-1e6)
        return gradient.fill_(ctx.value), None, None


def test_gradients_that_are_complete_on_two_streams():
    """Two branches of a model on a stream each: gradients that are submitted together were computed on two streams.

    Backward enqueues all of the late branch first; the hooks of the other one submit for both.
    """
    lengths, steps = (16, 24), (0, 8)
    for way in ("collected", "grouped"):
        branches = [[torch.nn.Parameter(torch.zeros(9, device=device())) for _ in range(n)] for n in lengths]
        parameters = [p for branch in branches for p in branch]
        named = [(f"{way}.{i}", parameter) for i, parameter in enumerate(parameters)]
        groups = {"groups": 1} if way == "grouped" else {}
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), named, **groups)
        pair = streams(2)
        MODULE.synchronize()
        for turn in range(4):
            main, parts = MODULE.current_stream(), []
            for branch, stream, late in zip(branches, pair, steps):
                stream.wait_stream(main)
                with MODULE.stream(stream):
                    parts.append(
                        sum(_Late.apply(p, float(hvd.rank() + turn + i), late) for i, p in enumerate(branch))
                    )
            for stream in pair:
                main.wait_stream(stream)
            optimizer.zero_grad()
            (parts[0] + parts[1]).backward()
            optimizer.synchronize()
            MODULE.synchronize()
            for which, branch in enumerate(branches):
                found = torch.stack([p.grad for p in branch]).cpu()
                wanted = torch.arange(len(branch)).unsqueeze(1) + turn + sum_of_ranks() / hvd.size()
                assert torch.equal(found, wanted.expand(-1, 9)), (
                    f"{way}, turn {turn}, branch {which}: {found[:, 0]}"
                )
