"""Messages over streams: lines, lines of JSON, and frames. The one place where bytes are split into messages.

The readers (`LineBuffer`, `FrameBuffer`) do no I/O: an event loop feeds them what has arrived and gets the messages that
are complete.

    lines = LineBuffer()
    for line in lines.feed(data):
        handle(json.loads(line))

`JsonLines` is for code that blocks, `WriteQueue` writes to a descriptor that must not block. Standard library only, and
no other module of this project, since launchers' small processes import it. An object belongs to one thread, and to
signal handlers of that thread where its docstring allows it.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

_CHUNK = 1 << 16
LONGEST_LINE = 64 << 20
"""Bytes of a line without an end that are too many: another program is writing."""
LONGEST_FRAME = 256 << 20


class ProtocolError(Exception):
    """The other side sent something that the protocol does not allow."""


class LineBuffer:
    """Makes lines of the bytes that have arrived.

    Args:
        longest: bytes that a line may have; 0 for any number.

    >>> lines = LineBuffer()
    >>> lines.feed(b"one\\ntw")
    [b'one']
    >>> lines.rest
    b'tw'
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._data = b""

    @property
    def rest(self) -> bytes:
        """The bytes that belong to no complete line that has been taken: complete lines that add() left, and the begin
        of one."""
        return self._data

    def add(self, data: bytes) -> None:
        """Keeps ``data`` for next_line(). Raises ProtocolError for a line that is too long."""
        self._data += data
        if 0 < self._longest < len(self._data) and b"\n" not in self._data:
            raise ProtocolError(f"{len(self._data)} bytes without the end of a line")

    def has_line(self) -> bool:
        return b"\n" in self._data

    def next_line(self) -> bytes | None:
        """The next complete line, without its end; None if there is none."""
        line, end, rest = self._data.partition(b"\n")
        if not end:
            return None
        self._data = rest
        return line

    def feed(self, data: bytes) -> list[bytes]:
        """All lines that are complete now, without their ends. Raises ProtocolError for a line that is too long."""
        self.add(data)
        *lines, self._data = self._data.split(b"\n")
        return lines

    def take_rest(self) -> bytes:
        """The begin of a line whose end has not come, at the end of the stream; the buffer is empty then."""
        rest, self._data = self._data, b""
        return rest


class JsonLines:
    """Messages of JSON, one a line, over a connected stream socket, for code that blocks.

    >>> ours, theirs = map(JsonLines, socket.socketpair())
    >>> ours.send({"kind": "ready"})
    >>> theirs.receive(1.0)
    {'kind': 'ready'}
    """

    def __init__(self, connection: socket.socket, longest: int = LONGEST_LINE) -> None:
        self.connection = connection
        self.lines = LineBuffer(longest)

    def send(self, message: Any, seconds: float | None = None) -> None:
        """Sends one message. Raises TimeoutError after ``seconds``, OSError if the peer is gone."""
        self.connection.settimeout(seconds)
        self.connection.sendall(line_of(message), socket.MSG_NOSIGNAL)

    def receive(self, seconds: float | None = None) -> Any:
        """The next message, waiting up to ``seconds``; None for any time.

        Raises:
            TimeoutError: no whole message came in time.
            ConnectionError: the peer has closed the connection.
            ProtocolError: a line is too long.
            ValueError: a line is not JSON.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while (line := self.lines.next_line()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"no message within {seconds:g} s")
            self.connection.settimeout(left)
            try:
                data = self.connection.recv(_CHUNK)
            except TimeoutError:
                continue
            if not data:
                raise ConnectionError("the peer has closed the connection")
            self.lines.add(data)
        return json.loads(line)

    def close(self) -> None:
        self.connection.close()


def line_of(message: Any) -> bytes:
    """A message as JsonLines sends it."""
    return json.dumps(message).encode() + b"\n"


# A frame is a length (u32, of the payload), a kind (u8) and a payload, little endian.
_FRAME_HEADER = struct.Struct("<IB")


def frame(kind: int, payload: bytes = b"") -> bytes:
    """A frame. ``kind``: 0 to 255, of the caller's protocol."""
    return _FRAME_HEADER.pack(len(payload), kind) + payload


class FrameBuffer:
    """Makes frames of the bytes that have arrived.

    >>> FrameBuffer().feed(frame(18, b"text") + b"\\x01")
    [(18, b'text')]
    """

    def __init__(self, longest: int = LONGEST_FRAME) -> None:
        """``longest``: a longer payload means that another program is writing, or that bytes were lost."""
        self._longest = longest
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """(kind, payload) of all frames that are complete now. Raises ProtocolError for an impossible length."""
        self._data += data
        frames, start = [], 0
        while len(self._data) - start >= _FRAME_HEADER.size:
            length, kind = _FRAME_HEADER.unpack_from(self._data, start)
            if length > self._longest:
                raise ProtocolError(f"a frame of {length} bytes of kind {kind} was announced")
            end = start + _FRAME_HEADER.size + length
            if len(self._data) < end:
                break
            frames.append((kind, bytes(self._data[start + _FRAME_HEADER.size : end])))
            start = end
        del self._data[:start]
        return frames


class WriteQueue:
    """A queue of bytes that are written to a non-blocking descriptor. A signal handler of the thread that owns it may
    call add() and flush().

    Args:
        descriptor: where to write; the caller's.
        first: messages that are made only when there is room for them; what is added meanwhile goes before the rest of
            them.
    """

    def __init__(self, descriptor: int, first: Iterable[bytes] = ()) -> None:
        self.descriptor = descriptor
        self.size = 0
        """Bytes that wait."""
        self._first = iter(first)
        self._parts: deque[memoryview] = deque()
        self._flushing = False

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self._parts.append(memoryview(data))

    def flush(self) -> bool:
        """Writes as much as possible now. True if the queue is empty. Raises OSError if the reader is gone."""
        if self._flushing:
            return False  # called by a signal handler; the interrupted loop continues
        self._flushing = True
        try:
            while True:
                if not self._parts:
                    part = next(self._first, None)
                    if part is None:
                        return True
                    # In front of what a signal handler may have added meanwhile.
                    self._parts.appendleft(memoryview(part))
                    self.size += len(part)
                try:
                    written = os.write(self.descriptor, self._parts[0])
                except BlockingIOError:
                    return False
                self.size -= written
                rest = self._parts[0][written:]
                if rest:
                    self._parts[0] = rest
                else:
                    self._parts.popleft()
        finally:
            self._flushing = False
