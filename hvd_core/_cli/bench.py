"""``hvd bench``: collectives on this machine, or in the job that a launcher has started, as a table and a plot."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from hvd_core._cli import output
from hvd_core._config.hints import did_you_mean
from hvd_core.bench import _report
from hvd_core.bench._teams import Plan, Teams, sweep
from hvd_core.bench.alternative import COLLECTIVES, DTYPES, KINDS, OPS, Call, catalog, host_dtype

_RANKS = 2  # of a run without a launcher and without -np


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options. They have the names that the accelerators' usual tests give them."""
    parser.add_argument(
        "collective",
        metavar="COLLECTIVE",
        nargs="?",
        default="allreduce",
        choices=COLLECTIVES,
        help=f"{', '.join(COLLECTIVES)} (allreduce)",
    )
    parser.add_argument(
        "-np", type=_count, metavar="N", help=f"ranks, on this machine ({_RANKS}); not under a launcher"
    )
    sizes = parser.add_argument_group("sizes")
    sizes.add_argument("-b", "--minbytes", metavar="BYTES", default="8", help="smallest buffer (8)")
    sizes.add_argument("-e", "--maxbytes", metavar="BYTES", default="64M", help="largest buffer (64M)")
    sizes.add_argument(
        "-f", "--stepfactor", type=_count, metavar="N", default=8, help="factor between sizes (8)"
    )
    sizes.add_argument("--sizes", metavar="LIST", help="these sizes instead of -b, -e, -f: 4,64K,16M")
    call = parser.add_argument_group("the call")
    call.add_argument(
        "-d", "--datatype", choices=DTYPES, default="float32", metavar="TYPE", help=f"{', '.join(DTYPES)}"
    )
    call.add_argument("-o", "--op", choices=OPS, default="sum", metavar="OP", help=f"{', '.join(OPS)} (sum)")
    call.add_argument("-r", "--root", type=int, metavar="RANK", default=0, help="of a broadcast (0)")
    call.add_argument(
        "--device",
        metavar="TYPE",
        default="cpu",
        help="device type of the tensors, as in tensor.to(TYPE) (cpu)",
    )
    ways = parser.add_argument_group("alternatives")
    ways.add_argument("--only", metavar="NAMES", help="of the alternatives that are listed below the table")
    ways.add_argument("--skip", metavar="NAMES", default="", help="leave these alternatives out")
    ways.add_argument(
        "--backend",
        metavar="NAMES",
        help="measure hvd-core over each of these backends; not under a launcher",
    )
    ways.add_argument("--pin", action="store_true", help="bind each rank to one core; not under a launcher")
    how = parser.add_argument_group("method")
    how.add_argument(
        "-n", "--iters", type=_count, metavar="N", help="calls of a turn (as many as fit in --budget)"
    )
    how.add_argument(
        "-w",
        "--warmup_iters",
        type=_count,
        metavar="N",
        default=2,
        help="calls before a turn's clock starts (2)",
    )
    how.add_argument("--rounds", type=_count, metavar="N", default=5, help="turns of each alternative (5)")
    how.add_argument("--budget", type=float, metavar="SECONDS", default=0.05, help="of a turn (0.05)")
    how.add_argument(
        "--patience", type=float, default=0, metavar="SECONDS",
        help="put a turn off, or repeat it, for so long while others use this machine (0)",
    )  # fmt: skip
    parser.add_argument("--plot", metavar="OUT.svg", help="draw time and bus bandwidth")
    output.add_json_option(parser)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 on")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Measure and print. Returns FINDINGS if a result was wrong. Raises ValueError for options that do not fit."""
    from hvd_core._bootstrap.launchers.identity import identify

    sizes, chosen = _sizes(options), _chosen(options)
    if options.plot and not options.plot.endswith(".svg"):
        raise ValueError(f"--plot={options.plot}: the plot is SVG; give a file that ends in .svg")
    if identify(os.environ).launcher == "single":
        return _by_itself(options, sizes, chosen)
    return _in_job(options, sizes, chosen)


def _sizes(options: argparse.Namespace) -> list[int]:
    if options.sizes:
        sizes = [_report.parse_size(text, 1) for text in options.sizes.split(",")]
    else:
        least, most = _report.parse_size(options.minbytes, 1), _report.parse_size(options.maxbytes, 1)
        if options.stepfactor < 2 or most < least:
            raise ValueError("-f must be at least 2, and -e at least -b")
        sizes = [least]
        while sizes[-1] * options.stepfactor <= most:
            sizes.append(sizes[-1] * options.stepfactor)
    return sizes


def _chosen(options: argparse.Namespace) -> dict[str, Any]:
    every = catalog()
    wanted = options.only.split(",") if options.only else list(every)
    skipped = [name for name in options.skip.split(",") if name]
    for name in (*wanted, *skipped):
        if name not in every:
            raise ValueError(
                f"there is no alternative '{name}'.{did_you_mean(name, list(every))} There are: {', '.join(every)}"
            )
    return {name: every[name] for name in wanted if name not in skipped}


def _plan(options: argparse.Namespace, sizes: list[int], size: int) -> Plan:
    kind = KINDS[options.collective]
    if kind.reduces and options.op == "avg" and host_dtype(options.datatype).kind != "f":
        raise ValueError(f"an average of {options.datatype} is not exact: give -d a floating type")
    if not 0 <= options.root < size:
        raise ValueError(f"--root={options.root}: there are ranks 0 to {size - 1}")
    call = Call(
        options.collective,
        options.datatype,
        options.op if kind.reduces else "none",
        options.root if kind.has_root else -1,
        0,
        False,
    )
    return Plan(call, sizes, options.rounds, options.budget, options.iters, options.warmup_iters, size)


def _by_itself(options: argparse.Namespace, sizes: list[int], chosen: dict[str, Any]) -> int:
    from hvd_core.bench._teams import Launched

    size = options.np or _RANKS
    plan = _plan(options, sizes, size)
    backends = [name for name in (options.backend or "").split(",") if name]
    with Launched(size, options.device, options.pin, options.patience) as teams:
        for name, load in chosen.items():
            teams.start_entry(name, load, backends)
        return _measured(options, plan, teams, True)


def _in_job(options: argparse.Namespace, sizes: list[int], chosen: dict[str, Any]) -> int:
    import hvd_core as hvd

    for name, given in (("-np", options.np), ("--backend", options.backend), ("--pin", options.pin)):
        if given:
            fix = {"-np": "give it to the launcher", "--backend": "set HOROVOD_BACKEND"}.get(
                name, "give the launcher its own option for that"
            )
            raise ValueError(
                f"{name} cannot be chosen here, because a launcher has started this process: {fix}"
            )
    hvd.init()
    from hvd_core.bench._teams import InJob

    try:
        plan = _plan(options, sizes, hvd.size())
        return _measured(options, plan, InJob(chosen, options.device), hvd.rank() == 0)
    finally:
        hvd.shutdown()


def _measured(options: argparse.Namespace, plan: Plan, teams: Teams, prints: bool) -> int:
    able = teams.names()
    if not able:
        raise ValueError("none of the alternatives can run here; the reasons are above")
    began = time.monotonic()

    def say(text: str) -> None:
        if prints:
            print(text, file=sys.stderr, flush=True)

    rows = sweep(teams, plan, say)
    if prints:
        _print(options, plan, teams, rows, time.monotonic() - began)
    failed = set(able) - set(teams.names())
    return output.FINDINGS if failed or any(row.get("wrong") for row in rows) else output.OK


def _print(
    options: argparse.Namespace, plan: Plan, teams: Teams, rows: list[dict[str, Any]], seconds: float
) -> None:
    titles = {name: title for name, title in teams.titles.items() if any(row["name"] == name for row in rows)}
    machine = _report.machine()
    if options.plot:
        Path(options.plot).write_text(_svg(options, plan, rows))
    if options.json:
        call = plan.call
        output.document(
            {
                "collective": call.collective,
                "datatype": call.dtype,
                "redop": call.op,
                "root": call.root,
                "device": options.device,
                "ranks": plan.size,
                "rounds": plan.rounds,
                "machine": machine,
                "alternatives": titles,
                "not_measured": teams.failed,
                "rows": rows,
                "seconds": seconds,
            }
        )
        return
    output.text(
        f"{plan.call.collective}, {plan.size} ranks, device type {options.device}, {plan.rounds} rounds, "
        f"{machine['cpu']}, {machine['cores']} cores"
    )
    for name, title in titles.items():
        output.text("", f"{name}: {title}")
        print(_report.table(list(_COLUMNS), _table(plan, [row for row in rows if row["name"] == name])))
    if len(titles) > 1:
        output.text("", f"Time of a call, us; in brackets: over that of {next(iter(titles))}")
        print(_report.table(["bytes", "form", *titles], _comparison(list(titles), rows)))
    if options.plot:
        output.text("", f"plot: {options.plot}")


_COLUMNS = (
    *("size (B)", "count", "type", "redop", "root"),
    *("time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong"),
    *("in place: time", "algbw", "busbw", "#wrong"),
)


def _table(plan: Plan, rows: list[dict[str, Any]]) -> list[list[str]]:
    by_size: dict[int, dict[bool, dict[str, Any]]] = {}
    for row in rows:
        by_size.setdefault(row["bytes"], {})[row["in_place"]] = row
    call, made = plan.call, []
    for nbytes, forms in by_size.items():
        first = next(iter(forms.values()))
        line = [str(nbytes), str(first["count"]), call.dtype, call.op, str(call.root)]
        for in_place in (False, True):
            row = forms.get(in_place, {})
            line += (
                [f"{row['us']:.2f}", f"{row['algbw']:.2f}", f"{row['busbw']:.2f}"]
                if "us" in row
                else ["N/A"] * 3
            )
            line.append(str(row["wrong"]) if "wrong" in row else "N/A")
        made.append(line)
    return made


def _comparison(names: list[str], rows: list[dict[str, Any]]) -> list[list[str]]:
    times = {(row["bytes"], row["in_place"], row["name"]): row["us"] for row in rows if "us" in row}
    made = []
    for nbytes, in_place in dict.fromkeys((row["bytes"], row["in_place"]) for row in rows):
        mine = times.get((nbytes, in_place, names[0]))
        cells = []
        for name in names:
            took = times.get((nbytes, in_place, name))
            ratio = f" ({took / mine:.2f})" if took and mine else ""
            cells.append("N/A" if took is None else _report.number(took) + ratio)
        made.append([str(nbytes), "in place" if in_place else "out of place", *cells])
    return made


def _svg(options: argparse.Namespace, plan: Plan, rows: list[dict[str, Any]]) -> str:
    def lines(key: str) -> list[_report.Line]:
        found: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if "us" in row:
                name = f"{row['name']}, in place" if row["in_place"] else row["name"]
                found.setdefault(name, []).append((row["bytes"], row[key]))
        # With one rank the bus carries nothing, and a logarithmic axis has no 0.
        return [_report.Line(name, points) for name, points in found.items() if all(y > 0 for _, y in points)]

    title = f"{plan.call.collective}, {plan.call.dtype}, {plan.size} ranks"

    def chart(label: str, key: str) -> _report.Chart:
        return _report.Chart(
            title, "size", label, lines(key), lambda x: _report.size_text(round(x)), x_base=2.0
        )

    return _report.svg([chart("time, us", "us"), chart("bus bandwidth, GB/s", "busbw")])
