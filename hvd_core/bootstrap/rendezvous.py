"""Brings a process to the job's store when the launcher gives none.

Rank 0 starts the store and makes the secret. On one host it hands both over through an abstract Unix socket
whose name follows from the job's identity, to processes of the same user only (checked by the kernel, both
ways); over several hosts they travel over MPI. Called once per init() on the thread that runs it.
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

from .auth import new_secret
from .descriptors import DescriptorSet
from .identity import launcher_process
from .store_server import StoreServer
from .wire import BootstrapError, BootstrapTimeout, Deadline, recv_exact, send_exact

_log = logging.getLogger(__name__)
_ASK = struct.Struct("<8sII")
_ASK_MAGIC = b"hvdmeet1"
_CREDENTIALS = struct.Struct("3i")

_inits = 0


class Meeting:
    """Where the store is and the secret that opens it; rank 0 also holds what serves the others."""

    def __init__(self, size, address, secret, epoch, dies_with_rank_zero=True, server=None, desk=None):
        self.size, self.address, self.secret, self.epoch = size, address, secret, epoch
        self.dies_with_rank_zero = dies_with_rank_zero
        self.server = server
        self._desk = desk

    def close_desk(self):
        """Stops handing the secret out. The next init() must not meet this one's store."""
        if self._desk is not None:
            self._desk.close()
            self._desk = None

    def close(self):
        """Stops everything; calling it again does nothing."""
        self.close_desk()
        if self.server is not None:
            self.server.close()


def meet(identity, environ, deadline):
    """The Meeting of this process's job. Raises BootstrapError that says what is missing."""
    global _inits
    _inits += 1
    if identity.store is not None:
        # The launcher's store outlives an init(); all processes count their inits alike.
        return Meeting(identity.size, identity.store, identity.secret, _inits, dies_with_rank_zero=False)
    how = environ.get("HOROVOD_RENDEZVOUS", "auto")
    if how not in ("auto", "unix", "mpi4py"):
        raise ValueError(f"HOROVOD_RENDEZVOUS={how!r} is not one of 'auto', 'unix', 'mpi4py'")
    one_host = identity.size is not None and identity.local_size == identity.size
    if how == "unix" or (how == "auto" and one_host):
        return _meet_on_this_host(identity, deadline)
    from . import mpi_rendezvous

    if how == "mpi4py" or mpi_rendezvous.available():
        size, address, secret, server = mpi_rendezvous.meet(identity, deadline)
        return Meeting(size, address, secret, 1, server=server)
    if identity.size is not None and identity.local_size is None:
        # The launcher does not say how the ranks are spread: they may well all be here.
        return _meet_on_this_host(identity, deadline)
    raise BootstrapError(_what_is_missing(identity))


def _what_is_missing(identity):
    if identity.size is None:
        what = (
            f"{identity.variable} is set, but nothing in the environment says how many processes the job has"
        )
    else:
        what = (
            f"the job has {identity.size} processes and {identity.launcher} started {identity.local_size} of "
            "them on this host, so they need a way to find each other"
        )
    return (
        f"{what}. Install mpi4py for the MPI you launch with (pip install mpi4py), or start with horovodrun."
    )


def peer_uid(sock):
    """User id of the process at the other end of a Unix socket, as the kernel saw it connect or listen."""
    return peer_credentials(sock)[1]


def peer_credentials(sock):
    """(pid, uid) of the other end; pid is 0 when it lives in a pid namespace this one cannot see."""
    pid, uid, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid


def _meeting_point(identity):
    parts = (
        identity.launcher,
        *identity.job,
        f"size={identity.size}",
        f"uid={os.geteuid()}",
        f"launcher={launcher_process(identity.variable)}",
    )
    return "\0hvd-" + hashlib.sha256("|".join(parts).encode()).hexdigest()[:40]


def _meet_on_this_host(identity, deadline):
    name = _meeting_point(identity)
    if identity.rank != 0:
        address, secret = _ask_rank_zero(name, identity, deadline)
        return Meeting(identity.size, address, secret, 1)
    secret = new_secret()
    server = StoreServer("127.0.0.1", secret)
    try:
        desk = _Desk(name, identity.size, server.address, secret)
    except BaseException:
        server.close()
        raise
    return Meeting(identity.size, server.address, secret, 1, server=server, desk=desk)


class _Desk:
    """Rank 0's side: a thread that tells each rank of the job, once, where the store is."""

    def __init__(self, name, size, address, secret):
        self._size = size
        self._told = {}
        self._answer = {"store": address, "secret": secret.hex()}
        self._descriptors = DescriptorSet()
        self._listener = self._descriptors.own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            self._listener.bind(name)
        except OSError as error:
            self._descriptors.close()
            raise BootstrapError(
                f"another process already holds this job's meeting point ({error}): was rank 0 started twice?"
            ) from error
        self._listener.listen(128)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="hvd-rendezvous", daemon=True)
        self._thread.start()

    def close(self):
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
        magic, rank, size = _ASK.unpack(recv_exact(peer, _ASK.size, deadline))
        if magic != _ASK_MAGIC:
            return
        answer = self._answer
        if size != self._size or not 0 < rank < size:
            answer = {
                "error": f"it says it is rank {rank} of {size}, but rank 0 belongs to a job of {self._size}"
            }
        elif self._told.setdefault(rank, pid) != pid:
            answer = {"error": f"rank {rank} is already taken by process {self._told[rank]}"}
        text = json.dumps(answer).encode()
        send_exact(peer, struct.pack("<I", len(text)) + text, deadline)


def _ask_rank_zero(name, identity, deadline):
    pause = 0.005
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            try:
                sock.settimeout(max(0.001, deadline.left()))
                sock.connect(name)
                if peer_uid(sock) != os.geteuid():
                    raise BootstrapError(
                        f"a process of user {peer_uid(sock)} holds this job's meeting point on this host; "
                        "the job "
                        f"runs as user {os.geteuid()}. Start with horovodrun, which needs no meeting point."
                    )
                send_exact(sock, _ASK.pack(_ASK_MAGIC, identity.rank, identity.size), deadline)
                (count,) = struct.unpack("<I", recv_exact(sock, 4, deadline))
                answer = json.loads(recv_exact(sock, count, deadline))
                break
            except OSError as error:
                last = error
        if deadline.left() <= pause:
            raise BootstrapTimeout(
                f"rank 0 has not shown up on this host within {deadline.seconds:g} s ({last}). Has it "
                "failed, does "
                "it never call init(), or do the ranks run in separate containers? In the last case start "
                "with "
                "horovodrun, or install mpi4py and set HOROVOD_RENDEZVOUS=mpi4py."
            )
        time.sleep(pause)
        pause = min(0.05, pause * 2)
    if "error" in answer:
        raise BootstrapError(f"rank 0 turned this process away: {answer['error']}")
    return answer["store"], bytes.fromhex(answer["secret"])
