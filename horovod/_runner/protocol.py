"""The messages between the launcher and its agents on other hosts, over the agent's standard input and output.

A frame is a length (u32, of the payload), a kind (u8) and a payload, little endian. The agent first sends MAGIC, so
that the output of a login script before it can be recognized. An agent imports
this file, and starts without hvd_core: standard library only. Used by one thread; a signal
handler of that thread may call Outgoing.add() and flush().
"""

from __future__ import annotations

import enum
import os
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

PROTOCOL = 3
MAGIC = b"\0hvd-agent %d\n" % PROTOCOL
# A longer frame means that another program is writing, or that bytes were lost.
LONGEST = 256 << 20
CHUNK = 1 << 20

_HEADER = struct.Struct("<IB")
_RANK = struct.Struct("<I")
_STREAM = struct.Struct("<IB")


class Kind(enum.IntEnum):
    """JSON payloads unless said otherwise."""

    # to the agent
    JOB = 1  # the ranks of this host, see RemoteRanks
    FUNCTION = 2  # bytes: a part of the function of horovod.run
    START = 3  # empty
    STOP = 4  # empty: as Ctrl-C
    FAIL = 5  # empty: a rank elsewhere has failed
    SEND = 6  # rank (u32), bytes for its channel (elastic jobs)
    KILL = 7  # empty: SIGKILL immediately (elastic jobs)
    # to the launcher
    READY = 16  # the agent's host, process and Python
    REFUSED = 17  # text: why the ranks cannot run there
    OUTPUT = 18  # rank (u32), stream (u8), bytes; zero bytes: the end of the stream
    EVENT = 19  # an event that the supervisor reports
    RESULT = 20  # rank (u32), a part of the function's result
    END = 21  # empty: no process of the job is left on that host
    BEAT = 22  # empty: makes a dead connection fail
    MESSAGE = 23  # rank (u32), bytes that came over its channel (elastic jobs)


class ProtocolError(Exception):
    """The other side sent something that this protocol does not allow."""


def frame(kind: Kind, payload: bytes = b"") -> bytes:
    """A frame as bytes."""
    return _HEADER.pack(len(payload), kind) + payload


def output_frame(rank: int, stream: int, data: bytes) -> bytes:
    """A frame with a part of a rank's output."""
    return frame(Kind.OUTPUT, _STREAM.pack(rank, stream) + data)


def split_output(payload: bytes) -> tuple[int, int, bytes]:
    """(rank, stream, bytes)"""
    rank, stream = _STREAM.unpack_from(payload)
    return rank, stream, payload[_STREAM.size :]


def memory_frames(kind: Kind, descriptor: int, rank: int | None = None) -> Iterator[bytes]:
    """A memory file in frames, one at a time; `rank` stands before each part."""
    head, size, done = b"" if rank is None else _RANK.pack(rank), os.fstat(descriptor).st_size, 0
    while done < size:
        part = os.pread(descriptor, min(CHUNK, size - done), done)
        done += len(part)
        yield frame(kind, head + part)


def channel_frame(kind: Kind, rank: int, data: bytes) -> bytes:
    """Data of a rank's channel."""
    return frame(kind, _RANK.pack(rank) + data)


def split_result(payload: bytes) -> tuple[int, bytes]:
    """(rank, bytes)"""
    (rank,) = _RANK.unpack_from(payload)
    return rank, payload[_RANK.size :]


class Incoming:
    """Makes frames of the bytes that have arrived."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """All frames that are complete now. Raises ProtocolError for an impossible length."""
        self._data += data
        frames: list[tuple[int, bytes]] = []
        start = 0
        while len(self._data) - start >= _HEADER.size:
            length, kind = _HEADER.unpack_from(self._data, start)
            if length > LONGEST:
                raise ProtocolError(f"a frame of {length} bytes of kind {kind} was announced")
            end = start + _HEADER.size + length
            if len(self._data) < end:
                break
            frames.append((kind, bytes(self._data[start + _HEADER.size : end])))
            start = end
        del self._data[:start]
        return frames


class Outgoing:
    """A queue of frames that are written to a non-blocking descriptor.

    The frames of `first` are made only when there is room for them; frames that are added meanwhile go before the rest of
    them.
    """

    def __init__(self, descriptor: int, first: Iterable[bytes] = ()) -> None:
        self.descriptor = descriptor
        self._first = iter(first)
        self._parts: deque[memoryview] = deque()
        self._flushing = False
        self.size = 0

    def add(self, data: bytes) -> None:
        """Appends a frame to the queue."""
        self.size += len(data)
        self._parts.append(memoryview(data))

    def flush(self) -> bool:
        """Writes as much as possible now; returns True if the queue is empty. Raises OSError if the reader is gone."""
        if self._flushing:
            return False  # called by a signal handler; the interrupted loop continues
        self._flushing = True
        try:
            while True:
                if not self._parts:
                    part = next(self._first, None)
                    if part is None:
                        return True
                    # In front of frames that a signal handler may have added meanwhile.
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


def encode_words(words: Sequence[str]) -> list[str]:
    """Words of any bytes, as text that JSON can hold."""
    return [os.fsencode(word).decode("latin-1") for word in words]


def decode_words(words: Sequence[str]) -> list[str]:
    """The inverse of encode_words."""
    return [os.fsdecode(word.encode("latin-1")) for word in words]


def encode_env(env: Mapping[str, str]) -> dict[str, str]:
    """Variables of any bytes, as text that JSON can hold."""
    return dict(zip(encode_words(list(env)), encode_words(list(env.values()))))


def decode_env(env: Mapping[str, str]) -> dict[str, str]:
    """The inverse of encode_env."""
    return dict(zip(decode_words(list(env)), decode_words(list(env.values()))))
