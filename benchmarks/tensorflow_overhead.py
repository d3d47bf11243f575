#!/usr/bin/env python3
"""The cost of hvd-core in TensorFlow: one operation, a group of operations, a training step.

    python benchmarks/tensorflow_overhead.py [--runs 7] [--parts ops,groups,steps,fit] [--models cnn] [--json result.json]

Two ranks, one thread of computation each, not pinned. All ways are in the same processes and take turns; ratios are
formed within a turn. "ops": one allreduce, eagerly and in a tf.function (of a chain of 20), beside the same allreduce of
our NumPy API through tf.numpy_function and tf.py_function. "groups": many tensors in one function, one by one, as a
group, and concatenated. "steps": SGD with DistributedGradientTape in a tf.function, without and with XLA, beside the
same step without communication ("alone") and with tf.numpy_function. "fit": Keras. Models as in torch_overhead.py.
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

PARTS = "ops,groups,steps,fit"


def micro(values: list[float]) -> str:
    return _report.number(statistics.median(values) * 1e6)


def ops_table(ops: dict) -> str:
    """One row for each way, microseconds."""
    sizes = list(ops)
    rows = [[way, *(micro(ops[size][way]) for size in sizes)] for way in ops[sizes[0]]]
    pairs = {size: [ops[size][f"ours, {mode}"] for mode in ("function", "eager")] for size in sizes}
    rows.append(["ours, function/eager", *(f"{_report.ratio(*pairs[size]):.2f}" for size in sizes)])
    return _report.table(["one allreduce, us", *sizes], rows)


def groups_table(groups: dict) -> str:
    rows = [
        [
            case,
            *(micro(values) for values in ways.values()),
            f"{_report.ratio(ways['single'], ways['grouped']):.2f}",
            f"{_report.ratio(ways['single'], ways['concatenated']):.2f}",
        ]
        for case, ways in groups.items()
    ]
    names = next(iter(groups.values()))
    return _report.table(["all tensors, us", *names, "single/grouped", "single/concatenated"], rows)


def steps_table(steps: dict) -> str:
    columns = ["ours", "ours, one group", "numpy_function", "alone"]
    rows = []
    for case, ways in steps.items():
        wall = {way: [run[0] for run in runs] for way, runs in ways.items()}
        spent = {way: [run[1] for run in runs] for way, runs in ways.items()}
        ratios = [_report.ratio(wall["ours"], wall[way]) if way in wall else None for way in columns[1:]]
        rows.append(
            [
                case,
                *(
                    _report.number(statistics.median(wall[way]) * 1e3 if way in wall else None)
                    for way in columns
                ),
                *(_report.number(ratio) for ratio in ratios),
                _report.number(_report.ratio(spent["ours"], spent["alone"])),
            ]
        )
    header = ["a step, ms", *columns, "ours/group", "ours/numpy", "ours/alone", "processor, ours/alone"]
    return _report.table(header, rows)


def fit_table(fit: dict) -> str:
    row = ["cnn", *(_report.number(statistics.median(values) * 1e3) for values in fit.values())]
    return _report.table(
        ["a batch of fit, ms", *fit, "ours/alone"],
        [[*row, f"{_report.ratio(fit['ours'], fit['alone']):.2f}"]],
    )


TABLES = {"ops": ops_table, "groups": groups_table, "steps": steps_table, "fit": fit_table}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--runs", type=int, default=7, help="turns per way (default 7)")
    parser.add_argument("--parts", default=PARTS, help="default all: %(default)s")
    parser.add_argument("--models", default="resnet50,tiny161,cnn", help="default all: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args()
    need("tensorflow", "pip install tensorflow-cpu")
    need("horovod.tensorflow", "install this project into the environment (make train does)")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        worker = [sys.executable, str(BENCHMARKS / "workers" / "tf_overhead.py"), str(out)]
        what = [f"--runs={options.runs}", f"--parts={options.parts}", f"--models={options.models}"]
        paths = [str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
        env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(filter(None, paths)))
        env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        subprocess.run([*horovodrun(options.np), *worker, *what], env=env, check=True)
        result = {"machine": _report.machine(), **json.loads(out.read_text())}
    print(f"TensorFlow {result['tensorflow']}, {options.np} ranks")
    for part, table in TABLES.items():
        if part in result:
            print(f"\n{table(result[part])}")
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
