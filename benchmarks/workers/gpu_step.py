"""Rank program of benchmarks/gpu.py: training steps of a small network alone, with ours and with DDP, in turns."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import horovod.torch as hvd
from harness.devices import Bench, share_a_gpu, write


def network(bench: Bench) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The model, its inputs and labels: convolutions on a GPU, three layers where a device is simulated."""
    torch.manual_seed(1)
    if bench.kind != "cuda" or bench.quick:
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        shape = (8, 32)
    else:
        layers: list[nn.Module] = [nn.Conv2d(3, 128, 3, padding=1), nn.ReLU()]
        for _ in range(20):
            layers += [nn.Conv2d(128, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 1000))
        shape = (64, 3, 32, 32)
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(shape, generator=generator)
    labels = torch.randint(0, 10, (shape[0],), generator=generator)
    return model.to(bench.device), inputs.to(bench.device), labels.to(bench.device)


def training(bench: Bench, way: str) -> Callable[[], None]:
    """A function that makes one step."""
    model, inputs, labels = network(bench)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if way.startswith("ours"):
        named = [(f"{way}.{name}", parameter) for name, parameter in model.named_parameters()]
        compression = hvd.Compression.fp16 if "fp16" in way else hvd.Compression.none
        hvd.broadcast_parameters(dict(named), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named, compression=compression)
    elif way == "ddp":
        model = nn.parallel.DistributedDataParallel(model, device_ids=[bench.device.index])

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def main() -> None:
    kind, rounds, out, *quick = sys.argv[1:]
    hvd.init()
    if kind == "cuda" and hvd.local_size() > torch.cuda.device_count():
        share_a_gpu(hvd.rank())
    bench = Bench(kind, hvd.local_rank(), bool(quick))
    ways = ["alone", "ours", "ours, fp16"]
    if kind == "cuda":
        place = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0, name="place")
        torch.distributed.init_process_group(
            "nccl", init_method=f"file://{place}/store", rank=hvd.rank(), world_size=hvd.size()
        )
        ways.append("ddp")
    steps = {way: training(bench, way) for way in ways}
    repeat = 2 if bench.quick else 20
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(int(rounds) + 1):
        for way, step in steps.items():
            hvd.barrier()
            _, seconds = bench.timed(step, repeat)
            if turn:
                times[way].append(seconds * 1e3)
    if hvd.rank() == 0:
        write(out, {"device_name": bench.name, "shared": bench.shared, "ms": times})
    if kind == "cuda":
        torch.distributed.destroy_process_group()
        hvd.barrier()
        if hvd.rank() == 0:
            shutil.rmtree(place, ignore_errors=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
