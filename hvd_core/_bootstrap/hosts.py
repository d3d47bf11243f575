"""Finds the ranks that share a host, by connecting and not by comparing host names, and makes the table of all hosts.

All ranks put their records together in the store, and each reads those of the ranks with equal hints (boot, network
namespace, user). These try to reach the lowest of them over an abstract Unix socket. A rank that succeeds shares its
host; the other ranks repeat this among themselves. The lowest rank of each host, its leader, then adds the facts about
its host to the table, reads that of all hosts, and sends it to the ranks of its host: the store sends it once to each
host. From the table follow the topology (local and cross ranks, the tree of links) and the offsets of the hosts' clocks.
Called on the thread that runs init().
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvd_core._base.auth import client_handshake
from hvd_core._base.sockets import (
    AuthenticationError,
    BootstrapError,
    BootstrapTimeout,
    DescriptorSet,
    peer_credentials,
    recv_exact,
    send_exact,
)
from hvd_core._bootstrap import affinity
from hvd_core._bootstrap.links import RankListener
from hvd_core._bootstrap.store import Gathered, encryption, read_gathered
from hvd_core._bootstrap.store.job_members import Members, init_text, name_ranks
from hvd_core._bootstrap.store.session import Session

# ------------------------------------------------------------------------------------------ topology
# Pure functions of the table that all ranks share. In the tree, the ranks of a host are children of their leader
# (the lowest rank), leaders are children of other leaders with a bounded fan-out, and rank 0 is the root.

FAN_OUT = 8


@dataclass(frozen=True)
class Topology:
    """``hosts``: host index of each rank, numbered by first rank. The other fields describe one rank."""

    hosts: tuple[int, ...]
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    leader: int
    local_ranks: tuple[int, ...]
    parent: int | None
    local_children: tuple[int, ...]
    leader_children: dict[int, tuple[int, ...]]  # child leader -> world ranks reached through it


def topology_of(rank: int, leader: Sequence[int]) -> Topology:
    """The Topology of ``rank``; ``leader`` is the lowest rank of each rank's host."""
    leaders = sorted(set(leader))
    index = {first: i for i, first in enumerate(leaders)}
    members: dict[int, list[int]] = {first: [] for first in leaders}
    for other, first in enumerate(leader):
        members[first].append(other)
    own = members[leader[rank]]
    local_rank = own.index(rank)
    peers = [i for i, first in enumerate(leaders) if len(members[first]) > local_rank]
    me = index[leader[rank]]
    is_leader = local_rank == 0
    parent = leader[rank] if not is_leader else (leaders[(me - 1) // FAN_OUT] if me else None)
    below: Sequence[int] = (
        range(me * FAN_OUT + 1, min(me * FAN_OUT + FAN_OUT + 1, len(leaders))) if is_leader else ()
    )
    return Topology(
        hosts=tuple(index[first] for first in leader),
        local_rank=local_rank,
        local_size=len(own),
        cross_rank=peers.index(me),
        cross_size=len(peers),
        leader=leader[rank],
        local_ranks=tuple(own),
        parent=parent,
        local_children=tuple(own[1:]) if is_leader else (),
        leader_children={leaders[i]: _subtree(i, leaders, members) for i in below},
    )


def _subtree(top: int, leaders: Sequence[int], members: Mapping[int, list[int]]) -> tuple[int, ...]:
    ranks: list[int] = []
    todo = [top]
    while todo:
        i = todo.pop()
        ranks += members[leaders[i]]
        todo += range(i * FAN_OUT + 1, min(i * FAN_OUT + FAN_OUT + 1, len(leaders)))
    return tuple(sorted(ranks))


# The clocks of the hosts: what has to be added to this host's CLOCK_MONOTONIC for the clock of rank 0's host.
#
# Measured over the job's store at init(), as timelines of several hosts are put on one clock by it. Within a host there
# is one clock. Called once per init() by all ranks, on the thread that runs it.

ROUNDS = 5


def offset_to_rank_0(session: Session, hosts: Sequence[int]) -> tuple[int, int]:
    """(offset in ns, the largest possible error in ns) of this rank's host. Rank 0 answers each other host's first rank.

    The error is half of the shortest round trip. Raises BootstrapError as the session does.
    """
    mine = hosts[session.rank]
    firsts = {host: hosts.index(host) for host in sorted(set(hosts))}
    if session.rank == 0:
        for host in sorted(firsts)[1:]:
            for i in range(ROUNDS):
                session.wait(f"clock/{host}/{i}/question")
                session.put(f"clock/{host}/{i}/answer", time.monotonic_ns())
        return 0, 0
    if mine == hosts[0]:
        return 0, 0
    if session.rank != firsts[mine]:
        offset, error = session.wait(f"clock/{mine}/offset")
        return offset, error
    best: tuple[int, int] | None = None
    for i in range(ROUNDS):
        asked = time.monotonic_ns()
        session.put(f"clock/{mine}/{i}/question", True)
        answer = session.wait(f"clock/{mine}/{i}/answer")
        now = time.monotonic_ns()
        found = answer - (asked + now) // 2, (now - asked) // 2 + 1
        if best is None or found[1] < best[1]:
            best = found
    assert best is not None
    session.put(f"clock/{mine}/offset", best)
    return best


def offset_by_wall_clocks(session: Session, hosts: Sequence[int], wall_ns: int) -> tuple[int, int | None]:
    """The same without a question to rank 0, as good as the hosts' wall clocks agree: the error is not known (None).
    ``wall_ns``: the wall clock minus CLOCK_MONOTONIC on rank 0's host."""
    if hosts[session.rank] == hosts[0]:
        return 0, 0
    return time.time_ns() - time.monotonic_ns() - wall_ns, None


PURPOSE = b"local"
# The version of the messages that the modules of this folder exchange.
VERSION = 9


_LENGTH = struct.Struct("<I")
_MOST_TABLE_BYTES = 64 << 20


@dataclass
class Roster:
    """What a rank reads of the records of all ranks. ``common``: by rank, a dict with size, version, transport and
    encryption. ``group``: of the ranks with the same hints as this one, by rank, a dict with host, pid, cores and the
    nonce in its socket's name. ``listener``: the socket at which this rank listens on its host."""

    common: list[dict[str, Any]]
    group: dict[int, dict[str, Any]]
    listener: socket.socket


@dataclass
class Neighbours:
    """``leader`` of each rank (the lowest rank of its host), ``host_names`` and ``pids`` of each rank. ``wall_ns``: the
    wall clock minus CLOCK_MONOTONIC on rank 0's host; ``exact``: whether rank 0 wants the clocks compared exactly.
    ``sockets`` to the local peers: a leader has one per other rank of its host, any other rank has one to its leader."""

    leader: list[int]
    host_names: list[str]
    pids: list[int]
    wall_ns: int
    exact: bool
    sockets: dict[int, socket.socket] = field(default_factory=dict)


def hints() -> list[str | int]:
    """Values that are equal on all ranks of a host (but perhaps on other ranks too)."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        boot, network = socket.gethostname(), 0
    return [boot, network, os.geteuid()]


def host_name(environ: Mapping[str, str]) -> str:
    """This host's name in messages: the name that the user gave to the launcher, else its own."""
    given = environ.get("HOROVOD_HOSTNAME", "").strip()
    return socket.gethostname() if given in ("", "localhost", "127.0.0.1") else given


def simulated_host(environ: Mapping[str, str], rank: int, size: int) -> list[int]:
    """[host number] of this rank from HOROVOD_SIMULATED_HOSTS, one number per rank ("0,0,1,1"); [] when unset. Ranks
    are those of the launcher's job, also where init() was given a part of them.

    Ranks of one machine with different numbers count as ranks of different hosts, to try jobs of several hosts on one
    machine. Raises ValueError if the list does not have one number per rank.
    """
    text = environ.get("HOROVOD_SIMULATED_HOSTS", "").strip()
    if not text:
        return []
    numbers = [part.strip() for part in text.split(",")]
    if len(numbers) != size or not all(number.isdecimal() for number in numbers):
        raise ValueError(
            f"HOROVOD_SIMULATED_HOSTS={text!r} must hold one host number for each of the {size} ranks, such as "
            f"{','.join(str(r % 2) for r in range(size))!r}"
        )
    return [int(numbers[rank])]


def gather_roster(
    session: Session,
    transport: str,
    descriptors: DescriptorSet,
    members: Members = None,
    launched: tuple[int, int | None] | None = None,
) -> Roster:
    """The Roster of this rank.

    ``members``: the launcher's ranks that make up the job, None for all; ``launched``: (rank, size) in the launcher's
    job.

    Raises BootstrapTimeout that names the ranks that are missing, BootstrapError if two processes claim one rank or the
    processes disagree about the job.
    """
    rank, size = session.rank, session.size
    common = {
        "size": size,
        "version": VERSION,
        "transport": transport,
        "encryption": encryption.record(),
    }
    own = {
        "host": host_name(os.environ),
        "pid": os.getpid(),
        "cores": affinity.to_text(affinity.inherited()),
    }
    launcher_rank, launcher_size = launched or (rank, size)
    like = hints() + simulated_host(os.environ, launcher_rank, launcher_size or size)
    label = hashlib.sha256(json.dumps(like).encode()).hexdigest()[:16]
    # A nonce, as the secret is no secret of this job alone if a user has set it for several: they may be in init() at the
    # same time.
    own["nonce"] = nonce = secrets.token_hex(4)
    # Before the record is there: a rank that has read it may connect.
    listener = descriptors.own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    listener.bind(_address_on_host(session, rank, nonce))
    listener.listen(4096)
    if not session.gather("hello", _bytes(common), _bytes(own), label):
        raise _claimed_twice(session)

    def missing() -> str:
        absent = session.absent("hello")
        if not absent:
            return "rank 0 did not answer"
        verb = "has" if len(absent) == 1 else "have"
        return (
            f"{name_ranks(absent)} of {size} {verb} not called {init_text(members)}"
            " (failed, still starting, or HOROVOD_START_TIMEOUT too short)"
        )

    found = session.gathered("hello", missing, label)
    records = [(json.loads(record), ranks) for record, ranks in found.commons]
    for field_name in ("size", "version"):
        first = records[0][0][field_name]
        odd = sorted(other for record, ranks in records if record[field_name] != first for other in ranks)
        if odd:
            said = next(record[field_name] for record, ranks in records if odd[0] in ranks)
            raise BootstrapError(
                f"the processes disagree about the job's {field_name}: rank 0 says {first}, {name_ranks(odd)} said {said}"
            )
    by_rank = {other: record for record, ranks in records for other in ranks}
    return Roster(
        [by_rank[other] for other in range(size)],
        {ranks[0]: json.loads(record) for ranks, record in found.parts},
        listener,
    )


def _bytes(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


def _claimed_twice(session: Session) -> BootstrapError:
    other = session.peek(f"hello/{session.rank}") or {"pid": "unknown", "host": "unknown"}
    return BootstrapError(
        f"two processes claim rank {session.rank}: process {os.getpid()} on {socket.gethostname()} and process "
        f"{other['pid']} on {other['host']}. Each rank must call init() in one process."
    )


def find_neighbours(session: Session, roster: Roster, descriptors: DescriptorSet) -> Neighbours:
    """The Neighbours of this rank; its sockets belong to ``descriptors``. Closes ``roster.listener``."""
    rank = session.rank
    group = sorted(roster.group)
    sockets: dict[int, socket.socket] = {}
    while group[0] != rank:
        leader = group[0]
        sock = _try(session, leader, roster.group[leader]["nonce"], descriptors)
        if sock is not None:
            descriptors.discard(roster.listener)
            table = read_gathered(_receive_table(session, sock, leader))
            return _neighbours(session.size, table, {leader: sock})
        session.put(f"apart/{leader}/{session.count(f'apart/{leader}')}", rank)
        missing_leader = f"rank {leader} did not name its host"
        absent = session.wait(f"members/{leader}", functools.partial(str, missing_leader))
        group = [other for other in group if other not in absent]
    if len(group) > 1:
        sockets = _receive(session, roster, group[1:], descriptors)
    else:
        descriptors.discard(roster.listener)
    members = sorted([rank, *sockets])
    facts: dict[str, Any] = {
        "hosts": [roster.group[member]["host"] for member in members],
        "pids": [roster.group[member]["pid"] for member in members],
    }
    if len(set(facts["hosts"])) == 1:
        del facts["hosts"][1:]
    if rank == 0:
        facts["clock"] = [time.time_ns() - time.monotonic_ns(), _wants_exact_clocks()]
    session.gather("hosts", b"", _bytes(facts), members=members)

    def missing() -> str:
        return f"{name_ranks(session.absent('hosts'))} did not tell which ranks share a host"

    value = session.gathered_bytes("hosts", missing)
    for member, sock in sockets.items():
        try:
            send_exact(sock, _LENGTH.pack(len(value)) + value, session.deadline)
        except BootstrapTimeout:
            raise session.timed_out(
                f"rank {member} on this host did not take the table of the hosts"
            ) from None
    return _neighbours(session.size, read_gathered(value), sockets)


def _wants_exact_clocks() -> bool:
    return bool(os.environ.get("HOROVOD_TIMELINE", "").strip())


def _neighbours(size: int, table: Gathered, sockets: dict[int, socket.socket]) -> Neighbours:
    leader, names, pids = [-1] * size, [""] * size, [0] * size
    wall_ns, exact = 0, False
    for members, part in table.parts:
        facts = json.loads(part)
        hosts = facts["hosts"] if len(facts["hosts"]) > 1 else facts["hosts"] * len(members)
        for member, name, pid in zip(members, hosts, facts["pids"], strict=True):
            leader[member], names[member], pids[member] = members[0], name, pid
        if "clock" in facts:
            wall_ns, exact = facts["clock"]
    return Neighbours(leader, names, pids, wall_ns, exact, sockets)


def _address_on_host(session: Session, rank: int, nonce: str) -> str:
    """The name of a rank's abstract socket, which only processes of its job know."""
    text = f"listener {nonce} of rank {rank} in init {session.epoch}"
    return "\0hvd-" + hmac.new(session.secret, text.encode(), hashlib.sha256).hexdigest()[:32]


def _receive(
    session: Session, roster: Roster, others: Sequence[int], descriptors: DescriptorSet
) -> dict[int, socket.socket]:
    """The sockets of the ranks, of ``others``, that connect; the rest is not on this host."""
    rank = session.rank
    listener = RankListener(
        descriptors.disown(roster.listener),
        session.secret,
        PURPOSE,
        session.epoch,
        others,
        allow=lambda sock: peer_credentials(sock)[1] == os.geteuid(),
    )
    sockets: dict[int, socket.socket] = {}
    waiting, elsewhere = set(others), 0
    try:
        while waiting:
            other = min(waiting)
            found, absent = session.accept_or_read(
                listener, other, f"rank {other} did not connect on this host", f"apart/{rank}/{elsewhere + 1}"
            )
            if found is None:
                waiting.discard(absent)
                elsewhere += 1
            else:
                sockets[other] = descriptors.own(found[0])
                waiting.discard(other)
    finally:
        listener.close()
    if elsewhere:
        session.put(f"members/{rank}", [rank, *sockets])
    return sockets


def _try(session: Session, leader: int, nonce: str, descriptors: DescriptorSet) -> socket.socket | None:
    sock = descriptors.own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        sock.connect(_address_on_host(session, leader, nonce))
        if peer_credentials(sock)[1] != os.geteuid():
            raise ConnectionError("another user's socket")
        # It listened before its record was there. It begins with the handshake when it has read the other records.
        client_handshake(sock, session.secret, PURPOSE, session.rank, session.epoch, session.deadline)
    except BootstrapTimeout:
        raise
    except (OSError, AuthenticationError):
        # Not this host; or that rank has ended, which every wait that follows will say.
        descriptors.discard(sock)
        return None
    return sock


def _receive_table(session: Session, sock: socket.socket, leader: int) -> bytes:
    try:
        (count,) = _LENGTH.unpack(recv_exact(sock, _LENGTH.size, session.deadline))
        if not 0 < count <= _MOST_TABLE_BYTES:
            raise BootstrapError(f"rank {leader} on this host announced a table of {count} bytes")
        return recv_exact(sock, count, session.deadline)
    except BootstrapTimeout:
        raise session.timed_out(f"rank {leader} on this host did not send the table of the hosts") from None
