"""``hvd timeline``: merges and summarizes timelines, and shows a running job in a browser, however it was started."""

from __future__ import annotations

import argparse
import glob
from dataclasses import asdict
from typing import Any

from hvd_core._cli import doctor, output
from hvd_core._observe import timeline_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb, and the verbs below it."""
    parser.description = (
        "With --live: show a running job of yours on this host in a browser, until Ctrl-C. The page is served on this "
        "host only, at the address that is printed."
    )
    parser.set_defaults(verb="", json=False)
    job = parser.add_mutually_exclusive_group()
    job.add_argument("--pid", type=int, metavar="PID", help="with --live: a process of the job")
    job.add_argument("--job", type=int, metavar="PID", help="with --live: the same, as for `hvd doctor`")
    parser.add_argument("--live", action="store_true", help="show a running job in a browser")
    parser.add_argument("--port", type=_port, metavar="PORT", help="with --live: the port (any free one)")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")

    summary = "put the timelines of several ranks into one file, on one clock"
    merge = verbs.add_parser(
        "merge", help=summary, description=f"{summary.capitalize()}.", epilog=parser.epilog
    )
    merge.add_argument(
        "files", metavar="FILE", nargs="+", help="a timeline, or a pattern such as 't.rank*.json'"
    )
    merge.add_argument("-o", "--output", metavar="OUT", required=True, help="the file to write")
    merge.set_defaults(verb="merge")
    output.add_json_option(merge)

    summary = "show exposed communication, overlap, stragglers and the slowest tensors"
    summarize = verbs.add_parser(
        "summarize", help=summary, description=f"{summary.capitalize()}.", epilog=parser.epilog
    )
    summarize.add_argument("file", metavar="FILE")
    summarize.add_argument("--top", type=int, metavar="N", default=10, help="how many tensors to show (10)")
    summarize.set_defaults(verb="summarize")
    output.add_json_option(summarize)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no port: give a number from 0, any free port, to 65535"
        )
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Do what the verb says. Raises OSError, ValueError."""
    return {"merge": _merge, "summarize": _summarize}.get(options.verb, _show_live)(options)


def _merge(options: argparse.Namespace) -> int:
    paths = [path for pattern in options.files for path in sorted(glob.glob(pattern)) or [pattern]]
    count = timeline_files.merge(paths, options.output)
    if options.json:
        output.document({"files": paths, "output": options.output, "events": count})
    else:
        output.text(f"{options.output}: {count} events of {len(paths)} files")
    return output.OK


def _summarize(options: argparse.Namespace) -> int:
    made = timeline_files.summarize(timeline_files.load(options.file))
    if options.json:
        stragglers = [{**asdict(s), "median_behind": s.median_behind} for s in made.stragglers]
        output.document({**asdict(made), "stragglers": stragglers})
        return output.OK
    of = f" of {made.size}" if made.size else ""
    output.text(f"{options.file}: rank {made.rank}{of}, {made.span / 1e6:.3f} s")
    rows = [
        ("operations were carried out", made.communication),
        ("callers waited (exposed communication)", made.exposed),
        ("carried out while no caller waited (overlap)", made.hidden),
    ]
    output.table(
        ("time in which", "ms", "share"),
        [(what, _ms(took), f"{took / made.span:.1%}" if made.span else "") for what, took in rows],
    )
    if made.stragglers:
        output.text("", "The last rank to be ready:")
        output.table(
            ("rank", "times", "behind the one before, median us"),
            [(str(s.rank), str(s.last), f"{s.median_behind:.0f}") for s in made.stragglers],
        )
    output.text("", f"The {min(options.top, len(made.tensors))} tensors that took the longest:")
    output.table(
        ("tensor", "operations", "carried out, ms", "negotiated, ms", "MB"),
        [
            (t.name, str(t.operations), _ms(t.running), _ms(t.negotiating), f"{t.bytes / 1e6:.3f}")
            for t in made.tensors[: options.top]
        ],
    )
    if made.activities:
        output.text("", "Activities, summed over tensors:")
        by_time = sorted(made.activities.items(), key=lambda item: -item[1])
        output.table(("activity", "ms"), [(name, _ms(took)) for name, took in by_time])
    if made.lost:
        output.text(
            "", f"{made.lost} events are missing: the engine made them faster than they could be written"
        )
    return output.OK


def _ms(micros: float) -> str:
    return f"{micros / 1e3:.3f}"


def _show_live(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C. Raises ValueError if there is no job to show, OSError if its memory cannot be read or
    the port cannot be had."""
    if not options.live:
        raise ValueError(
            "`hvd timeline` needs --live, or one of the verbs merge and summarize: `hvd timeline --help`"
        )
    from hvd_core._observe.watch.watcher import ANY_PORT, Watcher

    answer = _process_of_job(options.job or 0, options.pid or 0)
    facts = answer.facts
    rings = {**facts["rings"], "pid": answer.pid}
    if rings["segment_fd"] < 0 and not rings["file"]:
        raise ValueError(
            f"the flight recorder of job {facts['job']} cannot be read by another process: it is off "
            "(HOROVOD_FLIGHT_RECORDER=0), or the job has one process only and was not started with HOROVOD_TIMELINE_LIVE"
        )
    watcher = Watcher(_config(options.port or ANY_PORT, facts, rings))
    watcher.serve(wait_s=0)
    for text in watcher.announcements():
        print(text, flush=True)
    print("Ctrl-C ends the page, not the job.", flush=True)
    try:
        watcher.run(lambda: False, after_job_s=float("inf"))
    finally:
        watcher.close()
    return output.OK


def _process_of_job(job: int, pid: int) -> doctor.Answer:
    """A process of the job."""
    members = doctor.members_of_job(pid or job)
    found = [member for member in members if not pid or member.pid == pid] or members
    if "rings" not in found[0].facts:
        raise ValueError(f"job {found[0].facts['job']} runs with an older hvd-core, which says too little")
    return found[0]


def _config(port: int, facts: dict[str, Any], rings: dict[str, Any]) -> dict[str, Any]:
    from hvd_core._observe.watch import start

    return {
        "place": rings,
        "backends": facts["backends"],
        "page_port": port,
        "metrics_port": 0,
        "metrics_address": "",
        "token_file": "",
        "host": facts["host_names"][facts["rank"]],
        "size": facts["size"],
        "job": rings["job"],
        "other hosts": start.on_other_hosts(facts["rank"], facts["hosts"], facts["host_names"]),
    }
