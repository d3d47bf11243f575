"""The rendezvous over MPI (mpi4py): for ranks on several hosts, and jobs of an MPI communicator.

Rank 0 starts the store; its address and the secret are all that is sent over MPI, and the program may use MPI for itself.
Called on the thread that runs init(), add_process_set() or shutdown(), never by the engine. Starts MPI if the program
has not done so, and leaves it running.

A job of some ranks (init(comm=[...])) needs a communicator of them, and MPI's own call would wait indefinitely for ranks
that gave another list. So all members first send a message to the first rank of the list, which then lets all of them
continue; the deadline applies up to that message.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from hvd_core._base.auth import new_secret
from hvd_core._base.sockets import BootstrapError, BootstrapTimeout, Deadline, address_towards
from hvd_core._bootstrap import launchers
from hvd_core._bootstrap.launchers.identity import Identity, identify
from hvd_core._bootstrap.rendezvous.base import FAREWELL_SECONDS, Rendezvous
from hvd_core._bootstrap.rendezvous.mpi4py_support import OTHER_MPI, start_mpi
from hvd_core._bootstrap.store import StoreServer, encryption
from hvd_core._bootstrap.store.job_members import (
    MembersDisagree,
    check_range,
    contradict,
    disagreement,
    init_text,
    name_ranks,
    shorten,
)

# mpi4py has no type hints that are there without it.
Comm: TypeAlias = Any
MpiModule: TypeAlias = Any

_BYTES = 1024
_LONGEST_ERROR = 800
# The tag of our messages on MPI.COMM_WORLD; programs are unlikely to use it.
_TAG = 18550
_unfinished: list[tuple[Any, bytes]] = []
_attempts: dict[tuple[int, ...], int] = {}


class OverMpi:
    """The method 'mpi4py'."""

    def find_store(
        self, identity: Identity, environ: Mapping[str, str], deadline: Deadline
    ) -> tuple[Identity, Rendezvous]:
        MPI = start_mpi(identity.launcher)
        world = MPI.COMM_WORLD
        size, whole = world.Get_size(), identity.whole
        if (whole.size not in (None, size)) or world.Get_rank() != whole.rank:
            raise BootstrapError(
                f"{whole.launcher} says this is rank {whole.rank} of {whole.size}, mpi4py says "
                f"{world.Get_rank()} of {size}: {OTHER_MPI}"
            )
        whole = replace(whole, size=size)
        if identity.members is not None:
            check_range(identity.members, whole)
        if identity.members is None or identity.members == tuple(range(size)):
            return whole, _distribute(MPI, world, whole, deadline)
        identity = replace(identity, launched=whole)
        comm = _communicator_of_members(MPI, identity, deadline)
        try:
            return identity, _distribute(MPI, comm, identity, deadline)
        finally:
            comm.Free()

    def attend(self, identity: Identity, environ: Mapping[str, str], deadline: Deadline) -> None:
        pass


def _distribute(MPI: MpiModule, comm: Comm, identity: Identity, deadline: Deadline) -> Rendezvous:
    """The Rendezvous on every rank of ``comm``; rank 0 starts the server."""
    size = comm.Get_size()
    names = _exchange_names(comm, size, deadline)
    buffer = bytearray(_BYTES)
    server: StoreServer | None = None
    problem: BootstrapError | OSError | None = None
    if comm.Get_rank() == 0 and size > 1:
        try:
            encryption.refuse_readable_secret(len(set(names)) > 1, "MPI")
            secret = new_secret()
            server = StoreServer(address_towards(names), secret)
            offer = {"store": server.address, "secret": secret.hex()}
        except (BootstrapError, OSError) as error:
            problem = error
            # The others wait for it.
            offer = {"error": str(error).encode("ascii", "replace").decode()[:_LONGEST_ERROR]}
        text = json.dumps(offer).encode()
        buffer[: len(text)] = text
    try:
        _finish(comm.Ibcast([buffer, MPI.BYTE], root=0), deadline, "hand over the store's address")
    except BaseException:
        if server is not None:
            server.close()
        raise
    if size == 1:
        return Rendezvous(identity, None, b"", 1)
    message = json.loads(buffer.rstrip(b"\0"))
    if problem is not None:
        raise problem
    if "error" in message:
        raise BootstrapError(message["error"])
    return Rendezvous(identity, message["store"], bytes.fromhex(message["secret"]), 1, server)


def _exchange_names(comm: Comm, size: int, deadline: Deadline) -> list[str]:
    own = socket.gethostname().encode()[:256].ljust(256, b"\0")
    all_names = bytearray(256 * size)
    _finish(comm.Iallgather(own, all_names), deadline, "exchange host names")
    return [
        bytes(all_names[256 * i : 256 * (i + 1)]).rstrip(b"\0").decode(errors="replace") for i in range(size)
    ]


def _finish(request: Any, deadline: Deadline, what: str) -> None:
    """Waits for an MPI request until the deadline. Raises BootstrapTimeout with "MPI did not ``what``"."""
    while not request.Test():
        if deadline.passed():
            raise BootstrapTimeout(
                f"MPI did not {what} within {deadline.seconds:g} s: not all ranks have called init()"
            )
        time.sleep(0.001)


# ------------------------------------------------------------------------------------------ jobs of a communicator


def members_of(comm: Comm) -> tuple[int, ...]:
    """The ranks in MPI.COMM_WORLD of the processes of ``comm``; () for MPI.COMM_NULL."""
    if not comm:
        return ()
    MPI = sys.modules["mpi4py.MPI"]
    return tuple(_translated(MPI, comm, MPI.COMM_WORLD, "MPI.COMM_WORLD"))


class JobComm:
    """The job's own communicator, separate from the program's messages. ``given``: the one that init() was called
    with."""

    def __init__(self, MPI: MpiModule, given: Comm, own: Comm) -> None:
        self._MPI, self.given, self._own = MPI, given, own

    def ranks_of(self, comm: Comm) -> list[int]:
        """The job's ranks in ``comm``, in its order; [] for MPI.COMM_NULL.

        Raises ValueError for an intercommunicator, or if a process of ``comm`` is not in the job.
        """
        if not comm:
            return []
        _refuse_inter(comm, "ProcessSet")
        return _translated(self._MPI, comm, self._own, "this job")

    def close(self) -> None:
        """Frees the duplicate, unless MPI is finalized already."""
        own, self._own = self._own, None
        if own is not None and not self._MPI.Is_finalized():
            with contextlib.suppress(self._MPI.Exception):
                own.Free()


def find_store_of_comm(
    comm: Comm, environ: Mapping[str, str], deadline: Deadline
) -> tuple[Identity, Rendezvous, JobComm]:
    """The job of ``comm``'s processes.

    Raises:
        ValueError: the communicator cannot form a job.
        BootstrapError: its processes do not connect, or MPI is not the launcher's.
    """
    if not comm:
        raise ValueError(
            "horovod: init(comm=...) was given MPI.COMM_NULL (or a communicator that has been freed): this process is in "
            "no job. Call init() in those processes only that the communicator has."
        )
    _refuse_inter(comm, "init")
    launched = _launched(environ)
    MPI = start_mpi(launched.launcher)
    world = MPI.COMM_WORLD
    whole = Identity(world.Get_rank(), world.Get_size(), launcher=launched.launcher)
    if launched.launcher == "single":
        whole = Identity(whole.rank, whole.size, launcher="mpi")
    elif (whole.rank, whole.size) != (launched.rank, launched.size or whole.size):
        raise BootstrapError(
            f"horovod: {launched.launcher} says this is rank {launched.rank} of {launched.size}, MPI says "
            f"{whole.rank} of {whole.size}: {_started_otherwise(launched)}"
        )
    members = tuple(_translated(MPI, comm, world, "MPI.COMM_WORLD"))
    identity = whole
    if members != tuple(range(world.Get_size())):
        identity = Identity(
            comm.Get_rank(), comm.Get_size(), launcher=whole.launcher, members=members, launched=whole
        )
    own, request = comm.Idup()
    _finish(request, deadline, "duplicate the communicator that init() was given")
    # If this fails, the duplicate is not freed: freeing is collective, and the other ranks may not take part.
    return identity, _distribute(MPI, own, identity, deadline), JobComm(MPI, comm, own)


def _launched(environ: Mapping[str, str]) -> Identity:
    try:
        return identify(environ)
    except ValueError:
        return Identity(0, 1)  # the variables belong to another program; MPI knows rank and size


def _started_otherwise(launched: Identity) -> str:
    launcher = launchers.named(launched.launcher)
    if launcher is not None and launcher.never_starts_mpi:
        return f"{launcher.name} does not start MPI. Start with mpirun, or with horovodrun --mpi."
    return OTHER_MPI


def _refuse_inter(comm: Comm, what: str) -> None:
    if comm.Is_inter():
        raise ValueError(
            f"horovod: {what}: an intercommunicator joins two groups of processes, of which neither is the job. Merge it "
            "first: comm.Merge()."
        )


def _translated(MPI: MpiModule, comm: Comm, among: Comm, name: str) -> list[int]:
    """The ranks in ``among`` of the processes of ``comm``. Raises ValueError if one is not in ``among``."""
    theirs, ours = comm.Get_group(), among.Get_group()
    try:
        ranks: list[int] = MPI.Group.Translate_ranks(theirs, list(range(theirs.Get_size())), ours)
    finally:
        theirs.Free()
        ours.Free()
    outside = [rank for rank, there in enumerate(ranks) if there == MPI.UNDEFINED]
    if outside:
        raise ValueError(
            f"horovod: processes {shorten(tuple(outside))} of the communicator are not in {name}. Processes that MPI "
            "starts or connects while the program runs cannot take part."
        )
    return ranks


# ------------------------------------------------------------------------------------------ jobs of some ranks


def _communicator_of_members(MPI: MpiModule, identity: Identity, deadline: Deadline) -> Comm:
    """A communicator of ``identity.members``, in that order.

    Raises MembersDisagree if other ranks gave lists that contradict this one, BootstrapTimeout that names the missing
    ranks.
    """
    members, world = identity.members, MPI.COMM_WORLD
    assert members is not None
    attempt = _attempts[members] = _attempts.get(members, 0) + 1
    messages = _MemberMessages(MPI, identity, members, attempt)
    try:
        if identity.rank == 0:
            messages.wait_for_all_members(deadline)
        else:
            messages.wait_for_first_member(deadline)
    except MembersDisagree:
        messages.clear()
        raise
    finally:
        messages.close()
    world_group = world.Get_group()
    group = world_group.Incl(list(members))
    try:
        return world.Create_group(group, tag=_TAG)
    finally:
        group.Free()
        world_group.Free()


class _MemberMessages:
    """The messages among the members of a list: "here" to the first one and from it, "go" from it, and "no" with the
    reason from a rank whose list contradicts another's."""

    def __init__(self, MPI: MpiModule, identity: Identity, members: tuple[int, ...], attempt: int) -> None:
        self._MPI, self._world = MPI, MPI.COMM_WORLD
        self._members, self._attempt = members, attempt
        self._me = identity.launcher_rank
        self._partners = members[1:] if identity.rank == 0 else members[:1]
        self._sent: list[tuple[Any, bytes]] = []

    def wait_for_all_members(self, deadline: Deadline) -> None:
        self._send(self._partners, "here")
        missing = set(self._partners)
        while missing:
            source, kind = self._next(deadline, lambda: name_ranks(sorted(missing)))
            if kind == "here":
                missing.discard(source)
        self._send(self._partners, "go")

    def wait_for_first_member(self, deadline: Deadline) -> None:
        first = self._members[0]
        self._send([first], "here")
        while self._next(deadline, lambda: f"rank {first}, the first,") != (first, "go"):
            pass

    def _next(self, deadline: Deadline, missing: Callable[[], str]) -> tuple[int, str]:
        """(sender, kind) of the next message that belongs to this attempt."""
        members = self._members
        while True:
            message = self._receive(deadline)
            if message is None:
                raise BootstrapTimeout(
                    f"{missing()} has not called {init_text(members)} within {deadline.seconds:g} s "
                    "(ranks as the launcher counts them)"
                )
            source, kind, theirs, attempt, text = message
            if kind == "no":
                if theirs == members:
                    self._send(self._others(source), "no", text)
                    raise MembersDisagree(text)
            elif theirs == members:
                if kind == "here" or attempt == self._attempt:
                    return source, kind
            elif contradict(members, self._me, theirs, source):
                error = disagreement(members, self._me, theirs, source)
                self._send(self._others(source), "no", str(error))
                self._send([source], "no", str(error), theirs)
                raise error

    def _others(self, source: int) -> list[int]:
        return [rank for rank in self._partners if rank != source]

    def _send(
        self, ranks: Iterable[int], kind: str, text: str = "", members: Sequence[int] | None = None
    ) -> None:
        data = json.dumps([kind, members or self._members, self._attempt, text]).encode()
        for rank in ranks:
            self._sent.append((self._world.Isend([data, self._MPI.BYTE], dest=rank, tag=_TAG), data))

    def _receive(self, deadline: Deadline) -> tuple[int, str, tuple[int, ...], int, str] | None:
        """(sender, kind, members, attempt, text), or None when the deadline has passed."""
        MPI, status = self._MPI, self._MPI.Status()
        while not self._world.Iprobe(source=MPI.ANY_SOURCE, tag=_TAG, status=status):
            if deadline.passed():
                return None
            time.sleep(0.001)
        data = bytearray(status.Get_count(MPI.BYTE))
        self._world.Recv([data, MPI.BYTE], source=status.Get_source(), tag=_TAG)
        kind, members, attempt, text = json.loads(data)
        return status.Get_source(), kind, tuple(members), attempt, text

    def clear(self) -> None:
        """Receives the remaining messages of a failed attempt: some MPIs complain about messages that were never
        received."""
        deadline = Deadline(FAREWELL_SECONDS)
        while self._receive(deadline) is not None:
            pass

    def close(self) -> None:
        # Messages to ranks that failed may never be received, and MPI reads their bytes until they are.
        _unfinished[:] = [pair for pair in (*_unfinished, *self._sent) if not pair[0].Test()]
