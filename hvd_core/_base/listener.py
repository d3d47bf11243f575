"""A listening socket that first lets each peer prove the secret (auth.py).

It parses nothing else before that, and a silent or wrong peer delays nobody.
It does no I/O of its own accord: an event loop registers and advances it.

    listener = AuthenticatedListener(listen("10.0.0.1"), secret, b"link", on_authenticated=admit)
    listener.register(selector)
    while running:
        for key, _ in selector.select(listener.wait_s()):
            key.data()
        listener.advance(time.monotonic())
    listener.close()

or a `ListenerThread` does that. Callbacks run on the loop's thread. All sockets are closed in a forked child.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable

from hvd_core._base.auth import HANDSHAKE_SECONDS, ServerHandshake
from hvd_core._base.sockets import AuthenticationError, DescriptorSet

MAX_UNAUTHENTICATED = 256
"""Connections that may be in their handshake; all ranks of a job connect at about the same time."""
_CHUNK = 4096


def listen(host: str, port: int = 0, backlog: int = 256) -> socket.socket:
    """A TCP socket that listens on ``host``, on a free port unless ``port`` is given. Raises OSError."""
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=backlog)


def _ignore(_: object) -> None:
    pass


class AuthenticatedListener:
    """Accepts connections whose peer proves that it knows ``secret``.

    The function that the loop calls for the listening socket raises OSError if this process can have no further
    descriptor.

    Args:
        listener: a listening socket, which this object takes over.
        secret, purpose: of the handshake.
        on_authenticated: called with each connection that has proved the secret, and its handshake: rank, epoch, key, and
            ``rest``, bytes that came after the proof. The connection does not block and is the callee's from then on.
        on_refused: called with the reason when this side closes a connection; not when the peer leaves by itself, as
            probes of ports do.
        allow: may refuse a connection before its handshake.
        check: called with a handshake before it is confirmed; it may raise AuthenticationError.
        max_pending: handshakes at a time; the oldest one ends for a newer one.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        purpose: bytes,
        on_authenticated: Callable[[socket.socket, ServerHandshake], object],
        on_refused: Callable[[str], object] = _ignore,
        allow: Callable[[socket.socket], bool] | None = None,
        check: Callable[[ServerHandshake], object] | None = None,
        max_pending: int = MAX_UNAUTHENTICATED,
    ) -> None:
        self._descriptors = DescriptorSet()
        self._listener = self._descriptors.own(listener)
        listener.setblocking(False)
        self._secret, self._purpose = secret, purpose
        self._on_authenticated, self._on_refused = on_authenticated, on_refused
        self._allow, self._check, self._max_pending = allow, check, max_pending
        self._selector: selectors.BaseSelector | None = None
        # Each with its deadline, oldest first.
        self._pending: dict[socket.socket, tuple[ServerHandshake, float]] = {}

    def register(self, selector: selectors.BaseSelector) -> None:
        """Registers the socket; the data of each registration is a function to call when it is ready."""
        self._selector = selector
        selector.register(self._listener, selectors.EVENT_READ, self._begin)

    def due(self) -> list[float]:
        """When advance() is to be called (time.monotonic())."""
        return [end for _, end in self._pending.values()]

    def wait_s(self) -> float | None:
        """Seconds that the loop may wait; None for any time."""
        due = self.due()
        return max(0.0, min(due) - time.monotonic()) if due else None

    def advance(self, now: float) -> None:
        """Does what is due at ``now``."""
        for sock in [sock for sock, (_, end) in self._pending.items() if end < now]:
            self._refuse(sock, "no proof of the secret in time")

    def close(self) -> None:
        """Closes all sockets that no callee has taken; calling it again does nothing."""
        for sock in (self._listener, *self._pending):
            self._unregister(sock)
        self._pending.clear()
        self._descriptors.close()

    def _unregister(self, sock: socket.socket) -> None:
        if self._selector is not None:
            # It may not be registered, or the selector may be closed.
            with contextlib.suppress(KeyError, ValueError, RuntimeError, OSError):
                self._selector.unregister(sock)

    def _begin(self) -> None:
        assert self._selector is not None
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        self._descriptors.own(sock)
        sock.setblocking(False)
        if len(self._pending) >= self._max_pending:
            self._refuse(next(iter(self._pending)), "too many connections without a proof of the secret")
        handshake = ServerHandshake(self._secret, self._purpose)
        self._pending[sock] = handshake, time.monotonic() + HANDSHAKE_SECONDS
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._read(sock))
        if self._allow is not None and not self._allow(sock):
            self._refuse(sock, "not allowed")
            return
        try:
            # 40 bytes into an empty send buffer never block; nor do the 32 of the confirmation.
            sock.send(handshake.challenge)
        except OSError as error:
            self._refuse(sock, str(error))

    def _read(self, sock: socket.socket) -> None:
        if sock not in self._pending:
            return  # closed in this turn of the loop
        handshake, _ = self._pending[sock]
        try:
            data = sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(sock)
            return
        try:
            handshake.feed(data)
            if not handshake.done:
                return
            if self._check is not None:
                self._check(handshake)
            sock.send(handshake.confirm)
        except (OSError, AuthenticationError) as error:
            self._refuse(sock, str(error))
            return
        del self._pending[sock]
        self._unregister(sock)
        self._on_authenticated(self._descriptors.disown(sock), handshake)

    def _drop(self, sock: socket.socket) -> None:
        del self._pending[sock]
        self._unregister(sock)
        self._descriptors.discard(sock)

    def _refuse(self, sock: socket.socket, reason: str) -> None:
        self._drop(sock)
        self._on_refused(reason)


class ListenerThread:
    """A daemon thread that runs one listener until close(), which closes it too."""

    def __init__(self, listener: AuthenticatedListener, name: str) -> None:
        self._listener, self._closing = listener, False
        self._descriptors = DescriptorSet()
        self._wake = self._descriptors.own(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._selector = self._descriptors.own(selectors.EpollSelector())
        self._selector.register(self._wake, selectors.EVENT_READ, lambda: None)
        listener.register(self._selector)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, and closes the listener. Not to be called by a callback of the listener."""
        if not self._closing:
            self._closing = True
            os.eventfd_write(self._wake, 1)
            self._thread.join()
            self._listener.close()
            self._descriptors.close()

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(self._listener.wait_s()):
                key.data()
            self._listener.advance(time.monotonic())
