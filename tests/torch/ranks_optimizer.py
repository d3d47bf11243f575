"""Checks of DistributedOptimizer, run on every rank by rank_main.py.

The yardstick is one process that trains on the whole batch in float64: the same parameters must come out.
"""

import gc
import warnings
import weakref
from unittest import mock

import torch
import torch.nn.functional as F

import horovod.torch as hvd
from horovod.torch import _reducer
from support import raises, same_everywhere

RANKS = range(hvd.size())
ME = hvd.rank()
SIZE = hvd.size()
STEPS = 4


def model_of(seed=0):
    torch.manual_seed(seed)
    layers = [
        torch.nn.Linear(6, 8),
        torch.nn.Tanh(),
        torch.nn.Linear(8, 8),
        torch.nn.Tanh(),
        torch.nn.Linear(8, 3),
    ]
    return torch.nn.Sequential(*layers).double()


def batch_of(step, rank, passes=0):
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + passes)
    return torch.randn(5, 6, generator=generator, dtype=torch.float64), torch.randint(
        0, 3, (5,), generator=generator
    )


def loss_of(model, step, rank, passes=0):
    inputs, labels = batch_of(step, rank, passes)
    return F.cross_entropy(model(inputs), labels)


def train_alone(make, passes=1, scale=1.0):
    """One process, all ranks' batches, gradients averaged over ranks, summed over passes, times `scale`."""
    model = model_of()
    optimizer = make(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        total = sum(loss_of(model, step, r, p) for r in RANKS for p in range(passes))
        (total * scale / SIZE).backward()
        optimizer.step()
    return model


def train_together(make, passes=1, named=True, **options):
    model = model_of(seed=ME)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    names = model.named_parameters() if named else None
    optimizer = hvd.DistributedOptimizer(
        make(model.parameters()), named_parameters=names, backward_passes_per_step=passes, **options
    )
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(STEPS):
        optimizer.zero_grad()
        for p in range(passes):
            loss_of(model, step, ME, p).backward()
        optimizer.step()
    assert not hvd.mpi_ops._handle_map
    return model


def agree(model, wanted, tolerance=1e-12):
    for (name, found), (_, value) in zip(model.named_parameters(), wanted.named_parameters()):
        assert torch.allclose(found, value, rtol=0, atol=tolerance), (
            f"{name}: {(found - value).abs().max():.2e}"
        )
        same_everywhere(found, f"agree.{name}")


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)


def adam(params):
    return torch.optim.Adam(params, lr=0.01)


def adamw(params):
    return torch.optim.AdamW(params, lr=0.01, weight_decay=0.1, amsgrad=True)


def check_equals_one_process_with_the_whole_batch():
    for make in (sgd, adam, adamw, lambda p: torch.optim.RMSprop(p, lr=0.01)):
        agree(train_together(make), train_alone(make))
    agree(train_together(sgd, named=False), train_alone(sgd))


def check_sum():
    agree(train_together(sgd, op=hvd.Sum), train_alone(sgd, scale=SIZE))


def check_backward_passes_per_step():
    for passes in (2, 3):
        agree(train_together(sgd, passes=passes), train_alone(sgd, passes=passes))


def check_groups():
    for groups in (1, 2, 3, 100):
        agree(train_together(adam, groups=groups), train_alone(adam))
        agree(train_together(sgd, groups=groups, passes=2), train_alone(sgd, passes=2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agree(train_together(adam, num_groups=2), train_alone(adam))
    assert any(w.category is DeprecationWarning and "num_groups" in str(w.message) for w in caught)


def check_explicit_groups():
    model = model_of()
    params = list(model.parameters())
    optimizer = hvd.DistributedOptimizer(
        sgd(params), named_parameters=model.named_parameters(), groups=[[params[0], params[5]], [params[3]]]
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, ME).backward()
        optimizer.step()
    agree(model, train_alone(sgd))


def check_gradient_predivide_factor():
    for options in ({}, {"groups": 2}):
        agree(train_together(sgd, gradient_predivide_factor=3.0, **options), train_alone(sgd))


def check_compression():
    agree(train_together(sgd, compression=hvd.Compression.fp16), train_alone(sgd), 5e-3)
    agree(train_together(sgd, compression=hvd.Compression.bf16, groups=2), train_alone(sgd), 5e-2)


def check_half_precision_parameters():
    for dtype in (torch.bfloat16, torch.float16):
        model = model_of().to(dtype)
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs, labels = batch_of(step, ME)
            F.cross_entropy(model(inputs.to(dtype)).float(), labels).backward()
            optimizer.step()
        same_everywhere(model[0].weight, f"half.{dtype}")
        wanted = train_alone(sgd)[0].weight
        assert (model[0].weight.double() - wanted).abs().max() < 0.05


def check_without_post_accumulate_hooks():
    with mock.patch.object(_reducer, "HAS_POST_ACCUMULATE_HOOK", False):
        agree(train_together(sgd), train_alone(sgd))
        agree(train_together(sgd, passes=2, groups=2), train_alone(sgd, passes=2))


def check_unused_parameters():
    # Each rank uses its own branch and one that all use: what a rank did not compute counts as zero.
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False) for _ in range(SIZE + 2)]).double()
    for p in model.parameters():
        torch.nn.init.ones_(p)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
    )
    inputs = torch.ones(1, 2, dtype=torch.float64)
    for _ in range(2):
        optimizer.zero_grad()
        (model[ME](inputs) + model[SIZE](inputs)).sum().backward()
        optimizer.step()
    for r in RANKS:
        assert torch.allclose(model[r].weight, torch.full((2, 2), 1 - 2.0 / SIZE, dtype=torch.float64))
    assert torch.allclose(model[SIZE].weight, torch.full((2, 2), -1.0, dtype=torch.float64))
    assert torch.equal(model[SIZE + 1].weight, torch.ones(2, 2, dtype=torch.float64))


def check_channels_last_gradients():
    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, 4, 3).double().to(memory_format=torch.channels_last)
    start = model.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
    )
    grads = []
    for r in RANKS:
        inputs = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(r), dtype=torch.float64)
        inputs = inputs.to(memory_format=torch.channels_last)
        if r == ME:
            model(inputs).square().sum().backward()
            assert not model.weight.grad.is_contiguous()
        copy = torch.nn.Conv2d(3, 4, 3).double()
        copy.load_state_dict({"weight": start, "bias": model.bias.detach()})
        copy(inputs).square().sum().backward()
        grads.append(copy.weight.grad)
    optimizer.step()
    assert torch.allclose(model.weight, start - sum(grads) / SIZE, atol=1e-10)


def check_complex_parameters():
    param = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex128))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    (param * complex(1, ME)).real.sum().backward()
    optimizer.step()
    assert torch.allclose(param.real, torch.full((3,), -1.0, dtype=torch.float64))
    assert torch.allclose(param.imag.abs(), torch.full((3,), sum(RANKS) / SIZE, dtype=torch.float64))


def check_sparse_gradients():
    for options in ({}, {"sparse_as_dense": True}):
        embedding = torch.nn.Embedding(6, 2, sparse=True).double()
        torch.nn.init.zeros_(embedding.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(embedding.parameters(), lr=1.0), embedding.named_parameters(), **options
        )
        wanted = torch.zeros(6, 2, dtype=torch.float64)
        for _ in range(2):
            optimizer.zero_grad()
            embedding(torch.tensor([ME, 5, 5])).sum().backward()
            optimizer.step()
            assert embedding.weight.grad.is_sparse
            for r in RANKS:
                wanted[r] -= 1.0 / SIZE
                wanted[5] -= 2.0 / SIZE
        assert torch.allclose(embedding.weight, wanted), (embedding.weight, wanted)
        # A rank that has no gradient this time takes part with an empty one.
        optimizer.zero_grad()
        if ME == 0:
            embedding(torch.tensor([3])).sum().backward()
        optimizer.step()
        wanted[3] -= 1.0 / SIZE
        assert torch.allclose(embedding.weight, wanted)


def check_gradient_clipping():
    model, alone = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    yardstick = sgd(alone.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step, ME).backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
    for step in range(STEPS):
        yardstick.zero_grad()
        (sum(loss_of(alone, step, r) for r in RANKS) / SIZE).backward()
        torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        yardstick.step()
    agree(model, alone)


def check_synchronize_then_step_warns():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), op=hvd.Sum)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, ME).backward()
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        text = "optimizer.step() called without optimizer.skip_synchronize() context"
        assert [str(w.message).startswith(text) for w in caught] == [True]
    agree(model, train_alone(sgd, scale=SIZE))


def check_closures():
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
            run(model, optimizer, lambda step, m=model: loss_of(m, step, ME), before)
            yardstick = make(alone.parameters())

            def whole(step, m=alone):
                return sum(loss_of(m, step, r) for r in RANKS) / SIZE

            if make is sgd:
                run(alone, yardstick, whole, before)
                agree(model, alone)
            else:
                # LBFGS looks at the loss too, which differs by rank; without a line search only to stop
                # early.
                for name, param in model.named_parameters():
                    same_everywhere(param, f"lbfgs.{name}")


def check_schedulers():
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
            (sum(loss_of(alone, step, r) for r in RANKS) / SIZE).backward()
            yardstick.step()
            optimizer.zero_grad()
            loss_of(model, step, ME).backward()
            optimizer.step()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scheduler.step()
        agree(model, alone)


def check_several_optimizers_at_once():
    models = [model_of(seed) for seed in range(3)]
    optimizers = [
        hvd.DistributedOptimizer(sgd(m.parameters()), [(f"m{i}.{n}", p) for n, p in m.named_parameters()])
        for i, m in enumerate(models)
    ]
    for step in range(STEPS):
        for i, model in enumerate(models):
            optimizers[i].zero_grad()
            loss_of(model, step, ME).backward()
        for i in [(ME + j) % 3 for j in range(3)]:  # each rank in another order
            optimizers[i].step()
    agree(models[0], train_alone(sgd))


def check_the_wrapper_is_the_wrapped():
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
    assert optimizer.backward_passes_per_step == 1 and optimizer._handles == {}
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


def check_load_state_dict_while_reducing():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    saved = optimizer.state_dict()
    loss_of(model, 0, ME).backward()
    optimizer.load_state_dict(saved)
    assert optimizer._handles == {}
    optimizer.zero_grad()
    hvd.barrier()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, ME).backward()
        optimizer.step()
    agree(model, train_alone(sgd))
    hvd.mpi_ops._handle_map.clear()  # what was given up has ended long ago


def check_parameters_added_later():
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
        inputs, _ = batch_of(step, ME)
        extra(model(inputs)).sum().backward()
        optimizer.step()
    for name, p in [("bias", extra.bias), ("weight", extra.weight), ("unfrozen", model[0].weight)]:
        same_everywhere(p, f"added.{name}")
    assert not torch.equal(before, model[0].weight) and extra.bias.item() == -10.0


def check_wrong_use():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, 0, ME).backward()
    if SIZE > 1:
        with raises(AssertionError, "optimizer.zero_grad() was called after loss.backward()"):
            optimizer.zero_grad()
        with raises(AssertionError, "more than backward_passes_per_step times"):
            loss_of(model, 0, ME).backward()
        assert len(optimizer._handles) == 6 and all(type(h) is int for h, _ in optimizer._handles.values())
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert not any(p.grad.any() for p in model.parameters())
    optimizer.zero_grad(True)
    assert all(p.grad is None for p in model.parameters())
    optimizer.set_backward_passes_per_step(2)
    loss_of(model, 0, ME).backward()
    loss_of(model, 1, ME).backward()
    optimizer.step()
    # A window that ends early: what is there is reduced.
    optimizer.zero_grad()
    loss_of(model, 0, ME).backward()
    optimizer.step()
    same_everywhere(model[0].weight, "early")


def check_wrong_arguments():
    model = model_of()
    params = list(model.parameters())

    def wrap(**options):
        return lambda: hvd.DistributedOptimizer(sgd(params), **options)

    def refuses(*fragments, kind=ValueError, **options):
        with raises(kind, *fragments):
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
    if SIZE > 1:
        refuses("Adasum", kind=NotImplementedError, op=hvd.Adasum)
    assert not params[0]._post_accumulate_grad_hooks


def check_hooks_end_with_the_optimizer():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, 0, ME).backward()
    optimizer.step()
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    loss_of(model, 0, ME).backward()
    loss_of(model, 0, ME).backward()
    assert not hvd.mpi_ops._handle_map
    again = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, 0, ME).backward()
    again.step()
    del again
    dead = weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert dead() is None


def check_size_can_be_patched():
    model = model_of(seed=ME)
    with mock.patch("horovod.torch.size", return_value=1):
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, 0, ME).backward()
    assert not hvd.mpi_ops._handle_map and optimizer._handles == {}
    optimizer.step()
    with mock.patch("horovod.torch.size", return_value=4):
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    model.zero_grad()
    loss_of(model, 0, ME).backward()
    assert len(optimizer._handles) == 6
    optimizer.step()


def check_gradients_while_anomalies_are_detected():
    with torch.autograd.detect_anomaly(check_nan=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agree(train_together(sgd), train_alone(sgd))


def check_a_failed_reduction_leaves_the_optimizer_usable():
    model = torch.nn.Linear(3 + ME, 2).double()  # another shape on each rank
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    model(torch.ones(1, 3 + ME, dtype=torch.float64)).sum().backward()
    if SIZE > 1:
        with raises(hvd.HorovodInternalError, "Mismatched"):
            optimizer.step()
    else:
        optimizer.step()
    assert not hvd.mpi_ops._handle_map and optimizer._handles == {}
    optimizer.zero_grad()
    agree(train_together(sgd), train_alone(sgd))


def check_gradient_scaling():
    # The documented ceremony. One rank overflows in step 1: then all skip that step, and the scale goes down.
    model = model_of().float()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = batch_of(step, ME)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(inputs.float()), labels)
        if step == 1 and ME == SIZE - 1:
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


def check_restart_of_the_engine_between_backward_and_step():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    saved = {k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict()
    for way in ("restore", "go on"):
        loss_of(model, 0, ME).backward()
        hvd.barrier()  # a rank that leaves early would fail the backward of the others
        hvd.shutdown()
        hvd.init()
        if way == "restore":
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            optimizer.zero_grad()
    optimizer.step()
    for step in range(1, STEPS):
        optimizer.zero_grad()
        loss_of(model, step, ME).backward()
        optimizer.step()
    agree(model, train_alone(sgd))
