"""Training on a device that no backend serves, whose tensors PyTorch copies through host memory; run by tests/harness."""

import copy

import pytest
import torch

import horovod.torch as hvd
from torch_device import device

pytestmark = pytest.mark.ranks(2, framework="torch", env={"HOROVOD_BACKEND": "shm"})


class Model(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.table = torch.nn.Embedding(12, 6, sparse=True)
        self.norm = hvd.SyncBatchNorm(6) if norm else torch.nn.Identity()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, words):
        hidden = self.norm(self.table(words))
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return hidden.square().mean()


def trained(where, kind, norm, clipped, **options):
    """The weights after some steps, and the optimizer's state, on the CPU."""
    torch.manual_seed(7 + hvd.rank())
    model = Model(norm).to(where, torch.float64)
    # The simulated device cannot add up sparse gradients.
    model.table.sparse = options.get("backward_passes_per_step", 1) == 1 and options.get("op") != hvd.Adasum
    inner = kind(model.parameters(), lr=0.3, foreach=False)
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(inner, 0)
    if options.pop("grouped", False):
        options["groups"] = [list(model.layers.parameters())]
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), **options)
    for step in range(3):
        optimizer.zero_grad()
        for turn in range(options.get("backward_passes_per_step", 1)):
            words = (torch.arange(8) * (hvd.rank() + 2) + step + turn) % 12
            model(words.to(where)).backward()
        if clipped:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.layers.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return {name: value.cpu() for name, value in copy.deepcopy(model.state_dict()).items()}


def test_training_gives_the_weights_of_the_cpu():
    """But for the last digits, in which computations on this device differ from those on the CPU."""
    for case, (kind, norm, clipped, options) in enumerate(
        [
            (torch.optim.SGD, False, False, {}),
            (torch.optim.SGD, True, True, {}),
            (torch.optim.SGD, False, False, {"backward_passes_per_step": 2}),
            (torch.optim.SGD, False, False, {"compression": hvd.Compression.fp16}),
            (torch.optim.SGD, False, False, {"grouped": True, "gradient_predivide_factor": 2.0}),
            (torch.optim.SGD, False, False, {"op": hvd.Adasum}),
            (torch.optim.SGD, False, False, {"sparse_as_dense": True}),
        ]
    ):
        found, wanted = (
            trained(where, kind, norm, clipped, **options) for where in (device(), torch.device("cpu"))
        )
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=f"case {case}: {name}")
        rows = hvd.allgather(found["layers.2.weight"].reshape(1, -1))
        assert all(torch.equal(rows[0], row) for row in rows), case
