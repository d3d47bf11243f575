#!/usr/bin/env python3
"""Predicts how training scales to thousands of ranks, and first whether the prediction may be believed.

    python benchmarks/simulate.py                          # tables of 1 to 27,600 ranks; no measurement
    python benchmarks/simulate.py --plots docs/images      # and the plots of docs/performance.md
    python benchmarks/simulate.py --check [--patience 5]   # measures this machine's two ranks, and predicts unseen steps

The model is an alpha-beta model, documented in harness/cluster_model.py; its clusters, models and published figures
stand in harness/clusters.py, each with its source. No number was fitted to the published scaling.

`--check` calibrates the part of the model that is the engine's own, on two ranks over shared memory: single allreduces of
several sizes, by turns over little and over more memory than the caches hold, and lists of tiny tensors. From these it
predicts steps that it has not seen: the gradients of a ResNet-50 and of two other networks, with and without computation
before. A prediction counts if it is within 15 % of the median that is measured; all are printed, and the exit code is
1 if one is not.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.alternatives import horovodrun, need
from harness.cluster_model import by_footprint, efficiency, list_s, measured_curve
from harness.clusters import CLUSTERS, MODELS, PUBLISHED
from harness.fleet import Fleet, worker_spec
from harness.shapes import resnet50
from hvd_core.bench import _report
from hvd_core.bench._conductor import Unavailable

RANKS = [1, 2, 4, 8, 16, 64, 256, 512, 1024, 4096, 27600]
FORMS = {  # (hierarchical, overlap)
    "flat, no overlap": (False, False),
    "two levels, no overlap": (True, False),
    "flat, overlap": (False, True),
    "two levels, overlap": (True, True),
}
LIMIT = 0.15
SIZES = [256, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
OVER = [1 << 20, 8 << 20, 96 << 20]  # bytes of memory that the single allreduces go over, of each rank
TINY = 400  # tensors of 64 elements


def unseen() -> dict[str, tuple[list[int], float]]:
    """Steps that the calibration has not seen: name -> (bytes of the gradients, microseconds of computation)."""
    resnet = [4 * math.prod(shape) for shape in resnet50()]
    mixed = [(4 << (number * 7 % 17)) for number in range(300)]
    perceptron = [4 * n for n in (10, 10 * 800, 800, 800 * 1600, 1600, 1600 * 784)]
    return {
        "ResNet-50": (resnet, 0.0),
        "ResNet-50 after 20 ms": (resnet, 20_000.0),
        "300 of 4 B to 256 KiB": (mixed, 0.0),
        "a perceptron after 5 ms": (perceptron, 5_000.0),
    }


def check(patience: float, rounds: int) -> dict:
    """Calibrates, predicts, measures. Raises Unavailable."""
    need("hvd_core._core", "install this project into the environment (make train does)")
    name = "steps"
    with Fleet(2, patience) as fleet:
        fleet.start(name, lambda: worker_spec(name, "NumPy API", ["steps.py"], horovodrun(2)))
        if name not in fleet.teams:
            raise SystemExit(1)

        def measured(command: dict) -> float:
            return statistics.median(fleet.turn(name, command) for _ in range(rounds))

        points = {
            over: {
                size: measured(
                    {"do": "one", "bytes": size, "over": over, "iters": 40 if size < 4 << 20 else 7}
                )
                for size in SIZES
                if size <= over
            }
            for over in OVER
        }
        curve_of = by_footprint({over: measured_curve(found) for over, found in points.items()})
        tiny = {"do": "list", "name": "tiny", "sizes": [256] * TINY, "compute_us": 0, "iters": 10}
        tensor_s = (measured(tiny) - curve_of(256 * TINY)(256 * TINY)) / TINY
        steps = {}
        for step, (sizes, compute_us) in unseen().items():
            predicted = list_s(sizes, curve_of(sum(sizes)), tensor_s, compute_us * 1e-6)
            command = {"do": "list", "name": step, "sizes": sizes, "compute_us": compute_us, "iters": 7}
            took = measured(command)
            steps[step] = {
                "predicted_ms": predicted * 1e3,
                "measured_ms": took * 1e3,
                "error": predicted / took - 1,
            }
        return {
            "machine": _report.machine(),
            "one_us": {
                over: {size: seconds * 1e6 for size, seconds in found.items()}
                for over, found in points.items()
            },
            "tensor_us": tensor_s * 1e6,
            "steps": steps,
            "turns_disturbed": fleet.quiet.disturbed,
        }


def check_text(found: dict) -> str:
    calibration = [
        [_report.size_text(size), *(_report.number(of.get(size)) for of in found["one_us"].values())]
        for size in SIZES
    ]
    rows = [
        [step, _report.number(x["predicted_ms"]), _report.number(x["measured_ms"]), f"{x['error']:+.0%}"]
        for step, x in found["steps"].items()
    ]
    return "\n\n".join(
        [
            _report.table(
                ["allreduce of", *(f"us, over {_report.size_text(over)}" for over in found["one_us"])],
                calibration,
            ),
            f"a further tensor of a step: {found['tensor_us']:.1f} us",
            _report.table(["unseen step", "predicted, ms", "measured, ms", "error"], rows),
        ]
    )


def predictions() -> dict:
    """{"model on cluster": {form: {ranks: efficiency}}}."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for (_, cluster), model in MODELS.items():
        of = found.setdefault(f"{model.name}, {CLUSTERS[cluster].name}", {})
        for form, (hierarchical, overlap) in FORMS.items():
            of[form] = {n: efficiency(model, n, CLUSTERS[cluster], hierarchical, overlap) for n in RANKS}
    return found


def tables(found: dict) -> str:
    parts = []
    for title, forms in found.items():
        rows = [[f"{n:,}", *(f"{forms[form][n]:.3f}" for form in FORMS)] for n in RANKS]
        parts.append(f"{title}\n\n" + _report.table(["ranks", *FORMS], rows))
    rows = []
    for p in PUBLISHED:
        cells = ["-"] * len(FORMS)
        if p.model:
            model, cluster = MODELS[p.model, p.cluster], CLUSTERS[p.cluster]
            cells = [f"{efficiency(model, p.ranks, cluster, *of):.2f}" for of in FORMS.values()]
        rows.append([p.text, f"{p.ranks:,}", f"{p.efficiency:.2f}", *cells])
    parts.append(
        "Published, and the model where the setting is known\n\n"
        + _report.table(["", "ranks", "published", *FORMS], rows)
    )
    sources = {f"{CLUSTERS[c].name}: {CLUSTERS[c].source}" for _, c in MODELS}
    sources |= {f"{model.name}: {model.source}" for model in MODELS.values()}
    sources |= {f"{p.text}: {p.source}" for p in PUBLISHED}
    return "\n\n".join([*parts, "Sources:\n" + "\n".join(f"- {text}" for text in sorted(sources))])


def charts() -> str:
    """One chart for each cluster with the published points, as SVG."""
    made = []
    for key, cluster in CLUSTERS.items():
        lines = []
        for (_, on), model in MODELS.items():
            if on == key:
                for form in ("two levels, overlap", "flat, no overlap"):
                    points = [(n, efficiency(model, n, cluster, *FORMS[form])) for n in RANKS]
                    lines.append(_report.Line(f"{model.name}, {form}", points))
        for p in PUBLISHED:
            if p.cluster in (key, None):
                lines.append(_report.Line(f"published: {p.text}", [(p.ranks, p.efficiency)], marks_only=True))
        made.append(
            _report.Chart(
                cluster.name,
                "ranks",
                "efficiency",
                lines,
                "{:,.0f}".format,
                y_logarithmic=False,
                y_range=(0.4, 1.0),
            )
        )
    return _report.svg(made)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="calibrate and predict steps of two ranks on this machine"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns of each measurement of --check (default 3)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=0,
        metavar="SECONDS",
        help="wait so long for a quiet moment (default 0: never)",
    )
    parser.add_argument("--plots", metavar="FOLDER", help="write simulated-scaling.svg there")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args()
    if options.check:
        try:
            found = check(options.patience, options.rounds)
        except Unavailable as error:
            raise SystemExit(str(error)) from None
        print(check_text(found))
    else:
        found = predictions()
        print(tables(found))
    if options.plots:
        (Path(options.plots) / "simulated-scaling.svg").write_text(charts())
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    if options.check and any(abs(x["error"]) > LIMIT for x in found["steps"].values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
