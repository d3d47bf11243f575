"""A listening socket of the driver whose connections first prove the job's secret. On the thread that turns the selector.

A connection that has not proved the secret is not parsed. Nothing waits. While the system lets this process accept no
connection, because it has no descriptor left for instance, the listener keeps trying. The peer waits, with its own
timeout.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable

from hvd_core._base.auth import HANDSHAKE_SECONDS, ServerHandshake
from hvd_core._base.sockets import AuthenticationError, join_address

_CHUNK = 1 << 16
_MOST_UNPROVEN = 256  # all tasks of a job connect at once
# The listener is readable meanwhile, so that a selector without a pause would spin.
_PAUSE_S = 0.1


class ProvenListener:
    """Listens on `host`, on a port of its own; `port` is its number. `proven(peer, rest)` is called with each connection
    that has proved the secret for `purpose`, and its first bytes after that; the connection does not block, and is the
    caller's from then on. `refused(reason)` tells why one was closed, or cannot be accepted yet."""

    def __init__(self, host: str, secret: bytes, purpose: bytes) -> None:
        self._secret, self._purpose = secret, purpose
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, 0), family=family, backlog=256)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self.address = join_address(*self._listener.getsockname()[:2])
        self._unproven: dict[socket.socket, tuple[ServerHandshake, float]] = {}
        self._selector: selectors.BaseSelector | None = None
        self._accepting = True  # the system let this process accept the last connection
        self._resumes_at: float | None = None

    def begin(
        self,
        selector: selectors.BaseSelector,
        proven: Callable[[socket.socket, bytes], None],
        refused: Callable[[str], None],
    ) -> None:
        self._selector, self._proven, self._refused = selector, proven, refused
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def due(self) -> list[float]:
        """When advance() is to be called (time.monotonic())."""
        ends = [end for _, end in self._unproven.values()]
        return ends if self._resumes_at is None else [*ends, self._resumes_at]

    def advance(self, now: float) -> None:
        if self._resumes_at is not None and self._resumes_at <= now:
            self._resumes_at = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for peer in [peer for peer, (_, end) in self._unproven.items() if end < now]:
            self._drop(peer, "no proof of the secret in time")

    def close(self) -> None:
        """Closes the socket, and the connections that are not proven."""
        for peer in list(self._unproven):
            self._drop(peer, None)
        if self._selector is not None:
            with contextlib.suppress(KeyError, ValueError, RuntimeError):  # the selector may be closed
                self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._pause(error)
            return
        self._accepting = True
        peer.setblocking(False)
        if len(self._unproven) >= _MOST_UNPROVEN:
            self._drop(next(iter(self._unproven)), "too many connections without a proof of the secret")
        handshake = ServerHandshake(self._secret, self._purpose)
        self._unproven[peer] = (handshake, time.monotonic() + HANDSHAKE_SECONDS)
        self._selector.register(peer, selectors.EVENT_READ, lambda: self._read(peer))
        try:
            peer.send(handshake.challenge)
        except OSError as error:
            self._drop(peer, str(error))

    def _pause(self, error: OSError) -> None:
        self._selector.unregister(self._listener)
        self._resumes_at = time.monotonic() + _PAUSE_S
        if self._accepting:
            self._accepting = False
            self._refused(f"the driver can accept none now: {error}; it tries again until it can")

    def _read(self, peer: socket.socket) -> None:
        if peer not in self._unproven:
            return  # closed in this turn
        try:
            data = peer.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer, None)
            return
        handshake, _ = self._unproven[peer]
        try:
            handshake.feed(data)
            if not handshake.done:
                return
            peer.send(handshake.confirm)
        except (AuthenticationError, OSError) as error:
            self._drop(peer, str(error))
            return
        del self._unproven[peer]
        self._selector.unregister(peer)
        self._proven(peer, handshake.rest)

    def _drop(self, peer: socket.socket, reason: str | None) -> None:
        if reason is not None:
            self._refused(reason)
        del self._unproven[peer]
        with contextlib.suppress(KeyError, ValueError, RuntimeError):
            self._selector.unregister(peer)
        peer.close()
