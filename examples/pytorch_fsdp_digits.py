"""Train a network on scikit-learn's handwritten digits with weights that are sharded over the processes (FSDP2).

    torchrun --nproc-per-node 2 examples/pytorch_fsdp_digits.py
    horovodrun -np 2 python examples/pytorch_fsdp_digits.py
    torchrun --nproc-per-node 2 examples/pytorch_fsdp_digits.py --backend gloo     # for comparison

It uses torch.distributed only; hvd-core is its backend. Needs torch 2.6 and scikit-learn.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def parse_arguments():
    parser = argparse.ArgumentParser(description="Digits, with sharded weights over hvd-core")
    parser.add_argument("--backend", default="hvd", help="of torch.distributed (default hvd)")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the training data (default 12)")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples per process and step (default 32)"
    )
    return parser.parse_args()


def load(rank, size):
    """(training images and labels of this rank, test images and labels); images are (N, 64) floats of 0 to 1."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.2, random_state=0, stratify=labels)
    train_x, test_x, train_y, test_y = (torch.tensor(part) for part in parts)
    share = len(train_y) // size  # as many for each rank, so that all make as many steps
    mine = slice(rank * share, (rank + 1) * share)
    return train_x[mine].float(), train_y[mine], test_x.float(), test_y


def main():
    arguments = parse_arguments()
    dist.init_process_group(arguments.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)  # the processes share the cores; so small a network gains nothing from more
    torch.manual_seed(0)  # all ranks begin with one network
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    )
    mesh = init_device_mesh("cpu", (size,))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    train_x, train_y, test_x, test_y = load(rank, size)
    for epoch in range(arguments.epochs):
        order = torch.randperm(len(train_y))
        for batch in order.split(arguments.batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(train_x[batch]), train_y[batch])
            loss.backward()
            optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.SUM)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss of the last batches {mean.item() / size:.4f}")
    with torch.no_grad():
        correct = (
            (model(test_x).argmax(1) == test_y).float().mean()
        )  # all ranks take part: the weights are sharded
    if rank == 0:
        held = sum(parameter.to_local().numel() for parameter in model.parameters())
        whole = sum(parameter.numel() for parameter in model.parameters())
        print(
            f"{dist.get_backend()} on {size} ranks: test accuracy {correct:.3f}; rank 0 holds {held} of {whole} weights"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
