"""The connections over which the tasks of a barrier job send the ranks' output and log_to_driver()'s texts to the driver.

Frames of the launcher (horovod/_runner/protocol.py) over a connection whose client has proved the job's secret
(hvd_core/_base/auth.py): OUTPUT as there, MESSAGE with a text.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from horovod._runner.output import Output, OutputClosedError, RankStream
from horovod._runner.protocol import (
    Incoming,
    Kind,
    ProtocolError,
    channel_frame,
    output_frame,
    split_output,
    split_result,
)
from horovod._runner.site import STREAMS
from hvd_core._base.auth import HANDSHAKE_SECONDS, ServerHandshake, client_handshake
from hvd_core._base.sockets import AuthenticationError, Deadline, connect_tcp, join_address

_CHUNK = 1 << 16

# ---- A listening socket whose connections first prove the job's secret
#
# On the thread that runs the selector. A connection that has not proved the secret is not parsed. Nothing waits. While
# the system lets this process accept no connection, because it has no descriptor left for instance, the listener keeps
# trying. The peer waits, with its own timeout.

_MOST_UNPROVEN = 256  # all tasks of a job connect at once
# The listener is readable meanwhile, so that a selector without a pause would spin.
_PAUSE_S = 0.1


class AuthenticatedListener:
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


# ---- The sender, in a task

PURPOSE = b"spark-log"
# Output beyond this waits for the driver; more is dropped, as a rank must not wait for a terminal.
_MOST_HELD = 4 << 20
_FLUSH_S = 5.0
_CONNECT_S = 30.0
# After a connection has broken (a firewall that forgets, a network that was away), another one is tried for this time.
_AGAIN_S = 60.0


class LogSender:
    """A task's connection to the LogServer at `address` ("tcp://host:port"). Any thread may call; nothing waits but
    close(). Raises BootstrapError, OSError if the driver cannot be reached."""

    def __init__(self, address: str, secret: bytes, rank: int) -> None:
        self._address, self._secret, self._rank = address, secret, rank
        self._socket = self._connected(_CONNECT_S)
        self._changed = threading.Condition()
        self._frames: deque[bytes] = deque()
        self._held = self._dropped = 0
        self._closing = self._broken = False
        self._thread = threading.Thread(target=self._run, name="hvd-spark-log", daemon=True)
        self._thread.start()

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """Passes on what `rank` has printed on a stream (an index into STREAMS)."""
        if data:
            self._add(output_frame(rank, stream, data))

    def message(self, rank: int, text: str) -> None:
        """Passes on a text of log_to_driver()."""
        self._add(channel_frame(Kind.MESSAGE, rank, text.encode(errors="replace")))

    def close(self) -> None:
        """Sends the rest, for some seconds at most, and ends the connection."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_FLUSH_S)
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._thread.join()
        self._socket.close()

    def _connected(self, seconds: float) -> socket.socket:
        deadline = Deadline(seconds)
        connected = connect_tcp(self._address, deadline)
        try:
            client_handshake(connected, self._secret, PURPOSE, self._rank, 0, deadline)
        except BaseException:
            connected.close()
            raise
        connected.settimeout(None)
        return connected

    def _add(self, data: bytes) -> None:
        with self._changed:
            if self._broken:
                return
            if self._held + len(data) > _MOST_HELD:
                self._dropped += 1
                return
            if self._dropped:
                text = f"({self._dropped} parts of the output were dropped: the driver does not read fast enough)\n"
                self._dropped = 0
                self._queue(output_frame(self._rank, 1, text.encode()))
            self._queue(data)
            self._changed.notify()

    def _queue(self, data: bytes) -> None:
        self._frames.append(data)
        self._held += len(data)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._frames and not self._closing:
                    self._changed.wait()
                if not self._frames:
                    return
                data = self._frames.popleft()
            if not self._sent(data):
                with self._changed:
                    self._broken = True
                    self._frames.clear()
                return
            with self._changed:
                self._held -= len(data)

    def _sent(self, data: bytes) -> bool:
        """Sends a frame; on another connection if this one has broken, whose unread rest is lost then."""
        while True:
            try:
                self._socket.sendall(data)
                return True
            except OSError:
                pass
            with self._changed:
                if self._closing:
                    return False
            try:
                again = self._connected(_AGAIN_S)
            except (OSError, RuntimeError):
                return False
            with self._changed:
                self._socket.close()
                self._socket = again


# ---- The driver's side: one thread, which alone writes to the streams. A connection that breaks the protocol is closed

_log = logging.getLogger("horovod")

# After the job, the rest is read for this time.
_DRAIN_S = 5.0


class LogServer:
    """Listens on `host`, on a port of its own; `port` is its number. `show(rank, text)`: called with the texts of
    log_to_driver(). close() after the job."""

    def __init__(
        self, host: str, secret: bytes, output: Output | None, show: Callable[[int, str], None]
    ) -> None:
        self._output, self._show = output, show
        self._listener = AuthenticatedListener(host, secret, PURPOSE)
        self.port, self.address = self._listener.port, self._listener.address
        self._selector = selectors.DefaultSelector()
        self._listener.begin(self._selector, self._admit, self._refused)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ, lambda: None)
        self._proven: dict[socket.socket, Incoming] = {}
        self._streams: dict[tuple[int, int], RankStream] = {}
        self._ends_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="hvd-spark-logs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Shows what the tasks have sent, and ends the thread. Calling it again does nothing."""
        if self._thread.is_alive():
            self._ends_at = time.monotonic() + _DRAIN_S
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        if self._wake >= 0:
            wake, self._wake = self._wake, -1
            os.close(wake)

    def _run(self) -> None:
        try:
            while not self._is_over():
                for key, _ in self._selector.select(self._wait_s()):
                    key.data()
                self._listener.advance(time.monotonic())
                self._write(self._show_partial)
        finally:
            for stream in self._streams.values():
                self._write(stream.end)
            for peer in [self._listener, *self._proven]:
                peer.close()
            self._selector.close()

    def _is_over(self) -> bool:
        if self._ends_at is None:
            return False
        return not self._proven or time.monotonic() >= self._ends_at

    def _wait_s(self) -> float | None:
        due = [moment for stream in self._streams.values() if (moment := stream.due()) is not None]
        due += self._listener.due()
        due += [] if self._ends_at is None else [self._ends_at]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _show_partial(self) -> None:
        now = time.monotonic()
        for stream in self._streams.values():
            moment = stream.due()
            if moment is not None and moment <= now:
                stream.show_partial()

    def _write(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OutputClosedError:
            if self._output is not None:
                self._output.mute()
        except Exception:  # a stream of the user, such as a widget of a notebook
            _log.exception("horovod.spark: the output of the ranks cannot be shown")
            if self._output is not None:
                self._output.mute()

    def _admit(self, peer: socket.socket, rest: bytes) -> None:
        self._proven[peer] = Incoming()
        self._selector.register(peer, selectors.EVENT_READ, lambda: self._read(peer))
        if rest:
            self._feed(peer, rest)

    def _read(self, peer: socket.socket) -> None:
        if peer not in self._proven:
            return  # closed in this turn
        try:
            data = peer.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._feed(peer, data)
        else:
            self._drop(peer, None)

    def _feed(self, peer: socket.socket, data: bytes) -> None:
        try:
            for kind, payload in self._proven[peer].feed(data):
                self._take(kind, payload)
        except (ProtocolError, struct.error) as error:
            self._drop(peer, str(error))

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == Kind.OUTPUT:
            rank, stream, data = split_output(payload)
            if self._output is None or stream >= len(STREAMS):
                return
            if (rank, stream) not in self._streams:
                self._streams[rank, stream] = self._output.stream(rank, STREAMS[stream])
            self._write(lambda: self._streams[rank, stream].feed(data))
        elif kind == Kind.MESSAGE:
            rank, text = split_result(payload)
            self._write(lambda: self._show(rank, text.decode(errors="replace")))
        else:
            raise ProtocolError(f"a frame of kind {kind}")

    def _drop(self, peer: socket.socket, reason: str | None) -> None:
        if reason is not None:
            self._refused(reason)
        self._proven.pop(peer, None)
        self._selector.unregister(peer)
        peer.close()

    def _refused(self, reason: str) -> None:
        _log.warning("horovod.spark: the driver's log refused a connection: %s", reason)
