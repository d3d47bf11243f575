"""A small training: a model, the data of each rank, and the weights that one process gets."""

import torch
import torch.nn.functional as F

import horovod.torch as hvd

STEPS = 3


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def data(rank=None):
    generator = torch.Generator().manual_seed(hvd.rank() if rank is None else rank)
    return torch.randn(6, 8, generator=generator), torch.randn(6, 4, generator=generator)


def data_of_all():
    return [torch.cat(parts) for parts in zip(*map(data, range(hvd.size())))]


def train(trained, given, optimizer, steps=STEPS):
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(trained(given[0]).to(given[1].dtype), given[1]).backward()
        optimizer.step()


def sgd(trained):
    return torch.optim.SGD(trained.parameters(), lr=0.1)


def expected(kind=torch.optim.SGD, steps=STEPS):
    """The weights of one process that trains with the data of all ranks."""
    alone = model()
    train(alone, data_of_all(), kind(alone.parameters(), lr=0.1), steps)
    return alone.state_dict()


def compare(found, wanted, **tolerance):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, **tolerance)
