"""A rank of benchmarks/torch_overhead.py: trains models with DistributedOptimizer and with DistributedDataParallel.

Both live in the same processes and take turns, run after run; each sleeps while the other works. Rank 0 writes the
figures as JSON into the file that is named on the command line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd
from harness.shapes import resnet50
from harness.torch_models import Shaped

PASSES = 4
SETTINGS = ("default", "grouped", "passes", "fp16")


class SmallCnn(torch.nn.Module):
    """A convolutional network for pictures of 32 x 32, with 83,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        channels = 3
        for width in (16, 32, 64):
            for stride in (2, 1):
                layers += [torch.nn.Conv2d(channels, width, 3, stride, 1), torch.nn.GroupNorm(4, width)]
                layers += [torch.nn.ReLU()]
                channels = width
        self.body = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64 * 16, 10))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(inputs), torch.arange(len(inputs)) % 10)


def number() -> torch.Tensor:
    return torch.full((), 1.0 + hvd.rank(), requires_grad=True)


def pictures() -> torch.Tensor:
    return torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(hvd.rank()))


# name: the model, its input, steps per run
MODELS = {
    "resnet50": (lambda: Shaped(resnet50()[::-1]), number, 6),
    "tiny161": (lambda: Shaped([(64,)] * 161), number, 40),
    "cnn": (SmallCnn, pictures, 20),
}


class Trainer:
    """One way to train one model; `step` is a whole optimizer step."""

    def __init__(self, model: str, setting: str) -> None:
        make, inputs, _ = MODELS[model]
        torch.manual_seed(0)
        self.model, self.inputs = make(), inputs()
        self.passes = PASSES if setting == "passes" else 1

    def step(self) -> None:
        raise NotImplementedError

    def gradients(self) -> list[torch.Tensor]:
        return [param.grad for param in self.model.parameters()]


class Ours(Trainer):
    def __init__(self, model: str, setting: str, shared: bool = False, kept: bool = False) -> None:
        super().__init__(model, setting)
        options: dict = {"groups": 4} if setting == "grouped" else {}
        if shared:
            options["gradient_buffers"] = "shared"
        self.kept = kept
        setting += ".shared" * shared + ".kept" * kept
        compression = hvd.Compression.fp16 if setting.startswith("fp16") else hvd.Compression.none
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=1e-3),
            [(f"{model}.{setting}.{name}", param) for name, param in self.model.named_parameters()],
            compression,
            self.passes,
            **options,
        )

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=not self.kept)
        for _ in range(self.passes):
            self.model(self.inputs).backward()
        self.optimizer.step()


class Ddp(Trainer):
    def __init__(self, model: str, setting: str, view: bool) -> None:
        super().__init__(model, setting)
        self.wrapped = DistributedDataParallel(self.model, gradient_as_bucket_view=view)
        if setting == "fp16":
            self.wrapped.register_comm_hook(None, fp16_compress_hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self) -> None:
        self.optimizer.zero_grad()
        for i in range(self.passes):
            with self.wrapped.no_sync() if i + 1 < self.passes else nullcontext():
                self.wrapped(self.inputs).backward()
        self.optimizer.step()


class Alone(Trainer):
    """Without communication: the cost of the model and the optimizer."""

    def __init__(self, model: str, setting: str) -> None:
        super().__init__(model, setting)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self) -> None:
        self.optimizer.zero_grad()
        for _ in range(self.passes):
            self.model(self.inputs).backward()
        self.optimizer.step()


def time_of(trainer: Trainer, steps: int) -> tuple[float, float]:
    """Median seconds of a step, after one that is not timed, and the processor's seconds per step of this process."""
    trainer.step()
    hvd.barrier()
    times = []
    spent = time.process_time()
    for _ in range(steps):
        begin = time.perf_counter()
        trainer.step()
        times.append(time.perf_counter() - begin)
    spent = time.process_time() - spent
    hvd.barrier()
    return statistics.median(times), spent / steps


def compare(model: str, setting: str, runs: int) -> dict[str, list[tuple[float, float]]]:
    """{way: what time_of() says, for each run}. The alternatives take turns, and each begins in turn."""
    steps = max(4, MODELS[model][2] // (PASSES if setting == "passes" else 1))
    ways = {
        "ours": Ours(model, setting),
        "shared": Ours(model, setting, shared=True),
        "shared kept": Ours(model, setting, shared=True, kept=True),
        "ddp": Ddp(model, setting, False),
        "ddp view": Ddp(model, setting, True),
        "alone": Alone(model, setting),
    }
    for trainer in ways.values():
        for _ in range(3):  # DDP orders its buckets anew in the second; names become known in the third
            trainer.step()
    for mine, theirs in zip(ways["ours"].gradients(), ways["ddp"].gradients()):
        tolerance = 1e-2 if setting == "fp16" else 1e-4
        if not torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance):
            raise SystemExit(f"{model}, {setting}: the gradients of the two differ")
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for run in range(runs):
        order = list(ways)
        for name in order[run % len(order) :] + order[: run % len(order)]:
            figures[name].append(time_of(ways[name], steps))
    return figures


def hooks(runs: int) -> dict[str, float]:
    """Microseconds per parameter of the model tiny161: what the parts of a step cost."""
    ours, alone = Ours("tiny161", "hooks"), Alone("tiny161", "hooks")
    tensors = [(torch.zeros(64), f"enqueue.{i}") for i in range(161)]
    parts: dict[str, list[float]] = {}

    def timed(name: str, call) -> None:
        begin = time.perf_counter()
        call()
        parts.setdefault(name, []).append((time.perf_counter() - begin) / 161 * 1e6)

    for _ in range(20 * runs):
        hvd.barrier()
        for name, trainer in (("backward alone", alone), ("backward with hooks", ours)):
            trainer.optimizer.zero_grad()
            loss = trainer.model(trainer.inputs)
            timed(name, loss.backward)
        timed("synchronize()", ours.optimizer.synchronize)
        with ours.optimizer.skip_synchronize():
            ours.optimizer.step()
        handles: list[int] = []
        timed(
            "allreduce_async_()",
            lambda h=handles: h.extend(hvd.allreduce_async_(t, name=n) for t, n in tensors),
        )
        timed("hvd.synchronize()", lambda h=handles: [hvd.synchronize(handle) for handle in h])
    medians = {name: statistics.median(values) for name, values in parts.items()}
    medians["one hook"] = medians["backward with hooks"] - medians["backward alone"]
    return medians


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("result")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--models")
    parser.add_argument("--settings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    store = dist.FileStore(os.path.join(os.path.dirname(options.result), "gloo"), hvd.size())
    dist.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size())
    result: dict = {"steps": {}, "hooks_us": hooks(options.runs)}
    for model in options.models.split(","):
        for setting in options.settings.split(","):
            result["steps"][f"{model}, {setting}"] = compare(model, setting, options.runs)
    if hvd.rank() == 0:
        with open(options.result, "w") as out:
            json.dump(result, out)
    dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main()
