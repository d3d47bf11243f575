"""Gradient accumulation whose last window of an epoch is shorter, with a learning rate schedule and averaged metrics."""

import argparse

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))


def make_data():
    seed = torch.Generator().manual_seed(0)
    inputs = torch.randn(56, 10, generator=seed)
    return TensorDataset(inputs, inputs[:, :4].argmax(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--batches-per-allreduce", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--base-lr", type=float, default=0.05)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", default="accumulation.pt")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(hvd.rank())
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, args.dtype))
    dataset = make_data()
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    window = args.batches_per_allreduce

    model = make_model()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.base_lr * window * hvd.size(), momentum=0.9, weight_decay=5e-5
    )
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=window,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    start = {name: value.clone() for name, value in model.state_dict().items()}

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        optimizer.zero_grad()
        for i, (inputs, labels) in enumerate(loader):
            loss = F.cross_entropy(model(inputs), labels)
            total += loss.detach() / len(loader)
            loss.div_(window)
            loss.backward()
            if (i + 1) % window == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
        scheduler.step()
        loss = hvd.allreduce(total, name="avg_loss").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, lr {scheduler.get_last_lr()[0]:.4f}")

    if hvd.rank() == 0:
        torch.save({"start": start, "model": model.state_dict(), "loss": loss}, args.out)


if __name__ == "__main__":
    main()
