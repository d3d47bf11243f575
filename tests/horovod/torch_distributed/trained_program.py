"""A training by torch.distributed alone, under any launcher, for tests on several hosts. Each rank prints a line when
its weights are those of one process with the data of all ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

if not hasattr(torch, "_import_device_backends"):  # PyTorch 2.4 does not load hvd's entry point
    import horovod.torch.distributed  # noqa: F401

STEPS = 3


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.ReLU(), torch.nn.Linear(300, 4))


def data(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(6, 8, generator=generator), torch.randn(6, 4, generator=generator)


def train(trained, given):
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.mse_loss(trained(given[0]), given[1]).backward()
        optimizer.step()


def expected(ranks):
    alone = model()
    train(alone, [torch.cat(parts) for parts in zip(*map(data, range(ranks)))])
    return alone.state_dict()


def check_calls(me, ranks):
    """Some calls beside the training: large and small tensors, groups, messages, objects."""
    for count in (1, 1000, 1 << 20):
        tensor = torch.full((count,), me + 1.0)
        dist.all_reduce(tensor)
        assert (tensor == ranks * (ranks + 1) / 2).all()
        dist.reduce(tensor.fill_(me + 1.0), ranks - 1)
        assert (tensor == (ranks * (ranks + 1) / 2 if me == ranks - 1 else me + 1)).all()
    parts = [torch.empty(50_000) for _ in range(ranks)]
    dist.gather(torch.full((50_000,), float(me)), parts if me == 0 else None)
    assert me != 0 or [part[-1].item() for part in parts] == list(range(ranks))
    ends = dist.new_group([0, ranks - 1])  # on two hosts
    if me in (0, ranks - 1):
        tensor = torch.ones(5)
        dist.all_reduce(tensor, group=ends)
        assert tensor.tolist() == [2] * 5
    got, after, before = torch.zeros(9), (me + 1) % ranks, (me - 1) % ranks
    work = dist.isend(torch.full((9,), float(me)), after)
    dist.recv(got, before)
    work.wait()
    assert got.tolist() == [before] * 9
    found = [None] * ranks
    dist.all_gather_object(found, {"rank": me})
    assert found == [{"rank": rank} for rank in range(ranks)]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("hvd")
    me, ranks = dist.get_rank(), dist.get_world_size()
    check_calls(me, ranks)
    parallel = DistributedDataParallel(model())
    train(parallel, data(me))
    for name, value in expected(ranks).items():
        torch.testing.assert_close(parallel.module.state_dict()[name], value)
    print(f"rank {me} of {ranks}: trained", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
