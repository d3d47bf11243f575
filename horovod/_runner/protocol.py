"""The messages between the launcher and its agents on other hosts, over the agent's standard input and output.

Frames of hvd_core/_base/messages.py. The agent first sends MAGIC, so that the output of a login script before it can be
recognized.
"""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Iterator

from hvd_core._base.messages import frame

PROTOCOL = 4
MAGIC = b"\0hvd-agent\n"
CHUNK = 1 << 20

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
