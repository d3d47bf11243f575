"""Training by torch.distributed over hvd: DDP, sharded weights, compiled collectives."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd
from groups import default_group
from older_torch import need_fully_shard
from small_training import compare, data, expected, model, sgd, train

pytestmark = pytest.mark.ranks(2, framework="torch")


def test_distributed_data_parallel():
    with default_group():
        wanted = expected()
        for options in (
            {},
            {"static_graph": True},
            {"gradient_as_bucket_view": True, "find_unused_parameters": True},
            {"bucket_cap_mb": 0.0001},
        ):
            parallel = DistributedDataParallel(model(), **options)
            train(parallel, data(), sgd(parallel))
            compare(parallel.module.state_dict(), wanted)


def _bfloat16_hook(state, bucket):
    """torch's hook under another name: DDP refuses that name where torch is built without CUDA, on every backend."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    return bf16_compress_hook(state, bucket)


def test_hooks_of_data_parallel():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    with default_group() as group:
        wanted = expected()
        for hook in (fp16_compress_hook, _bfloat16_hook):
            parallel = DistributedDataParallel(model())
            parallel.register_comm_hook(group, hook)
            train(parallel, data(), sgd(parallel))
            compare(parallel.module.state_dict(), wanted, rtol=0.05, atol=0.02)


def test_sharded_weights():
    need_fully_shard()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    with default_group():
        mesh = init_device_mesh("cpu", (hvd.size(),))
        sharded = model()
        for layer in (sharded[0], sharded[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        train(sharded, data(), sgd(sharded))
        compare({name: value.full_tensor() for name, value in sharded.state_dict().items()}, expected())
        table = torch.arange(hvd.size() * 6.0).view(hvd.size() * 2, 3)
        spread = distribute_tensor(table, mesh, [Shard(0)])
        assert torch.equal(spread.to_local(), table.view(hvd.size(), 2, 3)[hvd.rank()])
        assert torch.equal((spread + 1).full_tensor(), table + 1)


def test_functional_collectives():
    from torch.distributed import _functional_collectives as functional

    with default_group() as group:
        tensor = torch.ones(4) * (hvd.rank() + 1)
        total = hvd.size() * (hvd.size() + 1) / 2
        assert functional.wait_tensor(functional.all_reduce(tensor, "sum", group))[0] == total
        assert (
            functional.wait_tensor(functional.all_gather_tensor(tensor, 0, group)).numel() == 4 * hvd.size()
        )
        parts = functional.reduce_scatter_tensor(torch.ones(hvd.size() * 2), "sum", 0, group)
        assert functional.wait_tensor(parts).tolist() == [hvd.size()] * 2
        rows = functional.all_to_all_single(torch.arange(hvd.size() * 2.0), None, None, group)
        assert functional.wait_tensor(rows).numel() == hvd.size() * 2

        def step(x):
            return functional.all_reduce(x * 2, "sum", group) + 1

        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        assert compiled(tensor)[0] == total * 2 + 1
