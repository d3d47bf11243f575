"""Finds the processes of running jobs on this host that `hvd doctor` may ask, and asks them.

Each serves an abstract Unix socket (hvd_core/_runtime/doctor_endpoint.py). The kernel says which user's process is
at the other end,
on both sides; an answer counts only if it comes from a process of this user (for root: of any user).
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd_core._runtime.doctor_endpoint import PREFIX, prefix_of

_CONNECT_SECONDS = 2.0
_FACTS_SECONDS, _ANSWER_SECONDS = 10.0, 15.0
_LONGEST_ANSWER = 64 << 20
_CREDENTIALS = struct.Struct("3i")
_NEEDED = frozenset(("job", "rank", "size", "hosts", "host_names", "pids", "backends"))


@dataclass
class Answer:
    """What one process said.

    ``address``: of its socket. ``facts``: see asked_facts. ``snapshots``: rank -> the snapshot's bytes, for
    hvd_core._core.read_snapshot().
    ``engine``: lines about the engine. ``process_sets``: members by number. ``is_stuck``: the engine's driver did not
    answer.
    """

    address: str
    pid: int
    user: int
    facts: dict[str, Any]
    snapshots: dict[int, bytes] = field(default_factory=dict)
    engine: list[str] = field(default_factory=list)
    process_sets: dict[int, list[int]] = field(default_factory=dict)
    is_stuck: bool = False


def addresses() -> list[str]:
    """The sockets' names, of this user's processes; for root of all. They are claims until a process has answered."""
    wanted = "@" + (PREFIX if os.geteuid() == 0 else prefix_of(os.geteuid()))
    try:
        lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    except OSError:
        return []
    names = {line.split()[-1] for line in lines[1:] if line.split()}
    return sorted(name[1:] for name in names if name.startswith(wanted))


def ask_each(found: list[str], question: str | dict[str, str]) -> list[Answer]:
    """The answers of the processes at these addresses, side by side, by job and rank. Those that do not answer, and those
    of other users, are left out.

    Args:
        question: "facts", "state" (what the process does), or "job" (likewise, and the process asks all ranks). By
            address, where they differ: "state" for the others.
    """
    if not found:
        return []
    questions = dict.fromkeys(found, question) if isinstance(question, str) else question
    with ThreadPoolExecutor(min(64, len(found))) as pool:
        every = pool.map(lambda a: ask(a, questions.get(a, "state")), found)
        answers = [answer for answer in every if answer is not None]
    return sorted(answers, key=lambda answer: (answer.facts["job"], answer.facts["rank"]))


def owner_of(pid: int) -> int | None:
    """The user of a process; None if there is no such process."""
    with suppress(OSError):
        return os.stat(f"/proc/{pid}").st_uid
    return None


def pid_at(address: str) -> int | None:
    """The process that serves a socket; None if it may not be asked."""
    with suppress(OSError), _connected(address) as connection:
        pid, user = _peer(connection)
        return pid if is_ours(user) else None
    return None


def ask(address: str, question: str) -> Answer | None:
    """The answer of the process at an address; None if it does not answer, or is another user's."""
    with suppress(OSError, ValueError), _connected(address) as connection:
        pid, user = _peer(connection)
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


def _connected(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CONNECT_SECONDS)
    try:
        connection.connect("\0" + address)
    except BaseException:
        connection.close()
        raise
    return connection


def _peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, user) of the process at the other end, as the kernel knows them."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(raw)
    return pid, user


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
        elif kind == "engine":
            answer.engine.append(part.decode("utf-8", "backslashreplace"))
        elif kind == "sets":
            answer.process_sets = {int(number): members for number, members in json.loads(part).items()}
        elif kind == "stuck":
            answer.is_stuck = True
    return answer


def _parts(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    while data:
        head, _, data = data.partition(b"\n")
        word, kind, rank, size = head.decode().split(" ")
        if word != "PART" or len(data) < int(size):
            raise ValueError("an answer with a damaged part")
        yield kind, int(rank), data[: int(size)]
        data = data[int(size) :]
