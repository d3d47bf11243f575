"""The driver's side of log_frames.py: shows the output of the ranks and the texts of log_to_driver().

One thread, which alone writes to the streams. A connection that has not proved the job's secret is not parsed; one that
breaks the protocol is closed.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable

from horovod._runner.local_ranks import STREAMS
from horovod._runner.output import Output, OutputClosedError, RankStream
from horovod._runner.protocol import Incoming, Kind, ProtocolError, split_output, split_result
from horovod.spark.log_frames import PURPOSE
from horovod.spark.proven_listener import ProvenListener

_log = logging.getLogger("horovod")
_CHUNK = 1 << 16
# After the job, the rest is read for this time.
_DRAIN_S = 5.0


class LogServer:
    """Listens on `host`, on a port of its own; `port` is its number. `show(rank, text)`: called with the texts of
    log_to_driver(). close() after the job."""

    def __init__(
        self, host: str, secret: bytes, output: Output | None, show: Callable[[int, str], None]
    ) -> None:
        self._output, self._show = output, show
        self._listener = ProvenListener(host, secret, PURPOSE)
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
        elif kind == Kind.HEARD:
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
