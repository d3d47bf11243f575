"""The meeting point on one host: an abstract Unix socket of each rank that is in init().

The name follows from the launcher's job and the rank. Whoever comes says which ranks it waits for, and is told which ones
this rank waits for and, by the first of the same ranks, where the store is. Only processes of the same user get an answer
(checked by the kernel, both ways).
"""

import contextlib
import hashlib
import json
import logging
import os
import socket
import struct
import threading
import time

from .descriptors import DescriptorSet
from .identity import launcher_process
from .membership import MembersDisagree, contradict, disagreement
from .wire import BootstrapError, Deadline, recv_exact, send_exact

_log = logging.getLogger(__name__)
# magic, since when the caller has been in this init() (monotonic clock, s), its rank in the launcher's job and in its
# own, size of its own, how many u32 follow: the launcher's ranks that make up its job, none for all of them.
_ASK = struct.Struct("<8sd4I")
_ASK_MAGIC = b"hvdmeet2"
_CREDENTIALS = struct.Struct("3i")
_MOST_MEMBERS = 1 << 20
_ANSWER_SECONDS = 5.0
_LAST_WORDS_SECONDS = 1.0


def peer_uid(sock):
    """User id of the process at the other end of a Unix socket, as the kernel saw it connect or listen."""
    return peer_credentials(sock)[1]


def peer_credentials(sock):
    """(pid, uid) of the other end; pid is 0 when it lives in a pid namespace this one cannot see."""
    pid, uid, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid


def names(identity):
    """A function from the launcher's rank to the name of its desk."""
    whole = identity.whole
    parts = (
        whole.launcher,
        *whole.job,
        f"size={whole.size}",
        f"uid={os.geteuid()}",
        f"launcher={launcher_process(whole.variable)}",
    )
    job = hashlib.sha256("|".join(parts).encode()).hexdigest()[:40]
    return lambda rank: f"\0hvd-{job}-{rank}"


class Desk:
    """A thread that answers whoever comes. ``offer``: (address of the store, secret) where this rank serves it.

    ``trouble`` is the reason to give up that somebody who came has brought with it, or None.
    """

    def __init__(self, name, identity, offer=None):
        self._identity = identity
        self._answer = {"members": identity.members}
        if offer is not None:
            self._answer |= {"store": offer[0], "secret": offer[1].hex()}
        self._told = {}
        self.trouble = None
        self._descriptors = DescriptorSet()
        self._listener = self._descriptors.own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            self._listener.bind(name)
        except OSError as error:
            self._descriptors.close()
            rank = identity.launcher_rank
            raise BootstrapError(
                f"another process already holds the meeting point of rank {rank} ({error}): was rank {rank} started "
                "twice?"
            ) from error
        self._listener.listen(128)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="hvd-rendezvous", daemon=True)
        self._thread.start()

    def give_up(self, error):
        """Tells those who wait for this rank why it gives up, for as long as they need to hear it."""
        self._trouble_is(error)
        time.sleep(_LAST_WORDS_SECONDS)

    def _trouble_is(self, error):
        if self.trouble is None:
            self._given_up = time.monotonic()
            self.trouble = error

    def close(self):
        """Leaves; nobody gets an answer any more."""
        self._closing = True
        # Unlike close(), shutdown() wakes the thread that is in accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._descriptors.close()

    def _run(self):
        while not self._closing:
            try:
                peer, _ = self._listener.accept()
            except OSError as error:
                if not self._closing:
                    _log.warning("rendezvous: could not accept a connection: %s; trying again", error)
                    time.sleep(0.2)
                continue
            self._descriptors.own(peer)
            try:
                self._tell(peer)
            except OSError as error:
                _log.info("rendezvous: a connection came to nothing: %s", error)
            finally:
                self._descriptors.discard(peer)

    def _tell(self, peer):
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
        if self.trouble is not None:
            # Who has come later is in another init(), which this rank may yet come to.
            waited = members == own.members and since < self._given_up
            return {"failed": str(self.trouble)} if waited else {"gone": True}
        if members != own.members:
            if contradict(own.members, own.launcher_rank, members, caller):
                self._trouble_is(disagreement(own.members, own.launcher_rank, members, caller))
            return {"members": own.members}
        if size != own.size or not 0 <= rank < size or rank == own.rank:
            return {
                "error": f"it says it is rank {rank} of {size}, but rank {own.rank} belongs to a job of {own.size}"
            }
        if self._told.setdefault(rank, pid) != pid:
            return {"error": f"rank {rank} is already taken by process {self._told[rank]}"}
        return self._answer


def ask(name, identity, deadline):
    """The answer (dict) of the desk called ``name``; None when nobody is there, or it went away. ``deadline`` is that of
    this init().

    Raises BootstrapError when another user's process sits there, or has given up what this rank waits for.
    """
    members = identity.members or ()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            limit = Deadline(min(_ANSWER_SECONDS, deadline.left()))
            sock.settimeout(max(0.001, limit.left()))
            sock.connect(name)
            if peer_uid(sock) != os.geteuid():
                raise BootstrapError(
                    f"a process of user {peer_uid(sock)} holds this job's meeting point on this host; the job "
                    f"runs as user {os.geteuid()}. Start with horovodrun, which needs no meeting point."
                )
            head = _ASK.pack(
                _ASK_MAGIC, deadline.since, identity.launcher_rank, identity.rank, identity.size, len(members)
            )
            send_exact(sock, head + struct.pack(f"<{len(members)}I", *members), limit)
            (count,) = struct.unpack("<I", recv_exact(sock, 4, limit))
            answer = json.loads(recv_exact(sock, count, limit))
        except OSError:
            return None
    if "gone" in answer:
        return None
    if "failed" in answer:
        raise MembersDisagree(answer["failed"])
    if answer.get("members") is not None:
        answer["members"] = tuple(answer["members"])
    return answer
