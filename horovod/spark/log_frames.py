"""What a task sends to the driver besides its result: the output of its rank, and the texts of log_to_driver().

Frames of the launcher (horovod/_runner/protocol.py) over a connection whose client has proved the job's secret
(hvd_core/_base/auth.py): OUTPUT as there, HEARD with a text.
"""

from __future__ import annotations

import socket
import threading
from collections import deque

from horovod._runner.protocol import Kind, channel_frame, output_frame
from hvd_core._base.auth import client_handshake
from hvd_core._base.sockets import Deadline, connect_tcp

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
        self._add(channel_frame(Kind.HEARD, rank, text.encode(errors="replace")))

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
