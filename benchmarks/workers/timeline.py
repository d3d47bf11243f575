"""A rank of benchmarks/timeline_overhead.py: steps of models, with and without a timeline, run after run.

Rank 0 writes the figures as JSON into the folder that is named on the command line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import horovod.torch as hvd
from harness.shapes import resnet50, tiny
from workers.overhead import Shaped, SmallCnn, number, pictures

STEPS = {"cnn": 20, "resnet50": 5, "tiny1000": 10}


def trained(model: torch.nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    """One training step of the model."""
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.001), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), 0)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).backward()
        optimizer.step()

    return step


def many() -> Callable[[], None]:
    """1,000 tensors of one element, all submitted, then all waited for."""
    tensors = [torch.ones(shape) for shape in tiny()]

    def step() -> None:
        handles = [hvd.allreduce_async_(tensor, name=f"t{i}") for i, tensor in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)

    return step


MODELS = {
    "cnn": lambda: trained(SmallCnn(), pictures()),
    "resnet50": lambda: trained(Shaped(resnet50()), number()),
    "tiny1000": many,
}


def turn(step: Callable[[], None], steps: int) -> tuple[float, float]:
    """(median seconds of a step, processor seconds of a step)."""
    took = []
    hvd.barrier()
    spent = time.process_time()
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        took.append(time.perf_counter() - begin)
    return statistics.median(took), (time.process_time() - spent) / steps


def page(folder: Path, wanted: bool) -> None:
    """Have the page ask, or not; returns on rank 0 when it does. The watcher reads for ten seconds after a question, so
    that "off" must not follow sooner."""
    if hvd.rank() == 0:
        was = (folder / "page").exists()
        (folder / "page.seen").unlink(missing_ok=True)
        if wanted:
            (folder / "page").touch()
            end = time.monotonic() + 30
            while not (folder / "page.seen").exists() and time.monotonic() < end:
                time.sleep(0.05)
        else:
            (folder / "page").unlink(missing_ok=True)
            if was:
                time.sleep(10.5)
    hvd.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--models", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    ways = {
        "off": None,
        "file": options.folder / "t.json",
        "all ranks": options.folder / "all.{rank}.json",
        "live": None,
    }
    result: dict[str, dict[str, list]] = {}
    for model in options.models.split(","):
        step = MODELS[model]()
        for _ in range(STEPS[model]):
            step()
        result[model] = {way: [] for way in ways}
        for run in range(options.runs):
            order = list(ways.items())
            for way, path in order[run % 4 :] + order[: run % 4]:
                if path:
                    hvd.start_timeline(str(path))
                page(options.folder, way == "live")
                result[model][way].append(turn(step, STEPS[model]))
                hvd.stop_timeline()
    if hvd.rank() == 0:
        (options.folder / "result.json").write_text(json.dumps({"steps": result}))
    hvd.shutdown()


if __name__ == "__main__":
    main()
