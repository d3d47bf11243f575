"""Train a small CNN on scikit-learn's handwritten digits with several processes.

    horovodrun -np 2 python examples/pytorch_digits.py
    mpirun -np 2 python examples/pytorch_digits.py
    torchrun --nproc-per-node 2 examples/pytorch_digits.py
    horovodrun -np 2 python examples/pytorch_digits.py --device cuda      # one GPU for each process

Written as any Horovod user would write it, with Horovod's public API only. The result, a checkpoint and a
picture of the training curves, lies in ./out (--output). Needs torch, scikit-learn, matplotlib and tqdm.
"""

import argparse
import math
import os
import sys
import time
from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

import horovod.torch as hvd

matplotlib.use("Agg")  # a picture is written to a file; no display is needed
from matplotlib import pyplot as plt


def parse_arguments():
    parser = argparse.ArgumentParser(description="CNN on handwritten digits, data-parallel with Horovod")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the training data (default 30)")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples per process and step (default 32)"
    )
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate for one process (default 0.02)")
    parser.add_argument("--momentum", type=float, default=0.9, help="SGD momentum (default 0.9)")
    parser.add_argument(
        "--warmup-epochs", type=float, default=2, help="epochs to reach the full rate (default 2)"
    )
    parser.add_argument(
        "--seed", type=int, default=42, help="for the split, the weights and the order (default 42)"
    )
    parser.add_argument("--workers", type=int, default=0, help="DataLoader processes per rank (default 0)")
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="TYPE",
        help="cpu (default), cuda, or another type of device that torch knows; one device per process",
    )
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument(
        "--output", type=Path, default=Path("out"), help="folder for the results (default ./out)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint in the output folder"
    )
    arguments = parser.parse_args()
    if arguments.epochs < 1 or arguments.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return arguments


class DigitsNet(nn.Module):
    """Two convolutions and two dense layers: (N, 1, 8, 8) images to (N, 10) logits."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.dense1 = nn.Linear(64 * 4 * 4, 128)
        self.dense2 = nn.Linear(128, 10)
        self.dropout = nn.Dropout(0.3)

    def forward(self, images):
        x = F.relu(self.conv1(images))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout(x.flatten(1))
        return self.dense2(self.dropout(F.relu(self.dense1(x))))


def choose_device(kind):
    """The device of this process. The processes of a host take one each, by their local rank."""
    if kind == "cpu":
        return torch.device("cpu")
    module = getattr(torch, kind, None)
    count = module.device_count() if module is not None and module.is_available() else 0
    if hvd.local_rank() >= count:
        sys.exit(
            f"--device {kind}: process {hvd.local_rank()} of this host needs a device of its own, "
            f"but torch has found {count}. Start fewer processes, or use --device cpu."
        )
    module.set_device(hvd.local_rank())
    return torch.device(kind, hvd.local_rank())


def backend_of(device):
    """The backend that reduces this device's gradients; the original Horovod has no report of it."""
    report = hvd.backend_report() if hasattr(hvd, "backend_report") else ()
    return "".join(row.backend for row in report if (row.operation, row.device) == ("allreduce", device.type))


def load_data(seed):
    """Training and test set, split alike everywhere: float32 (N, 1, 8, 8) in 0..1, int64 labels (N,)."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target, dtype=torch.int64)
    parts = train_test_split(
        images.numpy(), labels.numpy(), test_size=0.2, stratify=digits.target, random_state=seed
    )
    train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in parts)
    return TensorDataset(train_x, train_y), TensorDataset(test_x, test_y)


def learning_rate(arguments, epoch):
    """Rate at a fractional epoch: the one-process rate times the number of processes, reached by a warm-up
    (large steps from random weights diverge), then a cosine down to zero."""
    if epoch < arguments.warmup_epochs:
        return arguments.lr * (1 + (hvd.size() - 1) * epoch / arguments.warmup_epochs)
    progress = (epoch - arguments.warmup_epochs) / max(arguments.epochs - arguments.warmup_epochs, 1e-9)
    return arguments.lr * hvd.size() * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def train_epoch(arguments, epoch, device, model, optimizer, sampler, loader):
    """One pass over this process's share. Returns the loss averaged over all of them, and its own samples."""
    model.train()
    sampler.set_epoch(epoch)  # another order every epoch, agreed between the processes
    loss_sum, samples = 0.0, 0
    for step, (images, labels) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(arguments, epoch + step / len(loader))
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(labels)
        samples += len(labels)
    average = hvd.allreduce(torch.tensor(loss_sum / samples), name="train_loss")
    return average.item(), samples


def evaluate(device, model, test_set):
    """Loss and accuracy over the whole test set. Every process takes each size-th sample: unlike with
    a sampler that pads, every sample counts exactly once."""
    model.eval()
    images, labels = (part[hvd.rank() :: hvd.size()].to(device) for part in test_set.tensors)
    with torch.no_grad():
        logits = model(images)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        correct = (logits.argmax(dim=1) == labels).sum()
    totals = hvd.allreduce(torch.stack([loss, correct.float()]), name="test_totals", op=hvd.Sum).cpu()
    return totals[0].item() / len(test_set), totals[1].item() / len(test_set)


def save_checkpoint(path, model, optimizer, epoch, history):
    """Written beside and renamed: a job killed in between leaves the previous checkpoint whole."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": epoch,
        "history": history,
    }
    torch.save(state, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


def draw_curves(path, history):
    epochs = range(1, len(history) + 1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    left.plot(epochs, [entry["train_loss"] for entry in history], label="training")
    left.plot(epochs, [entry["test_loss"] for entry in history], label="test")
    left.set(title="Cross-entropy", xlabel="epoch", yscale="log")
    left.legend()
    right.plot(epochs, [100 * entry["accuracy"] for entry in history], color="tab:green")
    right.set(title="Test accuracy", xlabel="epoch", ylabel="%")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.suptitle(f"Handwritten digits, {hvd.size()} process(es)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    arguments = parse_arguments()
    hvd.init()

    # The processes of this host share its cores: more threads than cores would only hinder each other.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    torch.manual_seed(arguments.seed)
    device = choose_device(arguments.device)

    train_set, test_set = load_data(arguments.seed)
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank(), seed=arguments.seed)
    loader = DataLoader(
        train_set,
        batch_size=arguments.batch_size,
        sampler=sampler,
        num_workers=arguments.workers,
        persistent_workers=arguments.workers > 0,
        pin_memory=device.type != "cpu",
    )

    model = DigitsNet().to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=arguments.lr * hvd.size(), momentum=arguments.momentum, weight_decay=5e-4
    )

    # Rank 0 alone reads and writes files; the others receive the data from it.
    checkpoint = arguments.output / "checkpoint.pt"
    start_epoch, history = 0, []
    if hvd.rank() == 0:
        arguments.output.mkdir(parents=True, exist_ok=True)
        if arguments.resume and checkpoint.exists():
            state = torch.load(checkpoint, map_location=device)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            start_epoch, history = state["epoch"] + 1, state["history"]
    start_epoch = hvd.broadcast_object(start_epoch, root_rank=0, name="start_epoch")

    # Same weights and same optimizer state everywhere, then gradients are averaged in every step.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
    )
    torch.manual_seed(arguments.seed + 1 + hvd.rank())  # each process drops other neurons

    # Under a launcher the output may go to a file: there, redraw once a second and draw in ASCII.
    terminal = sys.stderr.isatty()
    bar = tqdm(
        total=arguments.epochs,
        initial=start_epoch,
        desc="training",
        unit="epoch",
        disable=hvd.rank() != 0,
        mininterval=0.1 if terminal else 1.0,
        ascii=not terminal,
    )
    samples, seconds = 0, 0.0
    loss, accuracy = evaluate(device, model, test_set)
    for epoch in range(start_epoch, arguments.epochs):
        started = time.perf_counter()
        train_loss, seen = train_epoch(arguments, epoch, device, model, optimizer, sampler, loader)
        seconds += time.perf_counter() - started
        samples += seen
        loss, accuracy = evaluate(device, model, test_set)
        if hvd.rank() == 0:
            history.append({"train_loss": train_loss, "test_loss": loss, "accuracy": accuracy})
            save_checkpoint(checkpoint, model, optimizer, epoch, history)
            bar.set_postfix(loss=f"{train_loss:.4f}", accuracy=f"{100 * accuracy:.2f}%", refresh=False)
        bar.update()
    bar.close()

    samples = hvd.allreduce(torch.tensor(samples), name="samples", op=hvd.Sum).item()
    if hvd.rank() == 0:
        if history:
            draw_curves(arguments.output / "training.png", history)
        print(f"results: {checkpoint}, {arguments.output / 'training.png'}", flush=True)
        rate = samples / seconds if seconds else 0.0
        print(
            f"test accuracy {100 * accuracy:.2f} %, {rate:.0f} samples/s "
            f"({hvd.size()} process(es) on {device.type}, backend {backend_of(device) or 'unknown'}, "
            f"{seconds:.1f} s of training)",
            flush=True,
        )
    hvd.shutdown()


if __name__ == "__main__":
    main()
