"""torch.distributed over hvd on tensors of a device: the simulated `gcu` (tests/simulators/torch_gcu), whose streams are
late, so that work which does not wait for the right stream gets wrong numbers, or HVD_TEST_DEVICE (tests/system/gpu)."""

import functools
import os

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd
from groups import default_group
from harness.rank import expect
from small_training import compare, data, expected, model, sgd, train

pytestmark = [
    pytest.mark.ranks(2, framework="torch", id="eccl_stub", env={"HOROVOD_BACKEND": "eccl_stub"}),
    pytest.mark.ranks(3, framework="torch", id="eccl_stub", env={"HOROVOD_BACKEND": "eccl_stub"}, slow=True),
    # Only the device's table is used: the operations are those of the backend for host memory.
    pytest.mark.ranks(2, framework="torch", id="staged", env={"HOROVOD_BACKEND": "gcu=shm"}, slow=True),
    # No backend has the device: PyTorch copies.
    pytest.mark.ranks(2, framework="torch", id="no-backend", env={"HOROVOD_BACKEND": "shm"}),
    pytest.mark.skipif(
        not hasattr(torch, "gcu"), reason="torch has no device 'gcu': `make test` installs it"
    ),
]

KIND = os.environ.get("HVD_TEST_DEVICE", "gcu")
MODULE = getattr(torch, KIND, None)
torch.backends.cudnn.allow_tf32 = False  # weights are compared with those of the CPU


@functools.cache
def device():
    """This rank's device, which is the current one from now on."""
    own = torch.device(KIND, hvd.local_rank() % MODULE.device_count())
    MODULE.set_device(own)
    return own


def mine(*shape, rank=None, dtype=torch.float32):
    """Made on the device: its values are late."""
    rank = hvd.rank() if rank is None else rank
    return (torch.arange(torch.Size(shape).numel(), device=device()) % 7 + rank + 1).reshape(shape).to(dtype)


def same(tensor, wanted):
    assert tensor.device == device()
    torch.testing.assert_close(tensor.cpu(), wanted.cpu())


def of_all(*shape, **how):
    return [mine(*shape, rank=rank, **how) for rank in range(hvd.size())]


def test_collectives_on_a_device():
    with default_group():
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
            tensor = mine(40, 25, dtype=dtype)
            dist.all_reduce(tensor)
            same(tensor, sum(of_all(40, 25, dtype=dtype)))
        tensor = mine(3, 4).t()  # not dense
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        same(tensor, torch.stack(of_all(3, 4)).amax(0).t())
        for root in range(hvd.size()):
            tensor = mine(6)
            dist.reduce(tensor, root)
            same(tensor, sum(of_all(6)) if root == hvd.rank() else mine(6))
            tensor = mine(3, 3) if root == hvd.rank() else torch.zeros(3, 3, device=device())
            dist.broadcast(tensor, root)
            same(tensor, mine(3, 3, rank=root))
        whole = torch.empty(hvd.size() * 4, 2, device=device())
        dist.all_gather_into_tensor(whole, mine(4, 2))
        same(whole, torch.cat(of_all(4, 2)))
        parts = [torch.empty(5, device=device()) for _ in range(hvd.size())]
        dist.all_gather(parts, mine(5))
        same(torch.stack(parts), torch.stack(of_all(5)))
        part = torch.empty(3, device=device())
        dist.reduce_scatter_tensor(part, mine(3 * hvd.size()))
        same(part, sum(of_all(3 * hvd.size())).view(hvd.size(), 3)[hvd.rank()])
        out = torch.empty(2 * hvd.size(), device=device())
        dist.all_to_all_single(out, mine(2 * hvd.size()))
        same(out, torch.cat([each.view(hvd.size(), 2)[hvd.rank()] for each in of_all(2 * hvd.size())]))
        parts = [torch.empty(5, device=device()) for _ in range(hvd.size())] if hvd.rank() == 0 else None
        dist.gather(mine(5), parts)
        if hvd.rank() == 0:
            same(torch.stack(parts), torch.stack(of_all(5)))
        part = torch.empty(2, device=device())
        dist.scatter(part, list(mine(hvd.size(), 2).unbind()) if hvd.rank() == 0 else None)
        same(part, mine(hvd.size(), 2, rank=0)[hvd.rank()])
        found = [None] * hvd.size()
        dist.all_gather_object(found, hvd.rank())
        assert found == list(range(hvd.size()))
        dist.barrier()
        tensor = torch.ones(3)  # host memory, in the same group
        dist.all_reduce(tensor)
        assert tensor.tolist() == [hvd.size()] * 3


def test_messages_of_a_device():
    with default_group():
        for dtype in (torch.float32, torch.bfloat16):
            if hvd.rank() == 0:
                dist.send(mine(1000, dtype=dtype), hvd.size() - 1)
            elif hvd.rank() == hvd.size() - 1:
                got = torch.zeros(1000, dtype=dtype, device=device())
                dist.recv(got, 0)
                same(got, mine(1000, dtype=dtype, rank=0))
        after, before = (hvd.rank() + 1) % hvd.size(), (hvd.rank() - 1) % hvd.size()
        got = torch.zeros(7, device=device())
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine(7), after), dist.P2POp(dist.irecv, got, before)]
        )
        for work in works:
            work.wait()
        same(got, mine(7, rank=before))


def test_streams_and_futures():
    with default_group():
        tensor, other = mine(1000), MODULE.Stream(device())
        work = dist.all_reduce(tensor, async_op=True)
        with MODULE.stream(other):
            work.wait()
            doubled = tensor * 2
        MODULE.current_stream(device()).wait_stream(other)
        same(doubled, sum(of_all(1000)) * 2)
        work.wait()
        same(tensor, sum(of_all(1000)))
        future = dist.all_reduce(mine(1000), async_op=True).get_future().then(lambda f: f.value()[0] + 1)
        same(future.wait(), sum(of_all(1000)) + 1)
        wrong = mine(3 if hvd.rank() == hvd.size() - 1 else 4)
        expect(RuntimeError, lambda: dist.all_reduce(wrong), "Mismatched")


def test_training_on_a_device():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    given = [part.to(device()) for part in data()]
    wanted = expected()
    with default_group():
        for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
            parallel = DistributedDataParallel(model().to(device()), **options)
            train(parallel, given, sgd(parallel))
            compare({n: v.cpu() for n, v in parallel.module.state_dict().items()}, wanted)
        sharded = fully_shard(model().to(device()), mesh=init_device_mesh(KIND, (hvd.size(),)))
        train(sharded, given, sgd(sharded))
        compare({n: v.full_tensor().cpu() for n, v in sharded.state_dict().items()}, wanted)


def test_fsdp1_on_a_device():
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    given, wanted = [part.to(device()) for part in data()], expected()
    with default_group():
        for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.NO_SHARD):
            # On the device from the beginning: PyTorch moves no parameter's data to a type of device that is not its own.
            sharded = FullyShardedDataParallel(
                model().to(device()),
                sharding_strategy=strategy,
                device_id=device(),
                sync_module_states=True,
                auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
                use_orig_params=True,
            )
            train(sharded, given, sgd(sharded))
            with FullyShardedDataParallel.summon_full_params(sharded):
                found = dict(sharded.module.named_parameters())
                compare(
                    {name.replace("_fsdp_wrapped_module.", ""): value.cpu() for name, value in found.items()},
                    wanted,
                )


def test_another_backend_for_host_memory():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with default_group(backend=f"cpu:gloo,{KIND}:hvd"):
        on_host, on_device = torch.tensor([1 << hvd.rank()]), mine(10)
        dist.all_reduce(on_host, dist.ReduceOp.BOR)  # which hvd has not
        dist.all_reduce(on_device)
        assert on_host.item() == (1 << hvd.size()) - 1
        same(on_device, sum(of_all(10)))
        dist.barrier()


def test_torchs_own_sync_batch_norm():
    if KIND == "gcu":
        import gcu_batch_norm  # noqa: F401 (registers its operators)

    def norms():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Conv2d(2, 3, 1), torch.nn.BatchNorm2d(3))

    def pictures(rank):
        return torch.randn(2 + rank, 2, 4, 4, generator=torch.Generator().manual_seed(rank))

    alone = norms()
    alone(torch.cat([pictures(rank) for rank in range(hvd.size())])).pow(3).sum().backward()
    with default_group():
        synced = torch.nn.SyncBatchNorm.convert_sync_batchnorm(norms()).to(device())
        parallel = DistributedDataParallel(synced)
        (parallel(pictures(hvd.rank()).to(device())).pow(3).sum() * hvd.size()).backward()
        for name, parameter in synced.named_parameters():
            torch.testing.assert_close(
                parameter.grad.cpu(), alone.get_parameter(name).grad, rtol=1e-3, atol=1e-3
            )
        compare({n: v.cpu() for n, v in synced.state_dict().items()}, alone.state_dict())
