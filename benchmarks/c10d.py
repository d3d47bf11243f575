#!/usr/bin/env python3
"""torch.distributed over hvd beside Gloo (and MPI, if this PyTorch has it): collectives, and steps of training.

    python benchmarks/c10d.py [--rounds 7] [--sizes 4,4K,64K,1M,16M,64M] [--only collectives] [--json result.json]

Two ranks, one thread each, not pinned. All backends are groups of the same processes and take turns: in each round every
one of them does the same calls, and ratios are formed within a round. A size is that of the whole: the tensor of an
all_reduce, the output of an all_gather, the input of a reduce_scatter. "horovod" is hvd.allreduce_ of horovod.torch,
over the same engine. Models: "resnet50" has the shapes of a ResNet-50's 161 parameters (97.5 MiB) and next to no
computation, "linears" 12 layers of 1024 x 1024, "transformer" two encoder layers of width 256. "alone" is a step on one
rank; "silent" is DDP with a hook that sends nothing, so that it has DDP's own work (copies into buckets
and back) and no communication. 1 - silent/gloo is the part of Gloo's step that is communication; FSDP2 has no silent
group, and 1 - alone/gloo stands there. At the end the goals of the project.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.alternatives import horovodrun, need
from harness.build import BENCHMARKS
from hvd_core.bench import _report

LATENCY_US, LATENCY_RATIO, BANDWIDTH_LOSS, STEP_RATIO = 8.0, 10.0, 0.10, 0.70


def _times(rows: dict, way: str, scale: float) -> str:
    return _report.number(statistics.median(rows[way]) * scale) if way in rows else "-"


def _ratio(rows: dict, other: str) -> str:
    found = _report.ratio(rows.get(other, []), rows.get("hvd", []))
    return "-" if found is None else f"{found:.2f}"


def tables(result: dict) -> str:
    """The result as text: microseconds and bandwidth of the collectives, milliseconds of the steps, and the goals."""
    ways = result["ways"]
    text = []
    if result["collectives"]:
        rows = []
        for name, sizes in result["collectives"].items():
            for size, times in sizes.items():
                gigabytes = int(size) / statistics.median(times["hvd"]) / 1e9 if "hvd" in times else 0
                rows.append(
                    [f"{name}, {_report.size_text(int(size))}"]
                    + [_times(times, way, 1e6) for way in (*ways, "horovod")]
                    + [_ratio(times, way) for way in ways[1:]]
                    + [_report.number(gigabytes)]
                )
        header = ["collective", *(f"{way}, us" for way in (*ways, "horovod"))]
        text.append(_report.table([*header, *(f"{way}/hvd" for way in ways[1:]), "hvd, GB/s"], rows))
    if result["steps"]:
        rows = [
            [name]
            + [_times(times, way, 1e3) for way in (*ways, "silent", "alone")]
            + [_share(times), _ratio_of(times, "hvd", "gloo")]
            for name, times in result["steps"].items()
        ]
        header = ["step", *(f"{way}, ms" for way in (*ways, "silent", "alone"))]
        text.append(_report.table([*header, "communication of gloo", "hvd/gloo"], rows))
    text.append(_report.table(["goal, two ranks", "found", "met"], goals(result)))
    return "\n\n".join(text)


def _ratio_of(times: dict, one: str, other: str) -> str:
    found = _report.ratio(times.get(one, []), times.get(other, []))
    return "-" if found is None else f"{found:.2f}"


def share_of_communication(times: dict) -> float | None:
    """The part of Gloo's step that is not there without communication."""
    without = _report.ratio(times.get("silent") or times.get("alone", []), times.get("gloo", []))
    return None if without is None else 1 - without


def _share(times: dict) -> str:
    share = share_of_communication(times)
    return "-" if share is None else f"{share:.2f}"


def goals(result: dict) -> list[list[str]]:
    """(goal, the figure that was measured, whether it is met), for each goal."""
    rows = []

    def add(goal: str, found: float | None, met: bool, unit: str = "") -> None:
        if found is not None:
            rows.append([goal, f"{found:.2f}{unit}", "yes" if met else "no"])

    reduced = result["collectives"].get("all_reduce", {})
    if small := reduced.get("4"):
        us = statistics.median(small["hvd"]) * 1e6
        add(f"all_reduce of 4 B takes {LATENCY_US:g} us at most", us, us <= LATENCY_US, " us")
        times = _report.ratio(small.get("gloo", []), small["hvd"])
        add(f"and Gloo {LATENCY_RATIO:g} times as long", times, bool(times and times >= LATENCY_RATIO))
    if reduced:
        size, most = max(reduced, key=int), 1 + BANDWIDTH_LOSS
        loss = _report.ratio(reduced[size]["hvd"], reduced[size].get("horovod", []))
        add(
            f"all_reduce of {_report.size_text(int(size))} beside horovod.torch: {most:.2f} of its time at most",
            loss,
            bool(loss and loss <= most),
        )
    for name, times in result["steps"].items():
        share, found = share_of_communication(times), _report.ratio(times["hvd"], times.get("gloo", []))
        if share is not None and share >= 0.5:
            add(
                f"{name}, {share:.0%} of it communication: {STEP_RATIO:g} of Gloo's time at most",
                found,
                bool(found and found <= STEP_RATIO),
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each backend (default 7)")
    parser.add_argument("--sizes", default="4,4K,64K,1M,16M,64M", help="of collectives (default %(default)s)")
    parser.add_argument("--only", default="collectives,steps", help="default both: %(default)s")
    parser.add_argument("--models", default="resnet50,linears,transformer", help="default all: %(default)s")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds of a turn, about (default 0.1)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args()
    sizes = [_report.parse_size(size) for size in options.sizes.split(",")]
    need("torch", "pip install torch")
    need("horovod.torch", "install this project into the environment (make train does)")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        worker = [sys.executable, str(BENCHMARKS / "workers" / "c10d.py"), str(out)]
        what = [
            f"--rounds={options.rounds}",
            f"--sizes={','.join(map(str, sizes))}",
            f"--only={options.only}",
            f"--models={options.models}",
            f"--budget={options.budget}",
        ]
        paths = [str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
        env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(filter(None, paths)))
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
        subprocess.run([*horovodrun(options.np), *worker, *what], env=env, check=True)
        result = {"machine": _report.machine(), **json.loads(out.read_text())}
    print(tables(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
