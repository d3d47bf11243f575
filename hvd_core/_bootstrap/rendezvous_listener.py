"""The rendezvous on one host: each rank that is in init() listens at an abstract Unix socket.

The socket's name follows from the launcher's job, the rank, and what only this user can read about the launcher's
process: other users can neither guess a name before it is taken, nor one rank's name from another's. A rank that
connects sends the list of ranks it waits for. It receives the list that this rank waits for; from the first rank of an
equal list it also receives the store's address and the secret. Only processes of the same user get an answer (both sides
ask the kernel).
"""

import hashlib
import json
import logging
import os
import socket
import struct
import time

from hvd_core._base.listener import Listener, ListenerThread
from hvd_core._base.sockets import (
    BootstrapError,
    Deadline,
    DescriptorSet,
    peer_credentials,
    recv_exact,
    send_exact,
)
from hvd_core._bootstrap.identity import launcher_process, private_facts
from hvd_core._bootstrap.job_members import MembersDisagree, contradict, disagreement

_log = logging.getLogger("horovod")
# Magic, the time when the sender entered this init() (monotonic clock, s), its rank in the launcher's job, its rank and
# size in its own job, and the number of u32 that follow: the launcher's ranks of its own job, none if these are all.
_ASK = struct.Struct("<8sd4I")
_ASK_MAGIC = b"hvdmeet2"
_MOST_MEMBERS = 1 << 20
_MOST_ANSWER_BYTES = 64 << 20
_ANSWER_SECONDS = 5.0
_FAREWELL_SECONDS = 1.0


def address_of(identity):
    """A function that maps a launcher's rank to the address of its listener."""
    whole = identity.whole
    parts = (
        whole.launcher,
        *whole.job,
        f"size={whole.size}",
        f"uid={os.geteuid()}",
        f"launcher={launcher_process(whole.variable)}",
        private_facts(whole.variable),
    )
    job = hashlib.sha256("|".join(parts).encode()).digest()
    return lambda rank: f"\0hvd-{hashlib.sha256(job + str(rank).encode()).hexdigest()[:40]}"


class RendezvousListener:
    """A thread that answers the ranks that connect. ``offer``: (address of the store, secret) if this rank serves the
    store.

    ``failure``: the exception with which this rank must end its init(), because a rank that connected contradicts it; or
    None.
    """

    def __init__(self, address, identity, offer=None):
        self._identity = identity
        self._answer = {"members": identity.members}
        if offer is not None:
            self._answer |= {"store": offer[0], "secret": offer[1].hex()}
        self._pids = {}
        self.failure = None
        self._descriptors = DescriptorSet()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(address)
        except OSError as error:
            listener.close()
            raise BootstrapError(_taken(address, identity.launcher_rank, error)) from error
        listener.listen(128)
        self._thread = ListenerThread(Listener(listener, self._serve, _report_pause), "hvd-rendezvous")

    def give_up(self, error):
        """Answers the ranks that wait for this one with the failure ``error``, for one second."""
        self._set_failure(error)
        time.sleep(_FAREWELL_SECONDS)

    def _set_failure(self, error):
        if self.failure is None:
            self._failed_at = time.monotonic()
            self.failure = error

    def close(self):
        """Ends the thread and closes the socket."""
        self._thread.close()

    def _serve(self, peer):
        self._descriptors.own(peer)
        try:
            self._reply(peer)
        except OSError as error:
            _log.info("rendezvous: a connection failed: %s", error)
        finally:
            self._descriptors.discard(peer)

    def _reply(self, peer):
        pid, uid = peer_credentials(peer)
        if uid != os.geteuid():
            _log.warning(
                "rendezvous: refused process %d of user %d; the job runs as %d", pid, uid, os.geteuid()
            )
            return
        deadline = Deadline(2)
        magic, since, caller, rank, size, count = _ASK.unpack(recv_exact(peer, _ASK.size, deadline))
        if magic != _ASK_MAGIC or count > _MOST_MEMBERS:
            return
        members = struct.unpack(f"<{count}I", recv_exact(peer, 4 * count, deadline)) if count else None
        answer = self._answer_to(pid, since, caller, rank, size, members)
        text = json.dumps(answer).encode()
        send_exact(peer, struct.pack("<I", len(text)) + text, deadline)

    def _answer_to(self, pid, since, caller, rank, size, members):
        own = self._identity
        if self.failure is not None:
            # A rank that entered init() later waits for the next init() of this rank.
            waited = members == own.members and since < self._failed_at
            return {"failed": str(self.failure)} if waited else {"gone": True}
        if members != own.members:
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


def _report_pause(error):
    _log.warning("rendezvous: could not accept a connection: %s; trying again", error)


def _taken(address, rank, error):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.settimeout(1)
            sock.connect(address)
            pid, uid = peer_credentials(sock)
        except OSError:
            pid, uid = 0, os.geteuid()
    process = f"process {pid}" if pid else "a process"
    if uid != os.geteuid():
        return f"the rendezvous address of rank {rank} is taken by another user: {_other_user(process, uid)}"
    return (
        f"{process if pid else 'another process'} already listens at the rendezvous address of rank {rank} ({error}): "
        f"was rank {rank} started twice?"
    )


def _other_user(process, uid):
    return (
        f"{process} of user {uid} listens there, and this job runs as user {os.geteuid()}. Start with horovodrun, which "
        "needs no such address."
    )


def ask(address, identity, deadline):
    """The answer (dict) of the listener at ``address``; None if there is no listener, or it closed the connection.
    ``deadline``: the deadline of this init().

    Raises BootstrapError if another user's process listens there, MembersDisagree if that rank failed because the lists
    of ranks contradict each other.
    """
    members = identity.members or ()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            limit = Deadline(min(_ANSWER_SECONDS, deadline.left()))
            sock.settimeout(max(0.001, limit.left()))
            sock.connect(address)
            pid, uid = peer_credentials(sock)
            if uid != os.geteuid():
                raise BootstrapError(
                    "this job's rendezvous address on this host is taken by another user: "
                    + _other_user(f"process {pid}" if pid else "a process", uid)
                )
            head = _ASK.pack(
                _ASK_MAGIC, deadline.since, identity.launcher_rank, identity.rank, identity.size, len(members)
            )
            send_exact(sock, head + struct.pack(f"<{len(members)}I", *members), limit)
            (count,) = struct.unpack("<I", recv_exact(sock, 4, limit))
            answer = json.loads(recv_exact(sock, min(count, _MOST_ANSWER_BYTES), limit))
        except (OSError, ValueError, RecursionError):
            return None
    if not isinstance(answer, dict):
        return None
    if "gone" in answer:
        return None
    if "failed" in answer:
        raise MembersDisagree(answer["failed"])
    if answer.get("members") is not None:
        answer["members"] = tuple(answer["members"])
    return answer
