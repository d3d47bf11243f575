"""Checks of how programs use DistributedOptimizer, rightly and wrongly; run on every rank by tests/harness."""

import gc
import warnings
import weakref
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import horovod.torch as hvd
from harness.rank import needs
from torch_support import raises, same_everywhere
from torch_training import STEPS, agree, batch_of, loss_of, model_of, sgd, train_alone, train_together

pytestmark = pytest.mark.ranks(1, 2, framework="torch")


def train_on(model, optimizer, first=0):
    for step in range(first, STEPS):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()


def test_synchronize_then_step_warns():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), op=hvd.Sum)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        text = "optimizer.step() called without optimizer.skip_synchronize() context"
        assert [str(w.message).startswith(text) for w in caught] == [True]
    agree(model, train_alone(sgd, scale=hvd.size()))


def test_closures():
    def run(model, optimizer, loss, before):
        for step in range(STEPS):

            def closure(step=step):
                optimizer.zero_grad()
                value = loss(step)
                value.backward()
                return value

            if before:  # a backward outside, and a closure that only reports
                closure()
                optimizer.step(lambda step=step: loss(step).detach())
            else:
                assert optimizer.step(closure) is not None

    for make in (sgd, lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4)):
        for before in (False, True) if make is sgd else (False,):
            model, alone = model_of(), model_of()
            optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
            run(model, optimizer, lambda step, m=model: loss_of(m, step, hvd.rank()), before)
            yardstick = make(alone.parameters())

            def whole(step, m=alone):
                return sum(loss_of(m, step, r) for r in range(hvd.size())) / hvd.size()

            run(alone, yardstick, whole, before)
            agree(model, alone, 1e-12 if make is sgd else 1e-9)


def test_schedulers():
    for wrap_first in (True, False):
        model, alone = model_of(), model_of()
        inner = sgd(model.parameters())
        if not wrap_first:
            scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
        if wrap_first:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        yardstick = sgd(alone.parameters())
        for step in range(STEPS):
            for group in yardstick.param_groups:
                group["lr"] = 0.1 * 0.5**step
            yardstick.zero_grad()
            (sum(loss_of(alone, step, r) for r in range(hvd.size())) / hvd.size()).backward()
            yardstick.step()
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scheduler.step()
        agree(model, alone)


def test_several_optimizers_at_once():
    models = [model_of(seed) for seed in range(3)]
    optimizers = [
        hvd.DistributedOptimizer(sgd(m.parameters()), [(f"m{i}.{n}", p) for n, p in m.named_parameters()])
        for i, m in enumerate(models)
    ]
    for step in range(STEPS):
        for i, model in enumerate(models):
            optimizers[i].zero_grad()
            loss_of(model, step, hvd.rank()).backward()
        for i in [(hvd.rank() + j) % 3 for j in range(3)]:  # each rank in another order
            optimizers[i].step()
    agree(models[0], train_alone(sgd))


def test_the_wrapper_is_the_wrapped():
    model = model_of()
    inner = torch.optim.Adam(model.parameters(), lr=0.125, betas=(0.5, 0.75))
    loss_of(model, 0, 0).backward()
    inner.step()
    inner.zero_grad()
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    assert isinstance(optimizer, torch.optim.Adam) and type(optimizer).__name__ == "Adam"
    assert "horovod" in str(optimizer.__class__)
    assert optimizer.state_dict() == inner.state_dict() and optimizer.defaults["lr"] == 0.125
    assert len(optimizer.state) == 6 and optimizer.param_groups is inner.param_groups
    assert optimizer.op == hvd.Average and optimizer.process_set is hvd.global_process_set
    assert optimizer.backward_passes_per_step == 1 and not optimizer._reducer.active
    assert set(optimizer._parameter_names.values()) == {n for n, _ in model.named_parameters()}
    twin = hvd.DistributedOptimizer(torch.optim.Adam(model_of().parameters()))
    twin.load_state_dict(optimizer.state_dict())
    assert twin.param_groups[0]["lr"] == 0.125
    assert twin._parameter_names[twin.param_groups[0]["params"][2]] == "allreduce.noname.0.2"
    calls = []
    twin.register_step_pre_hook(lambda *a: calls.append("pre"))
    twin.register_step_post_hook(lambda *a: calls.append("post"))
    for p in twin.param_groups[0]["params"]:
        p.grad = torch.zeros_like(p)
    twin.step()
    assert calls == ["pre", "post"]


def test_load_state_dict_while_reducing():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    saved = optimizer.state_dict()
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.load_state_dict(saved)
    assert not optimizer._reducer.active
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, 0, hvd.rank()).backward()
        optimizer.load_state_dict(saved)
    train_on(model, optimizer)
    agree(model, train_alone(sgd))
    assert not hvd.mpi_ops._handle_map


def test_parameters_added_later():
    model, extra = model_of(), torch.nn.Linear(3, 1).double()
    for p in extra.parameters():
        torch.nn.init.zeros_(p)
    model[0].weight.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    optimizer.add_param_group({"params": list(extra.parameters()), "lr": 1.0})
    model[0].weight.requires_grad_(True)  # unfrozen after wrapping
    before = model[0].weight.detach().clone()
    for step in range(2):
        optimizer.zero_grad()
        inputs, _ = batch_of(step, hvd.rank())
        extra(model(inputs)).sum().backward()
        optimizer.step()
    for name, p in [("bias", extra.bias), ("weight", extra.weight), ("unfrozen", model[0].weight)]:
        same_everywhere(p, f"added.{name}")
    assert not torch.equal(before, model[0].weight) and extra.bias.item() == -10.0


def test_wrong_use():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, 0, hvd.rank()).backward()
    if hvd.size() > 1:
        with raises(AssertionError, "optimizer.zero_grad() was called after loss.backward()"):
            optimizer.zero_grad()
        with raises(AssertionError, "more than backward_passes_per_step times"):
            loss_of(model, 0, hvd.rank()).backward()
        assert len(optimizer._reducer.active) == 6
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert not any(p.grad.any() for p in model.parameters())
    optimizer.zero_grad(True)
    assert all(p.grad is None for p in model.parameters())
    optimizer.set_backward_passes_per_step(2)
    loss_of(model, 0, hvd.rank()).backward()
    loss_of(model, 1, hvd.rank()).backward()
    optimizer.step()
    # A window that ends early: its gradients are reduced.
    optimizer.zero_grad()
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.step()
    same_everywhere(model[0].weight, "early")


def test_wrong_arguments():
    model = model_of()
    params = list(model.parameters())

    def wrap(**options):
        return lambda: hvd.DistributedOptimizer(sgd(params), **options)

    def refuses(*fragments, **options):
        with raises(ValueError, *fragments):
            wrap(**options)()

    names = list(model.named_parameters())
    refuses("gradient_predivide_factor", gradient_predivide_factor=2.0, op=hvd.Sum)
    refuses("backward_passes_per_step must be > 0", backward_passes_per_step=0)
    refuses("sequence of tuples", named_parameters=params)
    refuses("Found duplicates: 0.weight", named_parameters=names + names[:1])
    refuses("were not named", "[3, 8]", named_parameters=names[:4])
    refuses("groups should be", groups=0)
    refuses("groups should be", groups="all")
    refuses("lists of torch.Tensor", groups=[["a"]])
    refuses("only appear once", groups=[[params[0]], [params[0]]])
    assert not params[0]._post_accumulate_grad_hooks


def test_hooks_end_with_the_optimizer():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.step()
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    loss_of(model, 0, hvd.rank()).backward()
    loss_of(model, 0, hvd.rank()).backward()
    assert not hvd.mpi_ops._handle_map
    again = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, 0, hvd.rank()).backward()
    again.step()
    del again
    dead = weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert dead() is None


def test_size_can_be_patched():
    model = model_of(seed=hvd.rank())
    with mock.patch("horovod.torch.size", return_value=1):
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, 0, hvd.rank()).backward()
    assert not hvd.mpi_ops._handle_map and not optimizer._reducer.active
    optimizer.step()
    with mock.patch("horovod.torch.size", return_value=4):
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    model.zero_grad()
    loss_of(model, 0, hvd.rank()).backward()
    assert len(optimizer._reducer.active) == 6
    optimizer.step()


def test_a_failed_reduction_leaves_the_optimizer_usable():
    model = torch.nn.Linear(3 + hvd.rank(), 2).double()  # another shape on each rank
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    model(torch.ones(1, 3 + hvd.rank(), dtype=torch.float64)).sum().backward()
    if hvd.size() > 1:
        with raises(hvd.HorovodInternalError, "Mismatched"):
            optimizer.step()
    else:
        optimizer.step()
    assert not hvd.mpi_ops._handle_map and not optimizer._reducer.active
    optimizer.zero_grad()
    agree(train_together(sgd), train_alone(sgd))


def test_gradient_scaling():
    # The documented sequence. One rank overflows in step 1: then all skip that step, and the scale goes down.
    model = model_of().float()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = batch_of(step, hvd.rank())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(inputs.float()), labels)
        if step == 1 and hvd.rank() == hvd.size() - 1:
            loss = loss * float("inf")
        before = model[0].weight.detach().clone()
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model[0].weight) == (step == 1)
        assert scaler.get_scale() == (1024.0 if step < 1 else 512.0)
    same_everywhere(model[0].weight, "scaled")


def test_restart_of_the_engine_between_backward_and_step():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    saved = {k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict()
    for way in ("restore", "go on"):
        loss_of(model, 0, hvd.rank()).backward()
        hvd.barrier()  # a rank that leaves early would fail the backward of the others
        hvd.shutdown()
        hvd.init()
        if way == "restore":
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            optimizer.zero_grad()
    optimizer.step()
    train_on(model, optimizer, first=1)
    agree(model, train_alone(sgd))


@needs(ranks=2)
def test_a_newer_optimizer_takes_over():
    """A cell of a notebook that is run twice, while a scheduler keeps the optimizer of the first run alive."""
    model, kept = model_of(), []
    plain = sgd(model.parameters())
    for _ in range(2):
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=hvd.Sum)
        kept.append(torch.optim.lr_scheduler.StepLR(optimizer, 100))
        train_on(model, optimizer)
        loss_of(model, 0, hvd.rank()).backward()  # pending when the next optimizer is made
    optimizer.synchronize()
    earlier = kept[0].optimizer
    for call in (earlier.step, earlier.synchronize):
        with raises(
            ValueError,
            "Another DistributedOptimizer was made for parameters of this SGD (such as '0.weight')",
        ):
            call()
    same_everywhere(torch.cat([p.detach().flatten() for p in model.parameters()]), "weights")
    # Optimizers with parameters of their own go on side by side.
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    both = [
        hvd.DistributedOptimizer(sgd(m.parameters()), [(f"{i}.{n}", p) for n, p in m.named_parameters()])
        for i, m in enumerate((first, second))
    ]
    (first(torch.ones(1, 1)) + second(torch.ones(1, 1))).sum().backward()
    for one in both:
        one.step()


@needs(ranks=2)
def test_an_optimizer_of_some_parameters_takes_over():
    """All layers are trained, then only the head, while a scheduler keeps the first optimizer alive."""
    model = model_of()
    head = model[-1]
    names = [(f"head.{name}", param) for name, param in head.named_parameters()]
    everything = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(everything, 100)
    for step in range(STEPS):
        everything.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        everything.step()
    of_head = hvd.DistributedOptimizer(torch.optim.SGD(head.parameters(), lr=1.0), names, op=hvd.Sum)
    before = head.bias.detach().clone()
    for _ in range(2):
        of_head.zero_grad()
        (head.bias.sum() * (hvd.rank() + 1)).backward()
        of_head.step()
    assert torch.allclose(head.bias, before - 2 * sum(rank + 1 for rank in range(hvd.size())))
    loss_of(model, 0, hvd.rank()).backward()
    for call in (scheduler.optimizer.step, everything.synchronize):
        with raises(ValueError, "(such as '4.weight')"):
            call()
    of_head.step()
    # One that gets parameters of another later takes over, too.
    body = hvd.DistributedOptimizer(sgd(model[0].parameters()), model[0].named_parameters("body"))
    body.add_param_group({"params": list(head.parameters())})
    with raises(ValueError, "(such as 'head.weight')"):
        of_head.step()


@needs(ranks=2)
def test_an_optimizer_that_cannot_be_made_disturbs_no_other():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, 0, hvd.rank()).backward()
    model[0].bias.requires_grad_(hvd.rank() > 0)
    with raises(ValueError, "0.bias"):
        hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), groups=2)
    model[0].bias.requires_grad_(True)
    optimizer.step()
    train_on(model, optimizer, first=1)
    agree(model, train_alone(sgd))


def test_a_scheduler_of_the_plain_optimizer_goes_on():
    for op in (hvd.Average, hvd.Adasum):
        model = model_of()
        plain = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
        early = torch.optim.lr_scheduler.StepLR(plain, 1, 1.0)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=op)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            early.step()
            assert ["before `optimizer.step()`" in str(w.message) for w in caught] == [True]
            optimizer.step()
            scheduler.step()
            assert len(caught) == 1, [str(w.message) for w in caught]
        assert optimizer.param_groups[0]["lr"] == 0.5
        saved = optimizer.state_dict()
        saved["param_groups"][0]["lr"] = 8.0
        optimizer.load_state_dict(saved)
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"] == 4.0
        assert optimizer.state is plain.state


def test_skip_synchronize_within_itself():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), op=hvd.Sum)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            with optimizer.skip_synchronize():
                pass
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                optimizer.step()
    agree(model, train_alone(sgd, scale=hvd.size()))
