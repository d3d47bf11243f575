"""Checks of DistributedOptimizer with threads, failures and rare cases together; run on every rank by tests/harness."""

import gc
import threading
import time
import warnings

import pytest
import torch
import torch.nn.functional as F

import horovod.torch as hvd
from harness.rank import needs
from torch_support import raises, same_everywhere

pytestmark = pytest.mark.ranks(1, 3, framework="torch")


def test_backwards_of_several_threads():
    # Each thread converts and sends the gradients that it has taken; many large ones, so that threads meet.
    mean = sum(r + 1 for r in range(hvd.size())) / hvd.size()
    parts = [[torch.nn.Parameter(torch.ones(6000)) for _ in range(40)] for _ in range(3)]
    params = [param for part in parts for param in part]
    for options in ({"compression": hvd.Compression.fp16}, {}, {"groups": 7}):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.0), **options)
        for _ in range(12 if "compression" in options else 2):
            optimizer.zero_grad()
            threads = [
                threading.Thread(
                    target=lambda part=part: sum((p * (hvd.rank() + 1)).sum() for p in part).backward()
                )
                for part in parts
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            optimizer.step()
            assert all((param.grad == mean).all() for param in params), options
        del optimizer


def test_lbfgs_with_a_line_search():
    # The ranks' losses differ much: with its own loss each rank would evaluate the closure another number of times.
    data = []
    for rank in range(hvd.size()):
        generator = torch.Generator().manual_seed(rank)
        x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
        noise = torch.randn(8, 1, generator=generator, dtype=torch.float64) * (1 + 5 * rank)
        data.append((x, x.sum(1, keepdim=True) + noise))

    def train(wrap, loss):
        model = torch.nn.Linear(3, 1).double()
        torch.nn.init.zeros_(model.weight)
        torch.nn.init.zeros_(model.bias)
        search = {"lr": 1.0, "max_iter": 12, "line_search_fn": "strong_wolfe"}
        optimizer = wrap(torch.optim.LBFGS(model.parameters(), **search))
        losses = []

        def closure():
            optimizer.zero_grad()
            losses.append(loss(model))
            losses[-1].backward()
            return losses[-1]

        first = optimizer.step(closure)
        return model.weight.detach(), len(losses), first.item()

    def loss_on(model, rank):
        return F.mse_loss(model(data[rank][0]), data[rank][1])

    found = train(hvd.DistributedOptimizer, lambda model: loss_on(model, hvd.rank()))
    wanted = train(
        lambda inner: inner, lambda model: sum(loss_on(model, r) for r in range(hvd.size())) / hvd.size()
    )
    assert torch.allclose(found[0], wanted[0], rtol=0, atol=1e-9), (found, wanted)
    assert found[1] == wanted[1] and abs(found[2] - wanted[2]) < 1e-9, (found, wanted)
    same_everywhere(found[0], "lbfgs.search")


def test_a_step_that_was_left_out_after_synchronize():
    # As a GradScaler skips a step. The gradients of the next step are new, however the program computes and clears them.
    mean = sum(r + 1 for r in range(hvd.size())) / hvd.size()
    for clear in ("optimizer", "model", "state"):
        for by_hand in (True, False):
            model = torch.nn.Linear(2, 2)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters()
            )
            model(torch.ones(1, 2)).sum().backward()
            optimizer.synchronize()
            if clear == "state":
                optimizer.load_state_dict(optimizer.state_dict())
            (optimizer if clear == "optimizer" else model).zero_grad()
            if by_hand:
                for param in model.parameters():
                    param.grad = torch.full_like(param, hvd.rank() + 1.0)
            elif hvd.rank() == 0:  # the others have no gradient, and take part nevertheless
                (model(torch.ones(1, 2)) * hvd.size() * mean).sum().backward()
            with warnings.catch_warnings():
                warnings.simplefilter("error" if hvd.size() > 1 else "ignore")  # alone all is reduced
                optimizer.step()
            assert (model.weight.grad == mean).all(), (clear, by_hand, model.weight.grad)
            del optimizer


class FailsOnOne(hvd.compression.Compressor):
    """Compression that fails on one rank."""

    broken = False

    @classmethod
    def compress(cls, tensor):
        if cls.broken and hvd.rank() == hvd.size() - 1:
            raise ArithmeticError("cannot compress")
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


@needs(ranks=2)
def test_what_one_rank_cannot_begin_fails_on_all():
    guilty = hvd.rank() == hvd.size() - 1

    def graph(model, bad):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (model(torch.ones(1, 2)) ** 2).sum().backward(create_graph=bad and guilty)

    def compress(model, bad):
        FailsOnOne.broken = bad
        model(torch.ones(1, 2)).sum().backward()

    def sparse(model, bad):
        if bad and guilty:
            model.weight.grad = torch.zeros(2, 2).to_sparse()
            model.bias.grad = torch.zeros(2)
        else:
            model(torch.ones(1, 2)).sum().backward()

    cases = [
        (graph, {}, AssertionError, "create_graph=True"),
        (graph, {"groups": 1}, AssertionError, "create_graph=True"),
        (compress, {"compression": FailsOnOne}, ArithmeticError, "cannot compress"),
        (sparse, {"groups": 1}, ValueError, "sparse gradient and belongs to a group"),
    ]
    for backward, options, kind, text in cases:
        model = torch.nn.Linear(2, 2)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
        )
        for goes_on in (True, False):
            if guilty:
                with raises(kind, text):
                    backward(model, True)
                    optimizer.step()
                if optimizer._reducer.busy:  # a program may catch the exception, and do the step nevertheless
                    with raises(kind, text):
                        optimizer.step()
            else:
                backward(model, True)
                with raises(hvd.HorovodInternalError, text):
                    optimizer.step()
            model.zero_grad()
            if goes_on:  # and the next step is right
                backward(model, False)
                optimizer.step()
                optimizer.zero_grad()
        hvd.barrier()
        del optimizer
    assert not hvd.mpi_ops._handle_map


def test_optimizers_dropped_between_backward_and_step():
    before = len(hvd.mpi_ops._handle_map)
    for wait in (0.05, 0, 0, 0):
        model = torch.nn.Linear(300, 300)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        model(torch.ones(1, 300) * (hvd.rank() + 1)).sum().backward()
        time.sleep(wait)
        del optimizer, model
        gc.collect()
    model = torch.nn.Linear(300, 300)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    model(torch.ones(1, 300) * (hvd.rank() + 1)).sum().backward()
    optimizer.step()
    assert (model.weight.grad == sum(r + 1 for r in range(hvd.size())) / hvd.size()).all()
    assert len(hvd.mpi_ops._handle_map) == before


def test_gradients_with_conjugate_and_negative_bits():
    values = [torch.tensor([r + 1 + 2j, 3 - 1j * r], dtype=torch.complex128) for r in range(hvd.size())]
    for op in (hvd.Average, hvd.Adasum):
        param = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex128))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), op=op)
        for step in range(2):
            param.grad = values[hvd.rank()].clone().conj() if step == 0 else values[hvd.rank()].clone()
            assert param.grad.is_conj() == (step == 0)
            start = param.detach().clone()
            optimizer.step()
            wanted = [v.conj() if step == 0 else v for v in values]
            if op == hvd.Average:
                wanted = sum(wanted) / hvd.size()
            else:
                wanted = torch.view_as_complex(
                    hvd.allreduce(torch.view_as_real(wanted[hvd.rank()].resolve_conj()).contiguous(), op=op)
                )
            assert torch.allclose(start - param.detach(), wanted), (op, step, start - param.detach(), wanted)
        del optimizer
    param = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    param.grad = values[hvd.rank()][:1].conj().imag
    assert param.grad.is_neg()
    optimizer.step()
    assert param.item() == 2.0, param


def test_groups_of_parameters_frozen_on_one_rank():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    if hvd.rank() == hvd.size() - 1:
        model[1].bias.requires_grad_(False)

    def wrap():
        return hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), groups=2
        )

    if hvd.size() > 1:
        with raises(ValueError, f"ranks 0 and {hvd.size() - 1} has 1.bias", "groups=n"):
            wrap()
        assert not model[0].weight._post_accumulate_grad_hooks
        model[1].bias.requires_grad_(False)
    optimizer = wrap()  # frozen everywhere
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_process_sets_that_are_not_registered():
    for op in (hvd.Average, hvd.Adasum):
        with raises(ValueError, "has not been registered"):
            hvd.DistributedOptimizer(
                torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1),
                op=op,
                process_set=hvd.ProcessSet([0]),
            )
