"""A small model, its data, and training it on one rank and on all: the optimizer checks compare with it.

The yardstick is one process that trains on the whole batch in float64: the same parameters must come out.
"""

import functools
import os

import torch
import torch.nn.functional as F

import horovod.torch as hvd
from torch_support import same_everywhere

if "HVD_TEST_GRADIENT_BUFFERS" in os.environ and not isinstance(hvd.DistributedOptimizer, functools.partial):
    hvd.DistributedOptimizer = functools.partial(
        hvd.DistributedOptimizer, gradient_buffers=os.environ["HVD_TEST_GRADIENT_BUFFERS"]
    )
# Gradients live in memory that the ranks share.
SHARED_GRADIENTS = {"HVD_TEST_GRADIENT_BUFFERS": "shared"}
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


def layer_of(seed=0):
    """A model that a compiler is soon through with."""
    torch.manual_seed(seed)
    return torch.nn.Linear(6, 3).double()


def batch_of(step, rank, passes=0):
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + passes)
    return torch.randn(5, 6, generator=generator, dtype=torch.float64), torch.randint(
        0, 3, (5,), generator=generator
    )


def loss_of(model, step, rank, passes=0):
    inputs, labels = batch_of(step, rank, passes)
    return F.cross_entropy(model(inputs), labels)


def train_alone(make, passes=1, scale=1.0, new_model=model_of):
    """One process, all ranks' batches, gradients averaged over ranks, summed over passes, times `scale`."""
    model = new_model()
    optimizer = make(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        total = sum(loss_of(model, step, r, p) for r in range(hvd.size()) for p in range(passes))
        (total * scale / hvd.size()).backward()
        optimizer.step()
    return model


def train_together(make, passes=1, named=True, **options):
    model = model_of(seed=hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    names = model.named_parameters() if named else None
    optimizer = hvd.DistributedOptimizer(
        make(model.parameters()), named_parameters=names, backward_passes_per_step=passes, **options
    )
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(STEPS):
        optimizer.zero_grad()
        for p in range(passes):
            loss_of(model, step, hvd.rank(), p).backward()
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
