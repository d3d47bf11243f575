"""Accepts the connections of known ranks and refuses all others.

One short-lived thread per listener, so that a silent or invalid connection delays no rank. wait_for() may be called
from any thread; close() ends the thread.
"""

import logging
import os
import selectors
import threading
import time

from hvd_core._base.auth import HANDSHAKE_SECONDS, ServerHandshake
from hvd_core._base.sockets import AuthenticationError, Deadline, DescriptorSet, send_exact

_log = logging.getLogger("horovod")
_MAX_UNPROVEN = 256
# How long the system may refuse to accept a connection, for want of a descriptor say, before that is a failure.
_PATIENCE_SECONDS = 2


class Acceptor:
    """Takes over ``listener`` and accepts each rank of ``ranks`` once.

    A connection is accepted when its peer has proved that it knows ``secret`` for ``purpose`` and has sent ``epoch``.
    ``allow(sock)``, if given, may refuse it before that.
    """

    def __init__(self, listener, secret, purpose, epoch, ranks, allow=None):
        self._secret, self._purpose, self._epoch, self._allow = secret, purpose, epoch, allow
        self._ranks = frozenset(ranks)
        self._accepted = {}
        self._taken = set()
        self._changed = threading.Condition()
        self._descriptors = DescriptorSet()
        self._listener = self._descriptors.own(listener)
        listener.setblocking(False)
        self._unproven = {}  # socket -> (handshake, its deadline), oldest first
        self._refused_since = None  # since when the system has refused all connections
        self._failure = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="hvd-accept", daemon=True)
        try:
            self._wake = self._descriptors.own(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
            self._selector = self._descriptors.own(selectors.EpollSelector())
            self._selector.register(listener, selectors.EVENT_READ)
            self._selector.register(self._wake, selectors.EVENT_READ)
            self._thread.start()
        except BaseException:  # for want of a descriptor or a thread, say
            self._descriptors.close()
            raise

    def wait_for(self, rank, seconds):
        """(the socket of ``rank``, the connection's key), or None if it did not connect in time. The caller owns the
        socket then. Raises OSError if the system does not let this process accept connections."""
        deadline = Deadline(seconds)
        with self._changed:
            while rank not in self._accepted and self._failure is None and not deadline.passed():
                self._changed.wait(deadline.left())
            if rank not in self._accepted:
                if self._failure is not None:
                    raise self._failure
                return None
            sock, key = self._accepted.pop(rank)
            return self._descriptors.disown(sock), key

    def close(self):
        """Stops accepting, and closes the sockets that wait_for() has not returned."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._descriptors.close()

    def _run(self):
        while not self._closing:
            for key, _ in self._selector.select(1.0 if self._unproven else None):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is not self._wake and key.fileobj in self._unproven:
                    self._read(key.fileobj)
            now = time.monotonic()
            for sock in [sock for sock, (_, end) in self._unproven.items() if end < now]:
                self._drop(sock, "no proof of the secret in time")

    def _accept(self):
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._is_refused(error)
            return
        self._refused_since = None
        with self._changed:
            self._descriptors.own(sock)
        sock.setblocking(False)
        if len(self._unproven) >= _MAX_UNPROVEN:
            self._drop(next(iter(self._unproven)), "too many unproven connections")
        handshake = ServerHandshake(self._secret, self._purpose)
        self._unproven[sock] = (handshake, time.monotonic() + HANDSHAKE_SECONDS)
        self._selector.register(sock, selectors.EVENT_READ)
        if self._allow is not None and not self._allow(sock):
            self._drop(sock, "not allowed")
            return
        try:
            # 40 bytes into an empty send buffer never block.
            sock.send(handshake.challenge)
        except OSError as error:
            self._drop(sock, error)

    def _is_refused(self, error):
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
            _log.warning("could not accept a connection: %s; trying again", error)
        if now - self._refused_since > _PATIENCE_SECONDS:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        time.sleep(0.1)

    def _read(self, sock):
        handshake, _ = self._unproven[sock]
        try:
            data = sock.recv(4096)
            if not data:
                raise ConnectionError("closed by the peer")
            handshake.feed(data)
            if not handshake.done:
                return
            if handshake.rest or handshake.epoch != self._epoch or handshake.rank not in self._ranks:
                raise AuthenticationError(
                    f"rank {handshake.rank} of init {handshake.epoch} is not expected here"
                )
            if handshake.rank in self._taken:
                raise AuthenticationError(f"rank {handshake.rank} is connected already")
            send_exact(sock, handshake.confirm, Deadline(1))
        except BlockingIOError:
            return
        except (OSError, AuthenticationError) as error:
            self._drop(sock, error)
            return
        del self._unproven[sock]
        self._selector.unregister(sock)
        self._taken.add(handshake.rank)
        with self._changed:
            self._accepted[handshake.rank] = sock, handshake.key
            self._changed.notify_all()

    def _drop(self, sock, reason):
        _log.info("refused a connection: %s", reason)
        del self._unproven[sock]
        self._selector.unregister(sock)
        with self._changed:
            self._descriptors.discard(sock)
