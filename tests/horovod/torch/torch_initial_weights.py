"""Trainings with and without the first broadcast, for test_torch_initial_weights.py: every rank executes them."""

import torch

import horovod.torch as hvd


def two_layers(seed, frozen=False):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    model[0].bias.requires_grad = not frozen
    return model


def train(model, steps=3, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(5, 3)).square().sum().backward()
        optimizer.step()


def without_broadcast(kind="plain"):
    options = {
        "plain": {},
        "group": {"groups": 1},
        "fp16": {"compression": hvd.Compression.fp16},
        "adasum": {"op": hvd.Adasum},
        "passes": {"backward_passes_per_step": 1, "sparse_as_dense": True},
    }[kind]
    train(two_layers(hvd.rank()), **options)


def one_weight_differs():
    model = two_layers(0)
    with torch.no_grad():
        model[1].weight[1, 2] += hvd.rank() * 1e-6
    train(model)


def with_broadcast():
    model = two_layers(hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    train(model)


def embedding():
    torch.manual_seed(hvd.rank())
    layer = torch.nn.Embedding(6, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
    for _ in range(2):
        layer(torch.tensor([1, 2])).sum().backward()
        optimizer.step()


def frozen_weight_differs():
    model = two_layers(0, frozen=True)
    with torch.no_grad():
        model[0].bias.fill_(hvd.rank())
    train(model)
