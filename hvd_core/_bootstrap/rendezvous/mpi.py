"""The rendezvous over MPI (mpi4py): for ranks on several hosts, and jobs of an MPI communicator.

Every rank sends its host's name to the first rank of the job, which starts the store and answers with the store's address
and the secret. That is all that is sent over MPI, and the program may use MPI for itself. These are messages and no
collective call: a collective would wait indefinitely for ranks that do not come or gave another list
(init(comm=[...])).

Called on the thread that runs init(), add_process_set() or shutdown(), never by the engine. Starts MPI if the program
has not done so, and leaves it running.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from hvd_core._base.auth import new_secret
from hvd_core._base.sockets import BootstrapError, BootstrapTimeout, Deadline, address_towards
from hvd_core._bootstrap import launchers
from hvd_core._bootstrap.launchers.identity import Identity, identify
from hvd_core._bootstrap.rendezvous.base import Rendezvous, RendezvousMethod
from hvd_core._bootstrap.rendezvous.mpi4py_support import OTHER_MPI, start_mpi
from hvd_core._bootstrap.store import StoreServer, encryption
from hvd_core._bootstrap.store.job_members import (
    Members,
    MembersDisagree,
    check_range,
    contradict,
    disagreement,
    init_text,
    members_from_json,
    name_ranks,
    shorten,
)

# mpi4py has no type hints that are there without it.
Comm: TypeAlias = Any
MpiModule: TypeAlias = Any

# The tag of our messages on MPI.COMM_WORLD; programs are unlikely to use it.
_TAG = 18550
_unfinished: list[tuple[Any, bytes]] = []
_attempts: dict[Members, int] = {}
# Messages on MPI.COMM_WORLD about other lists of ranks: of ranks that are in a later init() already.
_early: list[dict[str, Any]] = []


class OverMpi(RendezvousMethod):
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
        members = identity.members
        if members is not None:
            check_range(members, whole)
        if members is None or members == tuple(range(size)):
            return whole, _find_store(MPI, world, whole, range(size), deadline)
        identity = replace(identity, launched=whole)
        return identity, _find_store(MPI, world, identity, members, deadline)


def _find_store(
    MPI: MpiModule, comm: Comm, identity: Identity, ranks: Iterable[int], deadline: Deadline
) -> Rendezvous:
    """The Rendezvous of the job that has these ranks of ``comm``; the first of them starts the server.

    Raises MembersDisagree if other ranks gave lists that contradict this one, BootstrapTimeout that names the missing
    ranks, BootstrapError with the reason why the first rank could not start the store.
    """
    first, *others = ranks
    if not others:
        return Rendezvous(identity, None, b"", 1)
    messages = _Messages(MPI, comm, identity)
    try:
        if comm.Get_rank() == first:
            return _serve(messages, identity, others, deadline)
        return _ask(messages, identity, first, deadline)
    finally:
        messages.close()


def _serve(messages: _Messages, identity: Identity, others: list[int], deadline: Deadline) -> Rendezvous:
    came: dict[int, Message] = {}
    try:
        # To all, so that the first ranks of lists that contradict each other learn of it.
        messages.send(others, {})
        while len(came) < len(others):
            message = messages.receive(deadline)
            if message is None:
                missing = name_ranks([rank for rank in others if rank not in came])
                raise messages.timed_out(missing, deadline)
            came[message["source"]] = message
        names = [message["host"] for message in came.values()]
        encryption.refuse_readable_secret(len({socket.gethostname(), *names}) > 1, "MPI")
        secret = new_secret()
        server = StoreServer(address_towards(names), secret)
    except (BootstrapError, OSError) as error:
        for message in came.values():
            messages.refuse(message, error)
        raise
    for message in came.values():
        messages.answer(message, {"store": server.address, "secret": secret.hex()})
    return Rendezvous(identity, server.address, secret, 1, server)


def _ask(messages: _Messages, identity: Identity, first: int, deadline: Deadline) -> Rendezvous:
    messages.send([first], {"host": socket.gethostname()})
    while (answer := messages.receive(deadline)) is not None:
        if answer["source"] == first and "store" in answer:
            return Rendezvous(identity, answer["store"], bytes.fromhex(answer["secret"]), 1)
    raise messages.timed_out(f"rank {first}, the first,", deadline)


Message: TypeAlias = "dict[str, Any]"


class _Messages:
    """Messages among the ranks of one job during one init(): JSON objects that carry the list of ranks and the number of
    the sender's init() with that list."""

    def __init__(self, MPI: MpiModule, comm: Comm, identity: Identity) -> None:
        self._MPI, self._comm = MPI, comm
        self._members, self._me = identity.members, identity.launcher_rank
        self._attempt = _attempts[self._members] = _attempts.get(self._members, 0) + 1
        self._sent: list[tuple[Any, bytes]] = []
        self._kept: list[Message] = []
        if comm == MPI.COMM_WORLD:
            self._kept, _early[:] = _early[:], []

    def send(self, ranks: Iterable[int], message: Message) -> None:
        data = json.dumps({"members": self._members, "attempt": self._attempt} | message).encode()
        for rank in ranks:
            self._sent.append((self._comm.Isend([data, self._MPI.BYTE], dest=rank, tag=_TAG), data))

    def answer(self, message: Message, answer: Message) -> None:
        """Sends an answer, which the sender of ``message`` ignores if it is in a later init() meanwhile."""
        self.send(
            [message["source"]], answer | {"members": message["members"], "answers": message["attempt"]}
        )

    def refuse(self, message: Message, error: Exception) -> None:
        self.answer(message, {"error": str(error), "disagrees": isinstance(error, MembersDisagree)})

    def receive(self, deadline: Deadline) -> Message | None:
        """The next message with a rank's host, or the answer with the store, from a rank with the same list.

        None when the deadline has passed. Raises MembersDisagree, and BootstrapError for an error that was sent."""
        while (message := self._next(deadline)) is not None:
            theirs, source = members_from_json(message["members"]), message["source"]
            if "answers" in message:
                if theirs != self._members or message["answers"] != self._attempt:
                    continue
                if "error" in message:
                    raise (MembersDisagree if message["disagrees"] else BootstrapError)(message["error"])
                return message
            if theirs == self._members and "host" in message:
                return message
            if contradict(self._members, self._me, theirs, source):
                error = disagreement(self._members, self._me, theirs, source)
                self.refuse(message, error)
                raise error
            if theirs != self._members:
                _early.append(message)
        return None

    def _next(self, deadline: Deadline) -> Message | None:
        if self._kept:
            return self._kept.pop(0)
        MPI, status = self._MPI, self._MPI.Status()
        while not self._comm.Iprobe(source=MPI.ANY_SOURCE, tag=_TAG, status=status):
            if deadline.passed():
                return None
            time.sleep(0.001)
        data = bytearray(status.Get_count(MPI.BYTE))
        self._comm.Recv([data, MPI.BYTE], source=status.Get_source(), tag=_TAG)
        message: Message = json.loads(data)
        message["source"] = status.Get_source()
        return message

    def timed_out(self, missing: str, deadline: Deadline) -> BootstrapTimeout:
        return BootstrapTimeout(
            f"{missing} has not called {init_text(self._members)} within {deadline.seconds:g} s (ranks as the launcher "
            "counts them)"
        )

    def close(self) -> None:
        _early.extend(self._kept)
        # Messages to ranks that failed may never be received, and MPI reads their bytes until they are.
        _unfinished[:] = [pair for pair in (*_unfinished, *self._sent) if not pair[0].Test()]


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
    while not request.Test():
        if deadline.passed():
            raise BootstrapTimeout(
                f"MPI did not duplicate the communicator that init() was given within {deadline.seconds:g} s: not all "
                "ranks have called init()"
            )
        time.sleep(0.001)
    # If this fails, the duplicate is not freed: freeing is collective, and the other ranks may not take part.
    found = _find_store(MPI, own, identity, range(comm.Get_size()), deadline)
    return identity, found, JobComm(MPI, comm, own)


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
