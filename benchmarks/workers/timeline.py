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

TURN_S = 0.4
LEAST_STEPS, MOST_STEPS = 3, 60


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


def steps_of(step: Callable[[], None]) -> int:
    """How many steps a turn has, equal on all ranks."""
    for _ in range(LEAST_STEPS):
        step()
    hvd.barrier()
    begin = time.perf_counter()
    for _ in range(LEAST_STEPS):
        step()
    took = (time.perf_counter() - begin) / LEAST_STEPS
    return int(hvd.broadcast_object(min(MOST_STEPS, max(LEAST_STEPS, round(TURN_S / took))), 0))


def page(folder: Path, wanted: bool) -> None:
    """Have the page ask, or say that it is closed. Returns when the watcher has read what was there, or reads no more."""
    if hvd.rank() == 0 and wanted != (folder / "page").exists():
        mark = folder / ("page.seen" if wanted else "page.gone")
        mark.unlink(missing_ok=True)
        if wanted:
            (folder / "page").touch()
        else:
            (folder / "page").unlink()
        end = time.monotonic() + 30
        while not mark.exists():
            if time.monotonic() > end:
                raise SystemExit(f"the watcher of the job has not answered for 30 s ({mark.name})")
            time.sleep(0.02)
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
        steps = steps_of(step)
        result[model] = {way: [] for way in ways}
        for run in range(options.runs):
            order = list(ways.items())
            for way, path in order[run % 4 :] + order[: run % 4]:
                if path:
                    hvd.start_timeline(str(path))
                page(options.folder, way == "live")
                result[model][way].append(turn(step, steps))
                hvd.stop_timeline()
    page(options.folder, False)
    if hvd.rank() == 0:
        (options.folder / "result.json").write_text(json.dumps({"steps": result}))
    hvd.shutdown()


if __name__ == "__main__":
    main()
