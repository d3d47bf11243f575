"""Checks of DistributedOptimizer with Adasum, process sets, joins and mixed precision; run on every rank by
tests/harness."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import horovod.torch as hvd
from harness.rank import needs
from torch_support import raises, same_everywhere
from torch_training import STEPS, adam, agree, batch_of, loss_of, model_of, sgd, train_alone

pytestmark = pytest.mark.ranks(1, 3, framework="torch")


def wrapped(model, make=sgd, **options):
    return hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)


def adasum_by_hand(make, passes=1):
    """The step of each rank, whose changes are combined one by one."""
    model = model_of()
    optimizer = make(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for p in range(passes):
            loss_of(model, step, hvd.rank(), p).backward()
        starts = [param.detach().clone() for param in model.parameters()]
        optimizer.step()
        with torch.no_grad():
            for param, start in zip(model.parameters(), starts):
                param.copy_(start + hvd.allreduce(param - start, op=hvd.Adasum))
    return model


def test_adasum():
    for make, passes in ((sgd, 1), (adam, 1), (sgd, 2)):
        model = model_of()
        optimizer = wrapped(model, make, op=hvd.Adasum, backward_passes_per_step=passes)
        assert type(optimizer).__name__ == type(make(model.parameters())).__name__
        assert optimizer.op == hvd.Adasum and optimizer.backward_passes_per_step == passes
        for step in range(STEPS):
            optimizer.zero_grad()
            for p in range(passes):
                loss_of(model, step, hvd.rank(), p).backward()
            optimizer.step()
        agree(model, adasum_by_hand(make, passes))
    assert not hvd.mpi_ops._handle_map


def test_adasum_adds_what_is_orthogonal_and_averages_what_is_parallel():
    for grads, wanted in (
        (torch.eye(hvd.size()), torch.ones(hvd.size())),
        (torch.ones(hvd.size(), hvd.size()), torch.ones(hvd.size())),
    ):
        param = torch.nn.Parameter(torch.zeros(hvd.size(), dtype=torch.float64))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), op=hvd.Adasum)
        param.grad = grads[hvd.rank()].double()
        optimizer.step()
        assert torch.allclose(param, -wanted.double()), param


def test_adasum_and_the_rest_of_the_interface():
    model = model_of()
    optimizer = wrapped(model, op=hvd.Adasum, compression=hvd.Compression.fp16)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    hvd.broadcast_optimizer_state(optimizer, 0)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.synchronize()
        optimizer.step()
        scheduler.step()
    same_everywhere(model[0].weight, "adasum.fp16")
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**STEPS
    optimizer.load_state_dict(optimizer.state_dict())
    if hvd.size() > 1:
        with (
            raises(AssertionError, "Skipping synchronization is not supported"),
            optimizer.skip_synchronize(),
        ):
            pass
        with raises(ValueError, "already"):
            hvd.DistributedOptimizer(optimizer)
    extra = torch.nn.Linear(2, 2, bias=False).double()
    torch.nn.init.zeros_(extra.weight)
    optimizer.add_param_group({"params": extra.parameters(), "lr": 1.0, "momentum": 0, "weight_decay": 0})
    optimizer.zero_grad()
    extra(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    optimizer.step()
    assert torch.allclose(extra.weight, torch.full((2, 2), -1.0, dtype=torch.float64))
    lbfgs = wrapped(model, lambda params: torch.optim.LBFGS(params, max_iter=3), op=hvd.Adasum)

    def closure():
        lbfgs.zero_grad()
        loss = loss_of(model, 0, hvd.rank())
        loss.backward()
        return loss

    assert lbfgs.step(closure) is not None
    same_everywhere(model[0].weight, "adasum.lbfgs")


@needs(ranks=2)
def test_adasum_fails_without_a_trace():
    param = torch.nn.Parameter(torch.ones(2 + hvd.rank()))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), op=hvd.Adasum)
    param.grad = torch.ones(2 + hvd.rank())
    with raises(hvd.HorovodInternalError, "Mismatched"):
        optimizer.step()
    assert torch.equal(param.detach(), torch.ones(2 + hvd.rank()))
    hvd.barrier()
    assert not hvd.mpi_ops._handle_map


def test_process_sets():
    members = sorted({0, hvd.size() - 1})
    apart = len(members) < hvd.size()
    hvd.shutdown()
    part = hvd.ProcessSet(members)
    hvd.init(process_sets=[part] if apart else [])
    part = part if apart else hvd.global_process_set
    for options in ({}, {"groups": 2}, {"op": hvd.Adasum}):
        model = model_of()
        optimizer = wrapped(model, process_set=part, **options)
        assert optimizer.process_set is part
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        if "op" not in options:
            alone = model_of()
            yardstick = sgd(alone.parameters())
            mine = members if hvd.rank() in members else [hvd.rank()]
            for step in range(STEPS):
                yardstick.zero_grad()
                (sum(loss_of(alone, step, r) for r in mine) / len(mine)).backward()
                yardstick.step()
            for found, wanted in zip(model.parameters(), alone.parameters()):
                assert torch.allclose(found, wanted, rtol=0, atol=1e-12)
        elif hvd.rank() in members:
            rows = hvd.allgather(model[0].weight.detach()[None], process_set=part)
            assert all(torch.equal(rows[0], row) for row in rows)
    hvd.barrier()
    hvd.shutdown()
    hvd.init()


def test_join_at_uneven_ends():
    # Rank r has 2 + r batches. A rank that has joined contributes zeros, and averages divide by the number of all ranks.
    for options in (
        {},
        {"groups": 2},
        {"compression": hvd.Compression.bf16},
        {"gradient_predivide_factor": 2.0},
    ):
        model, alone = model_of(), model_of()
        optimizer, yardstick = wrapped(model, **options), sgd(alone.parameters())
        for step in range(2 + hvd.rank()):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        assert hvd.join() == hvd.size() - 1
        hvd.broadcast_parameters(model.state_dict(), hvd.size() - 1)
        for step in range(2 + hvd.size() - 1):
            yardstick.zero_grad()
            (sum(loss_of(alone, step, r) for r in range(hvd.size()) if step < 2 + r) / hvd.size()).backward()
            yardstick.step()
        agree(model, alone, 5e-2 if "compression" in options else 1e-12)


def test_join_with_sparse_gradients():
    embedding = torch.nn.Embedding(4, 2, sparse=True).double()
    torch.nn.init.zeros_(embedding.weight)
    optimizer = wrapped(embedding, lambda params: torch.optim.SGD(params, lr=1.0))
    for step in range(1 + hvd.rank()):
        optimizer.zero_grad()
        embedding(torch.tensor([step])).sum().backward()
        optimizer.step()
    hvd.join()
    hvd.broadcast_parameters(embedding.state_dict(), hvd.size() - 1)
    wanted = [[-sum(step < 1 + r for r in range(hvd.size())) / hvd.size()] * 2 for step in range(4)]
    assert torch.allclose(embedding.weight, torch.tensor(wanted, dtype=torch.float64))


def test_scalers_and_overflow_on_one_rank():
    # With unscale_() and without; the fused optimizer skips the step by itself.
    makers = [sgd, lambda params: torch.optim.Adam(params, lr=0.01, fused=True)]
    for make in makers:
        for unscale in (True, False):
            model = model_of().float()
            optimizer = wrapped(model, make)
            scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
            for step in range(STEPS):
                optimizer.zero_grad()
                inputs, labels = batch_of(step, hvd.rank())
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(inputs.float()).float(), labels)
                if step == 1 and hvd.rank() == hvd.size() - 1:
                    loss = loss * float("inf")
                before = model[0].weight.detach().clone()
                scaler.scale(loss).backward()
                optimizer.synchronize()
                if unscale:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
                scaler.update()
                assert torch.equal(before, model[0].weight) == (step == 1), (make, unscale, step)
                assert scaler.get_scale() == (256.0 if step < 1 else 128.0)
            same_everywhere(model[0].weight, "scaled")


def test_windows_that_end_early():
    # Five batches in windows of two; in the last window the ranks even differ in how many they have.
    for options in ({}, {"groups": 2}):
        model, alone = model_of(), model_of()
        optimizer = wrapped(model, backward_passes_per_step=2, **options)
        yardstick = sgd(alone.parameters())
        for step, windows in enumerate(
            ([2] * hvd.size(), [2] * hvd.size(), [1 + r % 2 for r in range(hvd.size())])
        ):
            optimizer.zero_grad()
            yardstick.zero_grad()
            for p in range(windows[hvd.rank()]):
                loss_of(model, step, hvd.rank(), p).backward()
            optimizer.step()
            (
                sum(loss_of(alone, step, r, p) for r in range(hvd.size()) for p in range(windows[r]))
                / hvd.size()
            ).backward()
            yardstick.step()
        agree(model, alone)


def test_a_parameter_twice_in_the_list():
    param = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = torch.optim.SGD([param, param], lr=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer)
    (param * hvd.rank()).sum().backward()
    optimizer.step()
    same_everywhere(param, "twice")


def test_another_operation_between_backward_and_step():
    # In another place on each rank: the gradients of a backward are submitted when it returns.
    model = model_of()
    optimizer = wrapped(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step, hvd.rank())
        loss.backward()
        if hvd.rank() == 0:
            hvd.allreduce(loss.detach(), name="between")
        optimizer.step()
        if hvd.rank() != 0:
            hvd.allreduce(loss.detach(), name="between")
    agree(model, train_alone(sgd))


def test_checkpointed_backward():
    for reentrant in (True, False):
        model = model_of()
        optimizer = wrapped(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs, labels = batch_of(step, hvd.rank())
            hidden = model[:2](inputs)
            hidden = checkpoint(model[2:], hidden, use_reentrant=reentrant)
            F.cross_entropy(hidden, labels).backward()
            optimizer.step()
        agree(model, train_alone(sgd))


def test_a_backward_that_fails_can_be_repeated():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ArithmeticError("in the middle")

    model = model_of()
    optimizer = wrapped(model)
    saved = optimizer.state_dict()
    inputs, labels = batch_of(0, hvd.rank())
    with raises(ArithmeticError, "in the middle"):
        F.cross_entropy(model[2:](Fails.apply(model[:2](inputs))), labels).backward()
    optimizer.synchronize()  # reductions that have begun end, the other gradients count as zero
    optimizer.load_state_dict(saved)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    agree(model, train_alone(sgd))


def test_every_optimizer_of_torch():
    kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
    kinds = [kind for kind in kinds if issubclass(kind, torch.optim.Optimizer)]
    for kind in kinds:
        if kind in (torch.optim.Optimizer, torch.optim.LBFGS):
            continue
        torch.manual_seed(hvd.rank())
        sparse = kind is torch.optim.SparseAdam
        if sparse:
            model = torch.nn.Embedding(hvd.size() + 1, 3, sparse=True)
        else:
            model = torch.nn.Linear(3, 4, bias=kind.__name__ != "Muon")
        optimizer = wrapped(model, lambda params, kind=kind: kind(params, lr=0.01 * (hvd.rank() + 1)))
        assert isinstance(optimizer, kind)
        hvd.broadcast_parameters(model.state_dict(), 0)
        for step in range(3):
            if step < 2:  # without a state, and with one
                hvd.broadcast_optimizer_state(optimizer, 0)
            optimizer.zero_grad()
            model(
                torch.tensor([hvd.rank(), hvd.size()]) if sparse else torch.randn(2, 3)
            ).square().sum().backward()
            optimizer.step()
        assert optimizer.param_groups[0]["lr"] == 0.01
        same_everywhere(model.weight, kind.__name__)


def test_copies_are_refused():
    model = model_of()
    optimizers = [wrapped(model)] + ([wrapped(model, op=hvd.Adasum)] if hvd.size() > 1 else [])
    for optimizer in optimizers:
        for way in (copy.deepcopy, copy.copy, pickle.dumps):
            with raises(TypeError, "horovod: a DistributedOptimizer (SGD) cannot be copied"):
                way(optimizer)
    copy.deepcopy(model)  # a copy has no hooks
