"""What PyTorch builds on groups, over hvd: DDP's variants, FSDP1, ZeroRedundancyOptimizer, distributed checkpoint and
pipelines."""

import copy
import shutil
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd
from groups import default_group
from older_torch import need_fully_shard, pipeline_stage, scale_of_pipelines
from small_training import STEPS, compare, data, data_of_all, expected, model, sgd, train

pytestmark = pytest.mark.ranks(2, framework="torch")


class Branches(torch.nn.Module):
    """A step uses one branch, so that the other has no gradients; `third` is never used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (torch.nn.Linear(8, 4) for _ in range(3))

    def forward(self, x, takes_second):
        return self.second(x) if takes_second else self.first(x)


def test_variants_of_data_parallel():
    with default_group():
        x, y = data()
        # The ranks use different branches, and one branch is used nowhere.
        parallel = DistributedDataParallel(Branches(), find_unused_parameters=True)
        alone = Branches()
        F.mse_loss(parallel(x, hvd.rank() % 2 == 1), y).backward()
        sum(
            F.mse_loss(alone(data(r)[0], r % 2 == 1), data(r)[1]) / hvd.size() for r in range(hvd.size())
        ).backward()
        for name in ("first.weight", "second.bias"):
            torch.testing.assert_close(
                parallel.module.get_parameter(name).grad, alone.get_parameter(name).grad
            )
        assert parallel.module.third.weight.grad is None
        # A graph that is the same in each step: unused parameters are found once.
        parallel = DistributedDataParallel(Branches(), static_graph=True, gradient_as_bucket_view=True)
        alone = Branches()
        for _ in range(3):
            parallel.zero_grad()
            alone.zero_grad()
            F.mse_loss(parallel(x, False), y).backward()
            sum(
                F.mse_loss(alone(data(r)[0], False), data(r)[1]) / hvd.size() for r in range(hvd.size())
            ).backward()
            torch.testing.assert_close(parallel.module.first.weight.grad, alone.first.weight.grad)
        # Gradients of two backward passes, with one reduction.
        parallel, alone = DistributedDataParallel(model()), model()
        with parallel.no_sync():
            F.mse_loss(parallel(x), y).backward()
        F.mse_loss(parallel(x), y).backward()
        whole = data_of_all()
        (2 * F.mse_loss(alone(whole[0]), whole[1])).backward()
        torch.testing.assert_close(parallel.module[0].weight.grad, alone[0].weight.grad)
        # A rank with less data shadows the reductions of the others until all have ended.
        parallel = DistributedDataParallel(model())
        optimizer = sgd(parallel)
        with parallel.join():
            train(parallel, data(), optimizer, 1 + hvd.rank())
        sums = parallel.module[0].weight.detach().clone()
        dist.all_reduce(sums, dist.ReduceOp.MAX)
        assert torch.equal(sums, parallel.module[0].weight.detach())


def test_power_sgd():
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    with default_group() as group:
        parallel = DistributedDataParallel(model())
        state = PowerSGDState(
            group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
        )
        parallel.register_comm_hook(state, powerSGD_hook)
        before = F.mse_loss(parallel(data()[0]), data()[1]).item()
        train(parallel, data(), torch.optim.SGD(parallel.parameters(), lr=0.05), 10)
        assert F.mse_loss(parallel(data()[0]), data()[1]).item() < before
        weights = parallel.module[0].weight.detach()
        of_all = [torch.empty_like(weights) for _ in range(hvd.size())]
        dist.all_gather(of_all, weights)
        assert all(torch.equal(other, weights) for other in of_all)


def test_fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    with default_group():
        wanted = expected()
        for strategy in (
            ShardingStrategy.FULL_SHARD,
            ShardingStrategy.SHARD_GRAD_OP,
            ShardingStrategy.NO_SHARD,
        ):
            sharded = FullyShardedDataParallel(
                model(),
                sharding_strategy=strategy,
                device_id=torch.device("cpu"),
                auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
                use_orig_params=True,
            )
            optimizer = sgd(sharded)
            train(sharded, data(), optimizer)
            with FullyShardedDataParallel.summon_full_params(sharded):
                found = dict(sharded.module.named_parameters())
                compare(
                    {name.replace("_fsdp_wrapped_module.", ""): value for name, value in found.items()},
                    wanted,
                )
            F.mse_loss(sharded(data()[0]), data()[1]).backward()
            assert float(sharded.clip_grad_norm_(1e-3)) > 0
        small = FullyShardedDataParallel(
            model(),
            device_id=torch.device("cpu"),
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        )
        train(small, data(), sgd(small))
        with FullyShardedDataParallel.summon_full_params(small):
            compare(small.module.state_dict(), wanted, rtol=0.05, atol=0.02)


@pytest.mark.slow
def test_zero_redundancy_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with default_group():
        wanted = expected(torch.optim.Adam)
        for in_buckets in (False, True):
            parallel = DistributedDataParallel(model())
            optimizer = ZeroRedundancyOptimizer(
                parallel.parameters(), torch.optim.Adam, parameters_as_bucket_view=in_buckets, lr=0.1
            )
            train(parallel, data(), optimizer)
            compare(parallel.module.state_dict(), wanted)
        optimizer.consolidate_state_dict(0)
        if hvd.rank() == 0:
            assert len(optimizer.state_dict()["state"]) == 4


@pytest.mark.slow
def test_zero_redundancy_optimizer_with_overlap():
    from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with default_group():
        # The steps of the optimizer overlap with the reductions, which begin after two steps.
        parallel = DistributedDataParallel(model(), gradient_as_bucket_view=True)
        optimizer = ZeroRedundancyOptimizer(
            parallel.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1
        )
        try:
            hook = hook_with_zero_step(allreduce_hook, parallel, optimizer)
        except RuntimeError as error:
            if "requires NCCL" not in str(error):
                raise
            pytest.skip("this PyTorch (2.7 and older) gives the hook to NCCL and HCCL alone")
        parallel.register_comm_hook(None, hook)
        train(parallel, data(), optimizer, STEPS + 3)
        weights = parallel.module[0].weight.detach()
        of_all = [torch.empty_like(weights) for _ in range(hvd.size())]
        dist.all_gather(of_all, weights)
        assert all(torch.equal(other, weights) for other in of_all)
        assert not torch.equal(weights, model()[0].weight)


def _folder():
    """A folder that all ranks see."""
    found = [tempfile.mkdtemp() if hvd.rank() == 0 else None]
    dist.broadcast_object_list(found, 0)
    return found[0]


@pytest.mark.slow
@pytest.mark.ranks(3, framework="torch")  # shards are uneven
def test_distributed_checkpoint():
    need_fully_shard()
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def sharded():
        made = model()
        fully_shard(made, mesh=init_device_mesh("cpu", (hvd.size(),)))
        return made, torch.optim.Adam(made.parameters(), lr=0.1)

    with default_group():
        folder = _folder()
        try:
            trained, optimizer = sharded()
            train(trained, data(), optimizer)
            weights, state = get_state_dict(trained, optimizer)
            checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/first")
            future = checkpoint.async_save({"model": weights}, checkpoint_id=f"{folder}/second")
            future.result()
            wanted = expected(torch.optim.Adam)
            # Into a model that is not sharded, on each rank.
            alone = model()
            for name in ("first", "second"):
                with torch.no_grad():
                    alone[0].weight.zero_()
                found = {"model": alone.state_dict()}
                checkpoint.load(found, checkpoint_id=f"{folder}/{name}")
                alone.load_state_dict(found["model"])
                compare(alone.state_dict(), wanted)
            # Into shards, with the optimizer's state: training goes on as it would have.
            again, optimizer_again = sharded()
            weights, state = get_state_dict(again, optimizer_again)
            found = {"model": weights, "optimizer": state}
            checkpoint.load(found, checkpoint_id=f"{folder}/first")
            checkpoint.state_dict.set_state_dict(
                again,
                optimizer_again,
                model_state_dict=found["model"],
                optim_state_dict=found["optimizer"],
            )
            train(again, data(), optimizer_again, 2)
            whole = get_model_state_dict(again, options=StateDictOptions(full_state_dict=True))
            if hvd.rank() == 0 or whole:
                compare(whole, expected(torch.optim.Adam, STEPS + 2))
            dist.barrier()
        finally:
            if hvd.rank() == 0:
                shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.ranks(3, framework="torch")  # with a rank that is neither the first nor the last
def test_pipelines():
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

    with default_group():
        generator = torch.Generator().manual_seed(0)
        x, y = (torch.randn(4 * hvd.size(), 8, generator=generator) for _ in range(2))
        for schedule_of, each in ((ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2)):
            torch.manual_seed(0)
            layers = [
                torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(each * hvd.size())
            ]
            whole = torch.nn.Sequential(*copy.deepcopy(layers))
            loss = F.mse_loss(whole(x), y)
            loss.backward()
            # A step takes two parts of x for each rank.
            mine = range(hvd.rank(), len(layers), hvd.size())
            stages = [pipeline_stage(layers[i], i, len(layers), x[:2]) for i in mine]
            schedule = schedule_of(stages if each > 1 else stages[0], 2 * hvd.size(), F.mse_loss)
            losses = []
            given = (x,) if hvd.rank() == 0 else ()
            last = {"target": y, "losses": losses} if hvd.rank() == hvd.size() - 1 else {}
            schedule.step(*given, **last)
            if hvd.rank() == hvd.size() - 1:
                torch.testing.assert_close(torch.stack(losses).mean(), loss)
            for i in mine:
                scale = scale_of_pipelines(schedule_of, 2 * hvd.size())
                torch.testing.assert_close(layers[i][0].weight.grad / scale, whole[i][0].weight.grad)
