"""A convolutional network with SyncBatchNorm, gradients clipped between synchronize() and step()."""

import argparse

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd


def make_model(norm):
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 6, 3, padding=1),
        norm(6),
        torch.nn.ReLU(),
        torch.nn.Conv2d(6, 8, 3, stride=2),
        norm(8, momentum=None),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 3),
    )


def make_data():
    seed = torch.Generator().manual_seed(1)
    labels = torch.arange(40) % 3
    return TensorDataset(torch.randn(40, 2, 8, 8, generator=seed) + labels.view(-1, 1, 1, 1), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", default="sync_norm.pt")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(hvd.rank())
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, args.dtype))
    dataset = make_data()
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = make_model(hvd.SyncBatchNorm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    start = {name: value.clone() for name, value in model.state_dict().items()}

    for epoch in range(args.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with optimizer.skip_synchronize():
                optimizer.step()
        if hvd.rank() == 0:  # the others do not evaluate
            model.eval()
            with torch.no_grad():
                outputs = model(dataset.tensors[0])
            print(f"epoch {epoch}: accuracy {(outputs.argmax(1) == dataset.tensors[1]).float().mean():.3f}")

    if hvd.rank() == 0:
        torch.save({"start": start, "model": model.state_dict(), "outputs": outputs}, args.out)


if __name__ == "__main__":
    main()
