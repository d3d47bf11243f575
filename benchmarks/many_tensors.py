#!/usr/bin/env python3
"""Many tensors at once: 1,000 of one element, the 161 gradients of a ResNet-50, and one buffer of that size.

    python benchmarks/many_tensors.py [--rounds 7] [--only ours] [--json result.json]

Ours, the same on tensors in memory that the ranks share ("shared"), torch Gloo, and Gloo not pinned ("gloo-free"), on two
pinned ranks in one run; the forms are those of
workers/many.py. Alternatives and forms take turns, round after round; tensors are rewritten before each
run, results are checked in each turn, and ratios are formed within a round (see benchmarks/allreduce.py for
how a run is timed). A turn has as many runs as fit in --budget, which a first round finds out: a thousand tensors one
by one take Gloo a second. Without Gloo (--only ours,shared) it takes half a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.alternatives import horovodrun, need
from harness.fleet import Fleet, worker_spec
from harness.shapes import CASES
from hvd_core.bench import _report
from hvd_core.bench._conductor import Spec, Unavailable

GLOO = ("each", "buckets", "one")
OURS = ("each", "grouped", "one")
FORMS = {"ours": OURS, "shared": OURS, "gloo": GLOO, "gloo-free": GLOO}
SKIPPED = {("tiny", "buckets")}  # one bucket: the same as "one" with two copies
MOST_RUNS = {"tiny": 30, "resnet50": 10}
FIRST_RUNS = 6  # of the first round: names are new, and batches become known


def spec_of(name: str, size: int) -> Spec:
    need("torch", "pip install torch")
    if name in ("ours", "shared"):
        need("horovod.torch", "install this project into the environment (make train does)")
        return worker_spec(name, name, ["many.py", name], horovodrun(size))
    return worker_spec(
        name, name, ["many.py", "gloo"], env={"HVD_BENCH_PIN": "0" if name == "gloo-free" else "1"}
    )


def run(options: argparse.Namespace, names: list[str]) -> dict:
    """All rounds; returns the data for --json."""
    with Fleet(options.np, options.patience) as fleet:
        for name in names:
            fleet.start(name, lambda name=name: spec_of(name, options.np))
        if not fleet.teams:
            raise SystemExit("nothing could be started; the reasons are above")
        turns = [
            (case, name, form)
            for case in options.cases
            for name in fleet.teams
            for form in FORMS[name]
            if (case, form) not in SKIPPED
        ]
        times: dict[tuple, list[float | None]] = {turn: [] for turn in turns}
        runs: dict[tuple, int] = {}
        end = time.monotonic() + options.limit
        for number in range(options.rounds + 1):
            if number > 1 and time.monotonic() > end:
                print(
                    f"{number - 1} of {options.rounds} rounds in {options.limit:.0f} s (--limit)",
                    file=sys.stderr,
                )
                break
            for turn in turns:
                case, name, form = turn
                if name not in fleet.teams:
                    if number:
                        times[turn].append(None)
                    continue
                first = FIRST_RUNS if name in ("ours", "shared") else 1
                command = {"do": "many", "case": case, "form": form, "iters": runs.get(turn, first)}
                seconds = None
                try:
                    seconds = fleet.turn(name, command)
                except Unavailable as error:
                    fleet.drop(name, str(error))
                if number:
                    times[turn].append(seconds)
                elif seconds:
                    runs[turn] = max(1, min(MOST_RUNS[case], int(options.budget / seconds)))
        result = {
            "machine": _report.machine(),
            "ranks": options.np,
            "rounds": max(map(len, times.values())),
            "cases": {},
        }
        for case in options.cases:
            shapes = CASES[case]()
            elements = 0
            for shape in shapes:
                product = 1
                for dim in shape:
                    product *= dim
                elements += product
            rows = {}
            for (of, name, form), taken in times.items():
                row = _report.summary(taken, elements * 4) if of == case else None
                if row:
                    row["us_per_tensor"] = row["median_us"] / len(shapes)
                    row["time_over_one_buffer"] = _report.ratio(taken, times[case, name, "one"])
                    if ("ours", "each") in {(n, f) for c, n, f in times if c == case}:
                        row["time_over_ours_each"] = _report.ratio(taken, times[case, "ours", "each"])
                    rows[f"{name}, {form}"] = row
            result["cases"][case] = {"tensors": len(shapes), "bytes": elements * 4, "forms": rows}
        result["not_measured"] = fleet.failed
        result["turns_disturbed"], result["turns_repeated"] = fleet.quiet.disturbed, fleet.quiet.repeated
    return result


def tables(result: dict) -> str:
    """The result as text."""
    out = []
    for case, entry in result["cases"].items():
        out += ["", f"{case}: {entry['tensors']} tensors, {_report.size_text(entry['bytes'])}", ""]
        rows = [
            [
                form,
                _report.number(row["median_us"]),
                _report.number(row["min_us"]),
                _report.number(row["us_per_tensor"]),
                _report.number(row["time_over_one_buffer"]),
                _report.number(row.get("time_over_ours_each")),
            ]
            for form, row in entry["forms"].items()
        ]
        header = ["form", "us, median", "us, best", "us per tensor", "x its one buffer", "x ours, each"]
        out.append(_report.table(header, rows))
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--rounds", type=int, default=7, help="turns per form (default 7)")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds of runs in a turn (default 0.3)")
    parser.add_argument(
        "--limit", type=float, default=240, help="seconds after which no further round begins (default 240)"
    )
    parser.add_argument("--only", help=f"of {','.join(FORMS)}")
    parser.add_argument(
        "--patience", type=float, default=0, metavar="SECONDS",
        help="put a turn off, or repeat it, for so long while others use the machine (default 0: never)",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {','.join(CASES)} (default all)")
    options = parser.parse_args()
    options.cases = options.cases.split(",")
    if not set(options.cases) <= set(CASES):
        parser.error(f"unknown cases in {options.cases}; there are {','.join(CASES)}")
    names = options.only.split(",") if options.only else list(FORMS)
    unknown = sorted(set(names) - set(FORMS))
    if unknown:
        parser.error(f"unknown alternatives {unknown}; there are {','.join(FORMS)}")
    result = run(options, names)
    print(tables(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
