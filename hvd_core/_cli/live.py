"""``hvd timeline --live``: shows a running job of this host in a browser, however it was started."""

from __future__ import annotations

import argparse
from typing import Any

from hvd_core._cli import asked_processes, codes
from hvd_core._cli.running import members_of_job
from hvd_core._observe.watch import start
from hvd_core._observe.watch.watcher import ANY_PORT, Watcher


def run(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C. Raises ValueError if there is no job to show, OSError if its memory cannot be read or
    the port cannot be had."""
    if not options.live:
        raise ValueError(
            "`hvd timeline` needs --live, or one of the verbs merge and summarize: `hvd timeline --help`"
        )
    answer = _asked(options.job or 0, options.pid or 0)
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
    return codes.OK


def _asked(job: int, pid: int) -> asked_processes.Answer:
    """A process of the job."""
    members = members_of_job(pid or job)
    found = [member for member in members if not pid or member.pid == pid] or members
    if "rings" not in found[0].facts:
        raise ValueError(f"job {found[0].facts['job']} runs with an older hvd-core, which says too little")
    return found[0]


def _config(port: int, facts: dict[str, Any], rings: dict[str, Any]) -> dict[str, Any]:
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
