#!/usr/bin/env python3
"""What a timeline costs: training steps without one, with one of rank 0, and with one of every rank.

    python benchmarks/timeline_overhead.py [--runs 15] [--models cnn] [--json result.json]

All ways are in the same processes and take turns, in an order that changes from run to run; a run is the median of some
steps, and ratios to "off" are formed within a run. Models: "cnn" is a real small network; "resnet50" has the shapes of a
ResNet-50's 161 gradients and next to no computation; "tiny1000" submits 1,000 tensors of one element. "processor" is the
ratio of the processor time that a step takes, which others on the machine disturb less. With more ranks than free cores
the thread that writes the file takes its time from the ranks.
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

from harness import report
from harness.alternatives import horovodrun, need
from harness.build import ROOT

WAYS = ("off", "file", "all ranks")


def tables(result: dict) -> str:
    """The result as text."""
    rows = []
    for model, ways in result["steps"].items():
        wall = {way: [run[0] for run in runs] for way, runs in ways.items()}
        spent = {way: [run[1] for run in runs] for way, runs in ways.items()}
        row = [model, report.number(statistics.median(wall["off"]) * 1e3)]
        for way in WAYS[1:]:
            row.append(f"{report.ratio(wall[way], wall['off']):.3f}")
        for way in WAYS[1:]:
            row.append(f"{report.ratio(spent[way], spent['off']):.3f}")
        rows.append(row)
    header = ["model", "off, ms", "file", "all ranks", "file, processor", "all ranks, processor"]
    return report.table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--runs", type=int, default=15, help="turns per way (default 15)")
    parser.add_argument("--models", default="cnn,resnet50,tiny1000", help="default all: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args()
    need("torch", "pip install torch")
    need("horovod.torch", "install this project into the environment (make train does)")
    with tempfile.TemporaryDirectory() as folder:
        worker = [sys.executable, str(ROOT / "benchmarks" / "workers" / "timeline.py"), folder]
        what = [f"--runs={options.runs}", f"--models={options.models}"]
        paths = [str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
        env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(filter(None, paths)))
        env.pop("HOROVOD_TIMELINE", None)
        subprocess.run([*horovodrun(options.np), *worker, *what], env=env, check=True)
        result = {"machine": report.machine(), **json.loads((Path(folder) / "result.json").read_text())}
    print(tables(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
