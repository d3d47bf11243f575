"""The rendezvous on one host: each rank that is in init() listens at an abstract Unix socket.

The socket's name follows from the launcher's job, the rank, and what only this user can read about the launcher's
process: other users can neither guess a name before it is taken, nor one rank's name from another's. A rank that
connects sends the list of ranks it waits for. It receives the list that this rank waits for; from the first rank of an
equal list, which has started the store and made the secret, it also receives the store's address and the secret. Only
processes of the same user get an answer (both sides ask the kernel).
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from hvd_core._base.auth import new_secret
from hvd_core._base.messages import JsonLines, ProtocolError
from hvd_core._base.sockets import (
    BootstrapError,
    BootstrapTimeout,
    Deadline,
    DescriptorSet,
    peer_credentials,
)
from hvd_core._bootstrap.launchers.identity import Identity
from hvd_core._bootstrap.launchers.process import launcher_pid, private_facts
from hvd_core._bootstrap.rendezvous.base import FAREWELL_SECONDS, Rendezvous, RendezvousMethod
from hvd_core._bootstrap.store import StoreServer
from hvd_core._bootstrap.store.job_members import (
    Members,
    MembersDisagree,
    MemberWatch,
    contradict,
    disagreement,
    init_text,
    members_from_json,
)
from hvd_core._bootstrap.store.session import Session

_log = logging.getLogger("horovod")
_QUESTION_SECONDS = 2.0
_ANSWER_SECONDS = 5.0
# How often a waiting rank checks whether another member waits in a different job.
_LOOK_SECONDS = 0.5

Answer: TypeAlias = "dict[str, Any]"


class UnixSocket(RendezvousMethod):
    """The method 'unix'."""

    def find_store(
        self, identity: Identity, environ: Mapping[str, str], deadline: Deadline
    ) -> tuple[Identity, Rendezvous]:
        named = addresses(identity)
        if identity.rank != 0:
            return identity, _join_first_member(identity, named, deadline)
        secret = new_secret()
        server = StoreServer("127.0.0.1", secret)
        try:
            listener = RendezvousListener(named(identity.launcher_rank), identity, (server.address, secret))
        except BaseException:
            server.close()
            raise
        return identity, UnixRendezvous(identity, server.address, secret, listener, server)


class UnixRendezvous(Rendezvous):
    """A store that rank 0 has started on this host, and this rank's listener."""

    def __init__(
        self,
        identity: Identity,
        address: str,
        secret: bytes,
        listener: RendezvousListener,
        server: StoreServer | None = None,
    ) -> None:
        super().__init__(identity, address, secret, 1, server)
        self._listener: RendezvousListener | None = listener

    def open(self, session: Session) -> None:
        listener = self._listener
        assert listener is not None
        watch = _member_watch(self.identity, addresses(self.identity), session.deadline)

        def look() -> None:
            if listener.failure is not None:
                raise listener.failure
            watch.look()

        session.look = look

    def give_up(self, error: BaseException, own_connections: int) -> None:
        if self._listener is not None and isinstance(error, MembersDisagree):
            self._listener.give_up(error)
        else:
            super().give_up(error, own_connections)

    def close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def addresses(identity: Identity) -> Callable[[int], str]:
    """A function that maps a launcher's rank to the address of its listener."""
    whole = identity.whole
    assert whole.variable is not None
    pid, started = launcher_pid(whole.variable)
    parts = (
        whole.launcher,
        *whole.job,
        f"size={whole.size}",
        f"uid={os.geteuid()}",
        f"launcher={pid}:{started}",
        private_facts(whole.variable),
    )
    job = hashlib.sha256("|".join(parts).encode()).digest()
    return lambda rank: f"\0hvd-{hashlib.sha256(job + str(rank).encode()).hexdigest()[:40]}"


class RendezvousListener:
    """A thread that answers the ranks that connect.

    Args:
        address: of the abstract Unix socket.
        identity: of this process.
        offer: (address of the store, secret) if this rank serves the store.

    Raises:
        BootstrapError: another process listens there.
    """

    def __init__(self, address: str, identity: Identity, offer: tuple[str, bytes] | None = None) -> None:
        self._identity = identity
        self._answer: Answer = {"members": identity.members}
        if offer is not None:
            self._answer |= {"store": offer[0], "secret": offer[1].hex()}
        self._pids: dict[int, int] = {}
        self.failure: BaseException | None = None
        """The exception with which this rank must end its init(), because a rank that connected contradicts it."""
        self._failed_at = 0.0
        self._closing = False
        self._descriptors = DescriptorSet()
        self._socket = self._descriptors.own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            self._socket.bind(address)
        except OSError as error:
            self._descriptors.close()
            rank = identity.launcher_rank
            raise BootstrapError(
                f"another process already listens at the rendezvous address of rank {rank} ({error}): was rank {rank} "
                "started twice?"
            ) from error
        self._socket.listen(128)
        self._thread = threading.Thread(target=self._run, name="hvd-rendezvous", daemon=True)
        self._thread.start()

    def give_up(self, error: BaseException) -> None:
        """Answers the ranks that have given the same list, for one second: they learn the failure from the store."""
        self._set_failure(error)
        time.sleep(FAREWELL_SECONDS)

    def close(self) -> None:
        """Ends the thread and closes the socket; calling it again does nothing."""
        if not self._closing:
            self._closing = True
            self._socket.shutdown(socket.SHUT_RDWR)  # ends accept()
            self._thread.join()
            self._descriptors.close()

    def _set_failure(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure, self._failed_at = error, time.monotonic()

    def _run(self) -> None:
        while not self._closing:
            try:
                peer, _ = self._socket.accept()
            except OSError as error:
                if not self._closing:
                    _log.warning("rendezvous: could not accept a connection: %s; trying again", error)
                    time.sleep(0.1)
                continue
            self._descriptors.own(peer)
            try:
                self._reply(peer)
            except (OSError, ValueError, TypeError, ProtocolError) as error:
                _log.info("rendezvous: a connection failed: %s", error)
            finally:
                self._descriptors.discard(peer)

    def _reply(self, peer: socket.socket) -> None:
        pid, uid = peer_credentials(peer)
        if uid != os.geteuid():
            _log.warning(
                "rendezvous: refused process %d of user %d; the job runs as %d", pid, uid, os.geteuid()
            )
            return
        lines = JsonLines(peer)
        since, caller, rank, size, members = lines.receive(_QUESTION_SECONDS)
        if self.failure is not None and since > self._failed_at:
            return  # of a later init()
        answer = self._answer_to(pid, caller, rank, size, members_from_json(members))
        if answer is not None:
            lines.send(answer, _QUESTION_SECONDS)

    def _answer_to(self, pid: int, caller: int, rank: int, size: int, members: Members) -> Answer | None:
        own = self._identity
        if members != own.members:
            if self.failure is not None:
                return None
            if contradict(own.members, own.launcher_rank, members, caller):
                self._set_failure(disagreement(own.members, own.launcher_rank, members, caller))
            return {"members": own.members}
        if size != own.size or not 0 <= rank < size or rank == own.rank:
            return {
                "error": f"it says it is rank {rank} of {size}, but rank {own.rank} belongs to a job of {own.size}"
            }
        if self._pids.setdefault(rank, pid) != pid:
            return {"error": f"rank {rank} is already taken by process {self._pids[rank]}"}
        return self._answer


def ask(address: str, identity: Identity, deadline: Deadline) -> Answer | None:
    """The answer of the listener at ``address``; None if there is no listener, or it closed the connection. ``deadline``:
    of this init().

    Raises:
        BootstrapError: another user's process listens there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        lines, seconds = JsonLines(sock), max(0.001, min(_ANSWER_SECONDS, deadline.left()))
        try:
            sock.settimeout(seconds)
            sock.connect(address)
            pid, uid = peer_credentials(sock)
            if uid != os.geteuid():
                raise BootstrapError(
                    f"this job's rendezvous address on this host is taken by another user: process {pid} of user {uid} "
                    f"listens there, and this job runs as user {os.geteuid()}. Start with horovodrun, which needs no "
                    "such address."
                )
            whole = identity.launcher_rank
            lines.send([deadline.since, whole, identity.rank, identity.size, identity.members], seconds)
            answer: Answer = lines.receive(seconds)
            answer["members"] = members_from_json(answer.get("members"))
        except (OSError, ValueError, TypeError, AttributeError, ProtocolError):  # another program listens
            return None
    return answer


def _member_watch(identity: Identity, named: Callable[[int], str], deadline: Deadline) -> MemberWatch:
    def read(rank: int) -> tuple[Members, int] | None:
        answer = ask(named(rank), identity, deadline)
        return None if answer is None or "error" in answer else (answer["members"], 0)

    return MemberWatch(identity, read)


def _join_first_member(identity: Identity, named: Callable[[int], str], deadline: Deadline) -> UnixRendezvous:
    listener = RendezvousListener(named(identity.launcher_rank), identity)
    try:
        address, secret = _ask_first_member(identity, named, listener, deadline)
    except BaseException as error:
        if isinstance(error, MembersDisagree):
            listener.give_up(error)
        listener.close()
        raise
    return UnixRendezvous(identity, address, secret, listener)


def _ask_first_member(
    identity: Identity, named: Callable[[int], str], listener: RendezvousListener, deadline: Deadline
) -> tuple[str, bytes]:
    first = 0 if identity.members is None else identity.members[0]
    watch = _member_watch(identity, named, deadline)
    pause, look_at = 0.005, time.monotonic() + _LOOK_SECONDS
    while True:
        answer = ask(named(first), identity, deadline)
        if listener.failure is not None:
            raise listener.failure
        if answer is not None and "error" in answer:
            raise BootstrapError(f"rank {first} refused this process: {answer['error']}")
        if answer is not None and "store" in answer:
            return answer["store"], bytes.fromhex(answer["secret"])
        if answer is not None and contradict(
            identity.members, identity.launcher_rank, answer["members"], first
        ):
            raise disagreement(identity.members, identity.launcher_rank, answer["members"], first)
        if time.monotonic() >= look_at:
            watch.look()
            look_at = time.monotonic() + _LOOK_SECONDS
        if deadline.left() <= pause:
            raise BootstrapTimeout(_first_member_missing(identity, first, answer, deadline))
        time.sleep(pause)
        pause = min(0.05, pause * 2)


def _first_member_missing(identity: Identity, first: int, answer: Answer | None, deadline: Deadline) -> str:
    what = f"rank {first} has not shown up on this host within {deadline.seconds:g} s"
    if identity.members is not None:
        what += f" for {init_text(identity.members)}"
    if answer is not None:
        return (
            f"{what}: it is in {init_text(answer['members'])}, with other ranks. Give all members of a list the "
            "same list."
        )
    return (
        f"{what}. Has it failed, does it never call init(), or do the ranks run in separate containers? In the "
        "last case start with horovodrun; or set HOROVOD_STORE=rank0://HOST:PORT, with a free port on the host of rank "
        "0, and the same HOROVOD_SECRET_KEY for all processes."
    )
