"""``hvd doctor``: asks the processes of a running job what they do, or leaves it to ``plugin_doctor`` or ``bundle``.

``--pid`` shows one process in full; ``--job`` shows which ranks wait for which, and a few lines of each rank.

Each process of a job serves an abstract Unix socket (hvd_core/_runtime/doctor_endpoint.py). The kernel says which user's
process is at the other end, on both sides; an answer counts only if it comes from a process of this user (for root: of
any user).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd_core._base.sockets import peer_credentials
from hvd_core._cli import output, plugin_doctor
from hvd_core._runtime.doctor_endpoint import PREFIX, prefix_of

_CONNECT_SECONDS = 2.0
_FACTS_SECONDS, _ANSWER_SECONDS = 10.0, 15.0
_LONGEST_ANSWER = 64 << 20
_NEEDED = frozenset(("job", "rank", "size", "hosts", "host_names", "pids", "backends"))
_LEAST_WAIT_SECONDS = 1.0
_SHOWN_SUBMISSIONS = 5
_WHEN = (
    "Processes of a job can be asked between hvd.init() and hvd.shutdown(), in the same container or network namespace, "
    "unless HOROVOD_DOCTOR=0 is set."
)


@dataclass
class Answer:
    """What one process said.

    ``address``: of its socket. ``facts``: see doctor_endpoint. ``snapshots``: rank -> the snapshot's bytes, for
    _read_snapshot().
    ``process_sets``: members by id.
    """

    address: str
    pid: int
    user: int
    facts: dict[str, Any]
    snapshots: dict[int, bytes] = field(default_factory=dict)
    process_sets: dict[int, list[int]] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.description = (
        "Without options: run all phases of all backends, as `hvd plugin doctor`. With --pid, --job or --bundle: ask a "
        "running job of yours what it does, or pack a bug report."
    )
    parser.add_argument(
        "--pid",
        type=int,
        metavar="PID",
        help="ask one process of a running job: what it waits for, its last submissions, the stacks of its threads",
    )
    parser.add_argument(
        "--job",
        type=int,
        nargs="?",
        const=0,
        metavar="PID",
        help="ask all processes of a running job: which ranks wait for which, and what these do instead. PID: any "
        "process of the job, if you run several on this host. With --bundle the answer is packed too",
    )
    parser.add_argument(
        "--bundle",
        metavar="OUT.tar.gz",
        help="pack a bug report: flight recorders, versions, variables without secrets, facts about this host, "
        "backends, logs",
    )
    parser.add_argument(
        "--log",
        action="append",
        metavar="FILE",
        help="with --bundle: pack the end of this file too (repeatable)",
    )
    plugin_doctor.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Ask a job, pack a bundle, or examine backends. Raises ValueError for options that do not go together, or if no
    process can be asked, and the errors of the other tasks."""
    given = {"--bundle": options.bundle, "--pid": options.pid, "--job": options.job}
    chosen = [name for name, value in given.items() if value is not None]
    if "--pid" in chosen and len(chosen) > 1:
        raise ValueError("--pid goes with no other question: name it alone")
    if chosen and options.name is not None:
        raise ValueError(f"{chosen[0]} does not go with the name of a backend ({options.name})")
    if options.log and options.bundle is None:
        raise ValueError("--log FILE goes with --bundle OUT.tar.gz")
    if options.bundle is not None:
        from hvd_core._cli import bundle

        return bundle.pack(options)
    if options.pid is not None:
        return _one(options.pid, options.json)
    if options.job is not None:
        return _job(options.job, options.json)
    return plugin_doctor.run(options)


def _one(pid: int, as_json: bool) -> int:
    answers = _of_pid(pid)
    ranks = [{**_read_snapshot(a.snapshots[a.facts["rank"]]), **_about(a)} for a in answers]
    if as_json:
        output.document(ranks[0] if len(ranks) == 1 else ranks)
        return output.OK
    for answer, rank in zip(answers, ranks):
        print("\n".join([_job_line(answer), *_lines_of(rank), *_stacks_of(rank)]))
    return output.OK


def _of_pid(pid: int) -> list[Answer]:
    found = [a for a in addresses() if pid_at(a) == pid]
    answers = ask_each(found, "state")
    if answers:
        return answers
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        raise ValueError(f"there is no process {pid} on this host") from None
    if not is_ours(owner):
        raise ValueError(f"process {pid} belongs to user {owner}: only that user and root may ask it")
    why = "it did not answer in time" if found else "it serves no socket"
    raise ValueError(f"process {pid} cannot be asked: {why}. {_WHEN} `hvd doctor --job` lists jobs")


def _job(pid: int, as_json: bool) -> int:
    from hvd_core import _core

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
    ranks = [{**read, **about.get(read["rank"], {})} for read in map(_read_snapshot, ordered)]
    facts = answers[0].facts
    silent = [rank for rank in range(facts["size"]) if rank not in snapshots]
    if as_json:
        found = json.loads(report_json) if report_json else None
        output.document(
            {"job": facts["job"], "size": facts["size"], "no answer": silent, "report": found, "ranks": ranks}
        )
        return output.OK
    lines = [_job_line(answers[0], with_rank=False)]
    lines += [f"no answer from {_where(silent, facts)}"] if silent else []
    lines += ["", report] if report else ["", _no_stall(ranks)]
    for rank in ranks:
        lines += ["", *_lines_of(rank), *_stacks_of(rank, main_only=True)]
    print("\n".join(lines))
    return output.OK


def members_of_job(pid: int) -> list[Answer]:
    """The processes of one job on this host, with their facts. ``pid``: any process of the job, or 0 if there is one job
    only. Raises ValueError if there is no such job, or several."""
    answers = ask_each(addresses(), "facts")
    jobs: dict[str, list[Answer]] = {}
    for answer in answers:
        jobs.setdefault(answer.facts["job"], []).append(answer)
    if pid:
        jobs = {name: own for name, own in jobs.items() if any(a.pid == pid for a in own)}
        if not jobs:
            _of_pid(pid)  # raises the error that says why
    if not jobs:
        raise ValueError(f"no process of a running job of yours answers on this host. {_WHEN}")
    if len(jobs) > 1:
        lines = [f"  {_job_line(own[0], with_rank=False)}: --job {own[0].pid}" for own in jobs.values()]
        raise ValueError(
            "\n".join(["several jobs of yours run on this host; name a process of one:", *lines])
        )
    (members,) = jobs.values()
    return members


def _answers_of_job(pid: int) -> list[Answer]:
    """The answers of the processes of one job. One of them, rank 0 where it is here, also reports the ranks on other
    hosts."""
    members = members_of_job(pid)
    first, *others = [member.address for member in members]  # in the order of their ranks
    answers = ask_each([first], "job") + ask_each(others, "state")
    answers = [answer for answer in answers if answer.facts["rank"] in answer.snapshots]
    if not answers:
        raise ValueError(
            f"{_job_line(members[0], with_rank=False)}: no process answered; has the job ended meanwhile?"
        )
    return answers


def _about(answer: Answer) -> dict[str, Any]:
    return {"backends": answer.facts["backends"]}


def _job_line(answer: Answer, with_rank: bool = True) -> str:
    facts = answer.facts
    hosts = len(set(facts["hosts"]))
    since = f", {_seconds(time.time() - facts['since'])} since init()" if "since" in facts else ""
    ranks = f"rank {facts['rank']} of {facts['size']}" if with_rank else f"{facts['size']} ranks"
    return f"job {facts['job']}: {ranks} on {hosts} {'host' if hosts == 1 else 'hosts'}{since}"


def _where(ranks: list[int], facts: dict[str, Any]) -> str:
    """'rank 3 (host b, pid 17)', with the hosts of at most eight ranks."""
    shown = [f"rank {r} (host {facts['host_names'][r]}, pid {facts['pids'][r]})" for r in ranks[:8]]
    return ", ".join(shown) + (f" and {len(ranks) - 8} more ranks" if len(ranks) > 8 else "")


def _no_stall(ranks: list[dict[str, Any]]) -> str:
    waiting = {w["name"] for rank in ranks for w in rank["waiting"] if w["age_s"] >= _LEAST_WAIT_SECONDS}
    if waiting:
        names = ", ".join(sorted(waiting)[:4])
        return f"No rank that answered is missing. All have submitted what waits: {names}."
    return f"No operation has waited for {_LEAST_WAIT_SECONDS:g} s: the ranks do not wait for each other."


def _lines_of(rank: dict[str, Any]) -> list[str]:
    """What a rank waits for, its last submissions and its engine."""
    lines = [f"rank {rank['rank']} (host {rank['host']}, pid {rank['pid']})"]
    if rank["is_stuck"]:
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
    lines += [f"  engine: {line}" for line in rank["engine"]]
    if rank.get("backends"):
        lines.append(f"  backends: {'; '.join(rank['backends'])}")
    return lines


def _submission(submission: dict[str, Any], when: str) -> str:
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


def _read_snapshot(data: bytes) -> dict[str, Any]:
    """A rank's snapshot, with each place as one text."""
    from hvd_core import _core

    rank: dict[str, Any] = json.loads(_core.snapshot_json(data))
    for submission in [*rank["waiting"], *rank["last"]]:
        submission.update(_place(submission["place"]), copies=submission.pop("deferred"))
    for thread in rank["threads"]:
        thread["is_main"] = thread.pop("main")
        thread["frames"] = [_place(frame) for frame in thread["frames"]]
    rank["lock_held"] = rank.pop("gil_held")
    return rank


def _place(place: dict[str, Any]) -> dict[str, str]:
    text = f"{place['file']}:{place['line']}" if place["line"] else place["file"]
    if place["function"] not in ("", "<module>"):
        text += f" in {place['function']}"
    return {"place": text, "source": place["source"], "caller": place["caller"]}


def _stacks_of(rank: dict[str, Any], main_only: bool = False) -> list[str]:
    lines = []
    for thread in rank["threads"]:
        if main_only and not thread["is_main"]:
            continue
        name = "main thread" if thread["is_main"] else f"thread {thread['name'] or '(without a name)'}"
        lines.append(f"  {name}{', in an operation' if thread['in_engine'] else ''} (innermost first):")
        lines += [f"    {f['place']}{': ' + f['source'] if f['source'] else ''}" for f in thread["frames"]]
        if not thread["frames"]:
            lines.append("    no frame of Python")
    if rank["note"]:
        lines.append(f"  {rank['note']}")
    return lines


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


# ---- sockets ----------------------------------------------------------------------------------------------------


def addresses() -> list[str]:
    """The sockets' names, of this user's processes; for root of all. They are claims until a process has answered."""
    wanted = "@" + (PREFIX if os.geteuid() == 0 else prefix_of(os.geteuid()))
    try:
        lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    except OSError:
        return []
    names = {line.split()[-1] for line in lines[1:] if line.split()}
    return sorted(name[1:] for name in names if name.startswith(wanted))


def ask_each(found: list[str], question: str) -> list[Answer]:
    """The answers of the processes at these addresses, asked in parallel, by job and rank. Those that do not answer, and
    those of other users, are left out.

    Args:
        question: "facts", "state" (what the process does), or "job" (the same, and the process asks all ranks).
    """
    with ThreadPoolExecutor(64) as pool:
        answers = [answer for answer in pool.map(lambda a: ask(a, question), found) if answer is not None]
    return sorted(answers, key=lambda answer: (answer.facts["job"], answer.facts["rank"]))


def pid_at(address: str) -> int | None:
    """The process that serves a socket; None if it may not be asked."""
    with suppress(OSError), _connected(address) as connection:
        pid, user = peer_credentials(connection)
        return pid if is_ours(user) else None
    return None


def ask(address: str, question: str) -> Answer | None:
    """The answer of the process at an address; None if it does not answer, or is another user's."""
    with suppress(OSError, ValueError), _connected(address) as connection:
        pid, user = peer_credentials(connection)
        if not is_ours(user):
            return None
        connection.settimeout(_FACTS_SECONDS if question == "facts" else _ANSWER_SECONDS)
        connection.sendall(f"{question}\n".encode())
        data = bytearray()
        while part := connection.recv(1 << 16):
            data += part
            if len(data) > _LONGEST_ANSWER:
                return None
        return _parsed(address, pid, user, bytes(data)) if data else None
    return None


@contextmanager
def _connected(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT_SECONDS)
        connection.connect("\0" + address)
        yield connection


def is_ours(user: int) -> bool:
    """Whether this user may ask a process of ``user``."""
    return os.geteuid() in (0, user)


def _parsed(address: str, pid: int, user: int, data: bytes) -> Answer:
    """Raises ValueError for bytes that are no answer."""
    line, _, rest = data.partition(b"\n")
    answer = Answer(address, pid, user, json.loads(line))
    if missing := _NEEDED.difference(answer.facts):
        raise ValueError(f"an answer without {sorted(missing)}")
    for kind, rank, part in _parts(rest):
        if kind == "snapshot":
            answer.snapshots[rank] = part
        elif kind == "sets":
            answer.process_sets = {int(number): members for number, members in json.loads(part).items()}
    return answer


def _parts(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    while data:
        head, _, data = data.partition(b"\n")
        word, kind, rank, size = head.decode().split(" ")
        if word != "PART" or len(data) < int(size):
            raise ValueError("an answer with a damaged part")
        yield kind, int(rank), data[: int(size)]
        data = data[int(size) :]
