"""Checks of training by torch.distributed over hvd: DDP, sharded weights, compiled collectives. Run by tests/harness."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd
from groups import default_group

ME, SIZE = hvd.rank(), hvd.size()


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def _data(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(6, 8, generator=generator), torch.randn(6, 4, generator=generator)


def _trained(model, data, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data[0]), data[1]).backward()
        optimizer.step()


def _expected():
    """One process with the data of all ranks."""
    model = _model()
    _trained(model, [torch.cat(parts) for parts in zip(*map(_data, range(SIZE)))])
    return model


def check_distributed_data_parallel():
    with default_group():
        expected = _expected().state_dict()
        for options in (
            {},
            {"static_graph": True},
            {"gradient_as_bucket_view": True, "find_unused_parameters": True},
            {"bucket_cap_mb": 0.0001},
        ):
            model = DistributedDataParallel(_model(), **options)
            _trained(model, _data(ME))
            for name, value in model.module.state_dict().items():
                torch.testing.assert_close(value, expected[name])


def _bfloat16_hook(group, bucket):
    """As torch's own hook for bfloat16, which refuses to run without a GPU."""
    small = bucket.buffer().to(torch.bfloat16).div_(group.size())
    work = dist.all_reduce(small, group=group, async_op=True)
    return work.get_future().then(lambda reduced: reduced.value()[0].float())


def check_hooks_of_data_parallel():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    with default_group() as group:
        expected = _expected().state_dict()
        for hook in (fp16_compress_hook, _bfloat16_hook):
            model = DistributedDataParallel(_model())
            model.register_comm_hook(group, hook)
            _trained(model, _data(ME))
            for name, value in model.module.state_dict().items():
                torch.testing.assert_close(value, expected[name], rtol=0.05, atol=0.02)


def check_sharded_weights():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    with default_group():
        mesh = init_device_mesh("cpu", (SIZE,))
        expected = _expected().state_dict()
        model = _model()
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        _trained(model, _data(ME))
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value.full_tensor(), expected[name])
        table = torch.arange(SIZE * 6.0).view(SIZE * 2, 3)
        sharded = distribute_tensor(table, mesh, [Shard(0)])
        assert torch.equal(sharded.to_local(), table.view(SIZE, 2, 3)[ME])
        assert torch.equal((sharded + 1).full_tensor(), table + 1)


def check_functional_collectives():
    from torch.distributed import _functional_collectives as functional

    with default_group() as group:
        tensor = torch.ones(4) * (ME + 1)
        total = SIZE * (SIZE + 1) / 2
        assert functional.wait_tensor(functional.all_reduce(tensor, "sum", group))[0] == total
        assert functional.wait_tensor(functional.all_gather_tensor(tensor, 0, group)).numel() == 4 * SIZE
        parts = functional.reduce_scatter_tensor(torch.ones(SIZE * 2), "sum", 0, group)
        assert functional.wait_tensor(parts).tolist() == [SIZE] * 2
        rows = functional.all_to_all_single(torch.arange(SIZE * 2.0), None, None, group)
        assert functional.wait_tensor(rows).numel() == SIZE * 2

        def step(x):
            return functional.all_reduce(x * 2, "sum", group) + 1

        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        assert compiled(tensor)[0] == total * 2 + 1
