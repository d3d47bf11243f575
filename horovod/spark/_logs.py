"""Connections over which the tasks of a barrier job send the ranks' output and log_to_driver()'s messages to the driver.

Frames of the launcher (horovod/_runner/protocol.py) over a connection whose client has proved the job's secret
(hvd_core/_base/auth.py): OUTPUT as there, MESSAGE with a message.
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
from horovod._runner.protocol import Kind, channel_frame, output_frame, split_output, split_result
from horovod._runner.site import STREAMS
from hvd_core._base.auth import ServerHandshake, client_handshake
from hvd_core._base.listener import AuthenticatedListener, listen
from hvd_core._base.messages import FrameBuffer, ProtocolError
from hvd_core._base.sockets import Deadline, connect_tcp, join_address

_CHUNK = 1 << 16

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
        """Passes on a message of log_to_driver()."""
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
        with contextlib.ExitStack() as stack:
            connected = stack.enter_context(connect_tcp(self._address, deadline))
            client_handshake(connected, self._secret, PURPOSE, self._rank, 0, deadline)
            stack.pop_all()
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
    """Listens on `host`, on a free port, `port`. `show(rank, text)`: called with the messages of
    log_to_driver(). close() after the job."""

    def __init__(
        self, host: str, secret: bytes, output: Output | None, show: Callable[[int, str], None]
    ) -> None:
        self._output, self._show = output, show
        socket_ = listen(host)
        self.port: int = socket_.getsockname()[1]
        self.address = join_address(*socket_.getsockname()[:2])
        self._listener = AuthenticatedListener(
            socket_,
            secret,
            PURPOSE,
            self._admit,
            self._refused,
        )
        self._selector = selectors.DefaultSelector()
        self._listener.register(self._selector)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ, lambda: None)
        self._connections: dict[socket.socket, FrameBuffer] = {}
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
            self._listener.close()
            for peer in self._connections:
                peer.close()
            self._selector.close()

    def _is_over(self) -> bool:
        if self._ends_at is None:
            return False
        return not self._connections or time.monotonic() >= self._ends_at

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

    def _admit(self, peer: socket.socket, handshake: ServerHandshake) -> None:
        self._connections[peer] = FrameBuffer()
        self._selector.register(peer, selectors.EVENT_READ, lambda: self._read(peer))
        if handshake.rest:
            self._feed(peer, handshake.rest)

    def _read(self, peer: socket.socket) -> None:
        if peer not in self._connections:
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
            for kind, payload in self._connections[peer].feed(data):
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
        self._connections.pop(peer, None)
        self._selector.unregister(peer)
        peer.close()

    def _refused(self, reason: str) -> None:
        _log.warning("horovod.spark: the driver's log refused a connection: %s", reason)
