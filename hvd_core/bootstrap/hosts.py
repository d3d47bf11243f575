"""Finds the ranks that share a host, by connecting and not by comparing host names.

Ranks with equal hints (boot, network namespace, user) try to reach the lowest of them over an abstract Unix socket. A
rank that succeeds shares its host; the other ranks repeat this among themselves. All ranks end with the same table.
Called on the thread that runs init().
"""

import os
import secrets
import socket
from dataclasses import dataclass, field

from . import affinity, encryption
from .acceptor import Acceptor
from .auth import client_handshake
from .job_members import init_text
from .rendezvous_listener import peer_uid
from .session import name_ranks
from .socket_io import BootstrapError, Deadline

PURPOSE = b"local"
# The version of the messages that the modules of this folder exchange.
VERSION = 5


@dataclass
class Neighbours:
    """``leader`` of each rank (the lowest rank of its host). ``sockets`` to the local peers: a leader has one per other
    rank of its host, any other rank has one to its leader."""

    leader: list
    sockets: dict = field(default_factory=dict)


def hints():
    """Values that are equal on all ranks of a host (but perhaps on other ranks too)."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        boot, network = socket.gethostname(), 0
    return [boot, network, os.geteuid()]


def host_name(environ):
    """This host's name in messages: the name that the user gave to the launcher, else its own."""
    told = environ.get("HOROVOD_HOSTNAME", "").strip()
    return socket.gethostname() if told in ("", "localhost", "127.0.0.1") else told


def simulated_host(environ, rank, size):
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


def gather_roster(session, transport, members=None, launched=None):
    """The records of all ranks, by rank: dicts with host, pid, hints, size, version, transport, cores,
    encryption.

    ``members``: the launcher's ranks that make up the job, None for all; ``launched``: (rank, size) in the launcher's
    job.

    Raises BootstrapTimeout that names the ranks that are missing, BootstrapError if two processes claim one rank or the
    processes disagree about the job.
    """
    rank, size = session.rank, session.size
    if session.count(f"claim/{rank}") != 1:
        other = session.peek(f"hello/{rank}") or {"pid": "unknown", "host": "unknown"}
        raise BootstrapError(
            f"two processes claim rank {rank}: process {os.getpid()} on {socket.gethostname()} and process "
            f"{other['pid']} on {other['host']}. Each rank must call init() in one process."
        )
    record = {
        "host": host_name(os.environ),
        "pid": os.getpid(),
        "hints": hints() + simulated_host(os.environ, *(launched or (rank, size))),
        "size": size,
        "version": VERSION,
        "transport": transport,
        "cores": affinity.to_text(affinity.inherited()),
        "encryption": encryption.record(),
    }
    session.put(f"hello/{rank}", record)

    def missing():
        absent = session.absent("hello")
        if not absent:
            return "rank 0 did not answer"
        verb = "has" if len(absent) == 1 else "have"
        return (
            f"{name_ranks(absent)} of {size} {verb} not called {init_text(members)}"
            " (failed, still starting, or HOROVOD_START_TIMEOUT too short)"
        )

    if rank != 0:
        return session.wait("roster", missing)
    roster = [session.wait(f"hello/{other}", missing) for other in range(size)]
    for field_name in ("size", "version"):
        odd = [other for other in range(size) if roster[other][field_name] != record[field_name]]
        if odd:
            raise BootstrapError(
                f"the processes disagree about the job's {field_name}: rank 0 says {record[field_name]}, "
                f"{name_ranks(odd)} said {roster[odd[0]][field_name]}"
            )
    session.put("roster", roster)
    return roster


def find_neighbours(session, roster, descriptors):
    """The Neighbours of this rank; its sockets belong to ``descriptors``."""
    rank = session.rank
    group = [other for other in range(session.size) if roster[other]["hints"] == roster[rank]["hints"]]
    sockets = {}
    while len(group) > 1:
        if group[0] == rank:
            sockets = _receive(session, group[1:], descriptors)
            session.put(f"host/{rank}", sorted([rank, *sockets]))
            break
        sock = _try(session, group[0], descriptors)
        session.put(f"reached/{group[0]}/{rank}", sock is not None)
        members = session.wait(
            f"host/{group[0]}", lambda leader=group[0]: f"rank {leader} did not name its host"
        )
        if rank in members:
            sockets = {group[0]: sock}
            break
        if sock is not None:
            descriptors.discard(sock)
        group = [other for other in group if other not in members]
    if rank != 0:
        return Neighbours(
            session.wait("table", lambda: "rank 0 did not publish which ranks share a host"), sockets
        )
    leader = _table(session, roster)
    session.put("table", leader)
    return Neighbours(leader, sockets)


def _table(session, roster):
    # Follows the same rule as the ranks themselves, so rank 0 knows which leader's list to wait for.
    leader = [None] * session.size
    for rank in range(session.size):
        if leader[rank] is not None:
            continue
        left = [
            r
            for r in range(session.size)
            if leader[r] is None and roster[r]["hints"] == roster[rank]["hints"]
        ]
        members = [rank]
        if len(left) > 1:
            members = session.wait(f"host/{rank}", lambda leader=rank: f"rank {leader} did not name its host")
        for member in members:
            leader[member] = rank
    return leader


def _receive(session, others, descriptors):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    name = "hvd-" + secrets.token_hex(16)
    listener.bind("\0" + name)
    listener.listen(len(others) + 16)
    acceptor = Acceptor(
        listener,
        session.secret,
        PURPOSE,
        session.epoch,
        others,
        allow=lambda sock: peer_uid(sock) == os.geteuid(),
    )
    sockets = {}
    try:
        session.put(f"door/{session.rank}", name)
        for other in others:
            key = f"reached/{session.rank}/{other}"
            if session.wait(key, lambda other=other: f"rank {other} did not say whether it shares a host"):
                sock, _ = session.in_slices(
                    lambda seconds, other=other: acceptor.wait_for(other, seconds),
                    f"rank {other} did not connect on this host",
                )
                sockets[other] = descriptors.own(sock)
    finally:
        acceptor.close()
    return sockets


def _try(session, leader, descriptors):
    name = session.wait(f"door/{leader}", lambda: f"rank {leader} did not open its local socket")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A local peer answers at once or never.
        deadline = Deadline(min(10.0, session.deadline.left()))
        sock.settimeout(deadline.left())
        sock.connect("\0" + name)
        if peer_uid(sock) != os.geteuid():
            raise ConnectionError("another user's socket")
        client_handshake(sock, session.secret, PURPOSE, session.rank, session.epoch, deadline)
    except (OSError, BootstrapError):
        sock.close()
        return None
    return descriptors.own(sock)
