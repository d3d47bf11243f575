"""``hvd doctor --pid PID`` and ``hvd doctor --job [PID]``: asks processes of a running job what they do.

``--pid`` shows one process in full; ``--job`` shows which ranks wait for which, and a few lines of each rank.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from hvd_core import _core
from hvd_core._cli import asked_processes, codes, output
from hvd_core._cli.asked_processes import Answer

_LEAST_WAIT_SECONDS = 1.0
_SHOWN_SUBMISSIONS = 5


def run(options: argparse.Namespace) -> int:
    """Ask, and print. Raises ValueError if no process can be asked."""
    return _one(options.pid, options.json) if options.pid is not None else _job(options.job, options.json)


def _one(pid: int, as_json: bool) -> int:
    answers = _of_pid(pid)
    ranks = [{**_core.read_snapshot(a.snapshots[a.facts["rank"]]), **_about(a)} for a in answers]
    if as_json:
        output.document(ranks[0] if len(ranks) == 1 else ranks)
        return codes.OK
    for answer, rank in zip(answers, ranks):
        print("\n".join([_job_line(answer), *_lines_of(rank), *_stacks_of(rank)]))
    return codes.OK


def _of_pid(pid: int) -> list[Answer]:
    found = [a for a in asked_processes.addresses() if asked_processes.pid_at(a) == pid]
    answers = asked_processes.ask_each(found, "state")
    if answers:
        return answers
    owner = asked_processes.owner_of(pid)
    if owner is None:
        raise ValueError(f"there is no process {pid} on this host")
    if not asked_processes.is_ours(owner):
        raise ValueError(f"process {pid} belongs to user {owner}: only that user and root may ask it")
    why = "it did not answer in time" if found else "it serves no socket"
    raise ValueError(
        f"process {pid} cannot be asked: {why}. Processes of a job can be asked between hvd.init() and hvd.shutdown(), "
        "in the same container or network namespace, unless HOROVOD_DOCTOR=0 is set. `hvd doctor --job` lists jobs"
    )


def _job(pid: int, as_json: bool) -> int:
    answers = _answers_of_job(pid)
    snapshots: dict[int, bytes] = {}
    for answer in answers:  # a rank's own answer counts more than the one over the tree
        snapshots = {**answer.snapshots, **snapshots}
    for answer in answers:
        snapshots[answer.facts["rank"]] = answer.snapshots[answer.facts["rank"]]
    sets = next(
        (a.process_sets for a in answers if a.process_sets), {0: list(range(answers[0].facts["size"]))}
    )
    ordered = [snapshots[rank] for rank in sorted(snapshots)]
    report, report_json = _core.stall_report(ordered, sets, _LEAST_WAIT_SECONDS)
    about = {a.facts["rank"]: _about(a) for a in answers}
    ranks = [{**read, **about.get(read["rank"], {})} for read in map(_core.read_snapshot, ordered)]
    facts = answers[0].facts
    silent = [rank for rank in range(facts["size"]) if rank not in snapshots]
    if as_json:
        found = json.loads(report_json) if report_json else None
        output.document(
            {"job": facts["job"], "size": facts["size"], "no answer": silent, "report": found, "ranks": ranks}
        )
        return codes.OK
    lines = [_job_line(answers[0], with_rank=False)]
    lines += [f"no answer from {_where(silent, facts)}"] if silent else []
    lines += ["", report] if report else ["", _no_stall(ranks)]
    for rank in ranks:
        lines += ["", *_lines_of(rank), *_stacks_of(rank, main_only=True)]
    print("\n".join(lines))
    return codes.OK


def members_of_job(pid: int) -> list[Answer]:
    """The processes of one job on this host, with their facts. ``pid``: any process of the job, or 0 if there is one job
    only. Raises ValueError if there is no such job, or several."""
    answers = asked_processes.ask_each(asked_processes.addresses(), "facts")
    jobs: dict[str, list[Answer]] = {}
    for answer in answers:
        jobs.setdefault(answer.facts["job"], []).append(answer)
    if pid:
        jobs = {name: own for name, own in jobs.items() if any(a.pid == pid for a in own)}
        if not jobs:
            _of_pid(pid)  # raises the error that says why
    if not jobs:
        raise ValueError(
            "no process of a running job of yours answers on this host. Processes of a job can be asked between "
            "hvd.init() and hvd.shutdown(), in the same container or network namespace, unless HOROVOD_DOCTOR=0 is set"
        )
    if len(jobs) > 1:
        lines = [f"  {_job_line(own[0], with_rank=False)}: --job {own[0].pid}" for own in jobs.values()]
        raise ValueError(
            "\n".join(["several jobs of yours run on this host; name a process of one:", *lines])
        )
    (members,) = jobs.values()
    return members


def _answers_of_job(pid: int) -> list[Answer]:
    """The answers of the processes of one job. One of them, rank 0 where it is here, also tells of ranks on other
    hosts."""
    members = members_of_job(pid)
    first, *others = [member.address for member in members]  # in the order of their ranks
    answers = asked_processes.ask_each([first, *others], {first: "job"})
    answers = [answer for answer in answers if answer.facts["rank"] in answer.snapshots]
    if not answers:
        raise ValueError(
            f"{_job_line(members[0], with_rank=False)}: no process answered; has the job ended meanwhile?"
        )
    return answers


def _about(answer: Answer) -> dict[str, Any]:
    return {"engine": answer.engine, "is_stuck": answer.is_stuck, "backends": answer.facts["backends"]}


def _job_line(answer: Answer, with_rank: bool = True) -> str:
    facts = answer.facts
    hosts = len(set(facts["hosts"]))
    since = f", {_seconds(time.time() - facts['since'])} since init()" if "since" in facts else ""
    ranks = f"rank {facts['rank']} of {facts['size']}" if with_rank else f"{facts['size']} ranks"
    return f"job {facts['job']}: {ranks} on {hosts} {'host' if hosts == 1 else 'hosts'}{since}"


def _where(ranks: list[int], facts: dict[str, Any]) -> str:
    """'rank 3 (host b, pid 17)', with the hosts of at most eight ranks."""
    shown = []
    for rank in ranks[:8]:
        host, pid = facts["host_names"][rank], facts["pids"][rank]
        shown.append(f"rank {rank} (host {host}, pid {pid})")
    more = f" and {len(ranks) - 8} more ranks" if len(ranks) > 8 else ""
    return ", ".join(shown) + more


def _no_stall(ranks: list[dict]) -> str:
    waiting = {w["name"] for rank in ranks for w in rank["waiting"] if w["age_s"] >= _LEAST_WAIT_SECONDS}
    if waiting:
        names = ", ".join(sorted(waiting)[:4])
        return f"No rank that answered is missing. All have submitted what waits: {names}."
    return f"No operation has waited for {_LEAST_WAIT_SECONDS:g} s: the ranks do not wait for each other."


def _lines_of(rank: dict) -> list[str]:
    """What a rank waits for, its last submissions and its engine."""
    lines = [f"rank {rank['rank']} (host {rank['host']}, pid {rank['pid']})"]
    if rank.get("is_stuck"):
        lines.append(
            "  the engine did not answer: the thread that drives it is inside of a backend. Operations that wait "
            "are not listed"
        )
    lines += [f"  waits for {_submission(w, 'since {}')}" for w in rank["waiting"]]
    if rank["joined_s"] >= 0:
        lines.append(f"  waits in join() for {_seconds(rank['joined_s'])}")
    if rank["leaving"]:
        lines.append("  has called shutdown(), or its program has ended")
    if rank["error"]:
        lines.append(f"  failed {_seconds(rank['error_age_s'])} ago: {rank['error']}")
    last = rank["last"][:_SHOWN_SUBMISSIONS]
    if last:
        lines.append(f"  last submissions, of {rank['submissions']}, newest first:")
        lines += [f"    {_submission(s, '{} ago')}" for s in last]
    else:
        lines.append("  has submitted no operation")
    lines += [f"  engine: {line}" for line in rank.get("engine", ())]
    if rank.get("backends"):
        lines.append(f"  backends: {'; '.join(rank['backends'])}")
    return lines


def _submission(submission: dict, when: str) -> str:
    name, operation = submission["name"], submission["operation"]
    parts = [
        f"'{name}'" if name == operation or name.startswith(f"{operation}.") else f"{operation} '{name}'"
    ]
    if submission["process_set"]:
        parts.append(f"in process set {submission['process_set']}")
    parts.append(when.format(_seconds(submission["age_s"])))
    if submission["copies"]:
        parts.append("(its data are being copied from a device)")
    if submission["place"]:
        parts.append(f"at {submission['place']}")
    return " ".join(parts) + (f": {submission['source']}" if submission["source"] else "")


def _stacks_of(rank: dict, main_only: bool = False) -> list[str]:
    lines = []
    for thread in rank["threads"]:
        if main_only and not thread["is_main"]:
            continue
        name = "main thread" if thread["is_main"] else f"thread {thread['name'] or '(without a name)'}"
        lines.append(f"  {name}{', in an operation' if thread['in_engine'] else ''} (innermost first):")
        lines += [f"    {f['place']}{': ' + f['source'] if f['source'] else ''}" for f in thread["frames"]]
        if not thread["frames"]:
            lines.append("    no frame of Python")
    if rank["lock_held"]:
        lines.append(
            "  its code did not release the GIL: the stacks, if there are any, are those of a copy of the process"
        )
    if rank["note"]:
        lines.append(f"  {rank['note']}")
    return lines


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
