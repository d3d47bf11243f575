#!/usr/bin/env python3
"""A training step with DistributedOptimizer beside one with DistributedDataParallel over Gloo, and the cost of a hook.

    python benchmarks/torch_overhead.py [--runs 7] [--models cnn] [--settings default] [--json result.json]

Two ranks, one thread each, not pinned. Both ways are in the same processes and take turns; a run is the median of some
steps, and ratios are formed within a run. Models: "resnet50" has the shapes of a ResNet-50's 161 parameters (97.5 MiB)
and next to no computation; "tiny161" as many parameters of 64 elements, so that only the bookkeeping counts; "cnn"
is a real small network. Settings: "default"; "grouped" (groups=4); "passes" (4 backward passes per step, DDP with
no_sync()); "fp16" (Compression.fp16, DDP's fp16_compress_hook). "ddp view" is DDP with gradient_as_bucket_view=True;
"shared" is ours with gradient_buffers="shared", "shared kept" the same with zero_grad(set_to_none=False).
"processor" is the ratio to "ddp" of the processor time that a step takes, which others on the machine disturb less.
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

GOAL = 1.05


def tables(result: dict) -> str:
    """The result as text."""
    rows = []
    for case, ways in result["steps"].items():
        wall = {way: [run[0] for run in runs] for way, runs in ways.items()}
        spent = {way: [run[1] for run in runs] for way, runs in ways.items()}
        ratios = [a / b for a, b in zip(wall["ours"], wall["ddp"])]
        rows.append(
            [
                case,
                *(_report.number(statistics.median(wall[way]) * 1e3) for way in ways),
                f"{statistics.median(ratios):.2f}",
                *(f"{_report.ratio(wall['ours'], wall[way]):.2f}" for way in ("shared", "shared kept")),
                f"{_report.ratio(wall['ours'], wall['ddp view']):.2f}",
                f"{sum(ratio <= GOAL for ratio in ratios)} of {len(ratios)}",
                f"{_report.ratio(spent['ours'], spent['ddp']):.2f}",
            ]
        )
    header = ["model, setting", *(f"{way}, ms" for way in ways), "ours/ddp"]
    header += ["ours/shared", "ours/kept", "ours/view"]
    steps = _report.table([*header, f"<= {GOAL}", "processor"], rows)
    costs = [[name, _report.number(value)] for name, value in result["hooks_us"].items()]
    return f"{steps}\n\n{_report.table(['per parameter of tiny161', 'us'], costs)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--runs", type=int, default=7, help="turns per way (default 7)")
    parser.add_argument("--models", default="resnet50,tiny161,cnn", help="default all: %(default)s")
    parser.add_argument("--settings", default="default,grouped,passes,fp16", help="default all: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args()
    need("torch", "pip install torch")
    need("horovod.torch", "install this project into the environment (make train does)")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        worker = [sys.executable, str(BENCHMARKS / "workers" / "overhead.py"), str(out)]
        what = [f"--runs={options.runs}", f"--models={options.models}", f"--settings={options.settings}"]
        paths = [str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
        env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(filter(None, paths)))
        subprocess.run([*horovodrun(options.np), *worker, *what], env=env, check=True)
        result = {"machine": _report.machine(), **json.loads(out.read_text())}
    print(tables(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
