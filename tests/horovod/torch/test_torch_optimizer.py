"""Checks that DistributedOptimizer computes the right parameters, run on every rank by tests/harness."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import horovod.torch as hvd
from torch_support import NO_DLPACK_API, raises, same_everywhere
from torch_training import (
    SHARED_GRADIENTS,
    STEPS,
    adam,
    adamw,
    agree,
    batch_of,
    loss_of,
    model_of,
    sgd,
    train_alone,
    train_together,
)

pytestmark = [
    pytest.mark.ranks(1, 3, framework="torch"),
    pytest.mark.ranks(2, framework="torch", id="no-dlpack", process_env=NO_DLPACK_API),
    pytest.mark.ranks(2, framework="torch", id="shared", process_env=SHARED_GRADIENTS, slow=True),
]


def test_equals_one_process_with_the_whole_batch():
    for make in (sgd, adam, adamw, lambda p: torch.optim.RMSprop(p, lr=0.01)):
        agree(train_together(make), train_alone(make))
    agree(train_together(sgd, named=False), train_alone(sgd))


def test_sum():
    agree(train_together(sgd, op=hvd.Sum), train_alone(sgd, scale=hvd.size()))


def test_backward_passes_per_step():
    for passes in (2, 3):
        agree(train_together(sgd, passes=passes), train_alone(sgd, passes=passes))


def test_groups():
    for groups in (1, 2, 3, 100):
        agree(train_together(adam, groups=groups), train_alone(adam))
        agree(train_together(sgd, groups=groups, passes=2), train_alone(sgd, passes=2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agree(train_together(adam, num_groups=2), train_alone(adam))
    assert any(w.category is DeprecationWarning and "num_groups" in str(w.message) for w in caught)


def test_explicit_groups():
    model = model_of()
    params = list(model.parameters())
    optimizer = hvd.DistributedOptimizer(
        sgd(params), named_parameters=model.named_parameters(), groups=[[params[0], params[5]], [params[3]]]
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    agree(model, train_alone(sgd))


def test_gradient_predivide_factor():
    for options in ({}, {"groups": 2}):
        agree(train_together(sgd, gradient_predivide_factor=3.0, **options), train_alone(sgd))


def test_compression():
    agree(train_together(sgd, compression=hvd.Compression.fp16), train_alone(sgd), 5e-3)
    agree(train_together(sgd, compression=hvd.Compression.bf16, groups=2), train_alone(sgd), 5e-2)


def test_half_precision_parameters():
    for dtype in (torch.bfloat16, torch.float16):
        model = model_of().to(dtype)
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs, labels = batch_of(step, hvd.rank())
            F.cross_entropy(model(inputs.to(dtype)).float(), labels).backward()
            optimizer.step()
        same_everywhere(model[0].weight, f"half.{dtype}")
        wanted = train_alone(sgd)[0].weight
        assert (model[0].weight.double() - wanted).abs().max() < 0.05


def test_unused_parameters():
    # Each rank uses its own branch and one that all use: a gradient that a rank did not compute counts as zero.
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False) for _ in range(hvd.size() + 2)]).double()
    for p in model.parameters():
        torch.nn.init.ones_(p)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
    )
    inputs = torch.ones(1, 2, dtype=torch.float64)
    for _ in range(2):
        optimizer.zero_grad()
        (model[hvd.rank()](inputs) + model[hvd.size()](inputs)).sum().backward()
        optimizer.step()
    for r in range(hvd.size()):
        assert torch.allclose(model[r].weight, torch.full((2, 2), 1 - 2.0 / hvd.size(), dtype=torch.float64))
    assert torch.allclose(model[hvd.size()].weight, torch.full((2, 2), -1.0, dtype=torch.float64))
    assert torch.equal(model[hvd.size() + 1].weight, torch.ones(2, 2, dtype=torch.float64))


def test_channels_last_gradients():
    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, 4, 3).double().to(memory_format=torch.channels_last)
    start = model.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
    )
    grads = []
    for r in range(hvd.size()):
        inputs = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(r), dtype=torch.float64)
        inputs = inputs.to(memory_format=torch.channels_last)
        if r == hvd.rank():
            model(inputs).square().sum().backward()
            assert not model.weight.grad.is_contiguous()
        copy = torch.nn.Conv2d(3, 4, 3).double()
        copy.load_state_dict({"weight": start, "bias": model.bias.detach()})
        copy(inputs).square().sum().backward()
        grads.append(copy.weight.grad)
    optimizer.step()
    assert torch.allclose(model.weight, start - sum(grads) / hvd.size(), atol=1e-10)


def test_complex_parameters():
    param = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex128))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    (param * complex(1, hvd.rank())).real.sum().backward()
    optimizer.step()
    assert torch.allclose(param.real, torch.full((3,), -1.0, dtype=torch.float64))
    assert torch.allclose(
        param.imag.abs(), torch.full((3,), sum(range(hvd.size())) / hvd.size(), dtype=torch.float64)
    )


def test_sparse_gradients():
    for options in ({}, {"sparse_as_dense": True}):
        embedding = torch.nn.Embedding(6, 2, sparse=True).double()
        torch.nn.init.zeros_(embedding.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(embedding.parameters(), lr=1.0), embedding.named_parameters(), **options
        )
        wanted = torch.zeros(6, 2, dtype=torch.float64)
        for _ in range(2):
            optimizer.zero_grad()
            embedding(torch.tensor([hvd.rank(), 5, 5])).sum().backward()
            optimizer.step()
            assert embedding.weight.grad.is_sparse
            for r in range(hvd.size()):
                wanted[r] -= 1.0 / hvd.size()
                wanted[5] -= 2.0 / hvd.size()
        assert torch.allclose(embedding.weight, wanted), (embedding.weight, wanted)
        # A rank that has no gradient this time takes part with an empty one.
        optimizer.zero_grad()
        if hvd.rank() == 0:
            embedding(torch.tensor([3])).sum().backward()
        optimizer.step()
        wanted[3] -= 1.0 / hvd.size()
        assert torch.allclose(embedding.weight, wanted)


def test_gradient_clipping():
    model, alone = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    yardstick = sgd(alone.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
    for step in range(STEPS):
        yardstick.zero_grad()
        (sum(loss_of(alone, step, r) for r in range(hvd.size())) / hvd.size()).backward()
        torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        yardstick.step()
    agree(model, alone)


def test_gradients_while_anomalies_are_detected():
    with torch.autograd.detect_anomaly(check_nan=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agree(train_together(sgd), train_alone(sgd))


def test_groups_of_two_optimizers_with_the_same_names():
    model = model_of()
    halves = [list(module.parameters()) for module in model if list(module.parameters())]
    optimizers = [hvd.DistributedOptimizer(sgd(half), model.named_parameters(), groups=1) for half in halves]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        for optimizer in optimizers:
            optimizer.step()
    agree(model, train_alone(sgd))


def test_groups_leave_out_foreign_parameters():
    model = model_of()
    foreign = torch.nn.Parameter(torch.ones(2))
    groups = [[foreign, *model.parameters()]]
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), groups=groups)
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.step()
    assert foreign.grad is None


def test_frozen_member_of_a_group_stays_as_it_is():
    model = model_of()
    decaying = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    optimizer = hvd.DistributedOptimizer(decaying, model.named_parameters(), groups=1)
    frozen = model[0].weight.requires_grad_(False)
    before = frozen.clone()
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.step()
    assert torch.equal(frozen, before) and frozen.grad is None
    same_everywhere(model[0].bias, "beside a frozen one")


def test_zero_grad_of_an_optimizer_that_takes_no_arguments():
    class Plain(torch.optim.SGD):
        def zero_grad(self):
            for param in self.param_groups[0]["params"]:
                param.grad = None

    model = model_of()
    optimizer = hvd.DistributedOptimizer(Plain(model.parameters(), lr=0.1), model.named_parameters())
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert model[0].weight.grad is None


def test_misuse_of_the_constructor():
    model = model_of()
    names = model.named_parameters()
    list(names)
    with raises(ValueError, "were not named"):
        hvd.DistributedOptimizer(sgd(model.parameters()), names)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    with raises(ValueError, "already"):
        hvd.DistributedOptimizer(optimizer, model.named_parameters())
