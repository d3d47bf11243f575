"""Ranks with different amounts of data: a rank that is finished joins, and all ranks take the model of the last one."""

import argparse

import torch
import torch.nn.functional as F

import horovod.torch as hvd


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3))


def batches(rank, epoch):
    """The data of a rank: another number of batches on each rank, and in each epoch."""
    seed = torch.Generator().manual_seed(100 * epoch + rank)
    for _ in range(3 + (2 * rank + epoch) % 4):
        inputs = torch.randn(8, 6, generator=seed)
        yield inputs, inputs[:, :3].argmax(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", default="uneven.pt")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(hvd.rank())
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, args.dtype))
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    start = {name: value.clone() for name, value in model.state_dict().items()}

    lasts = []
    for epoch in range(args.epochs):
        seen = 0
        for inputs, labels in batches(hvd.rank(), epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            seen += len(inputs)
        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        hvd.broadcast_optimizer_state(optimizer, root_rank=last)
        lasts.append(last)
        counts = hvd.allgather_object(seen)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: samples {counts}, rank {last} was last")

    if hvd.rank() == 0:
        torch.save({"start": start, "model": model.state_dict(), "lasts": lasts, "counts": counts}, args.out)


if __name__ == "__main__":
    main()
