"""Writes the output of the ranks to the launcher's own streams, with the rank in front of each line, and to files.

Bytes are passed on unchanged. A carriage return goes back within the line, so that a progress bar stays one bar: a
terminal or notebook gets the label again, in its place; a file or pipe gets it once. A line that stays incomplete for a
moment is shown too, and continued later. Runs on the thread of Job.run().
"""

from __future__ import annotations

import errno
import io
import os
import re
import select
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from horovod._runner.event_loop import Member

# How long an unfinished line is held before it is shown without its end.
PARTIAL_LINE_S = 0.2
# Longer text without a line end is passed on in parts.
LONGEST_HELD = 1 << 16

_MARK = re.compile(rb"[\r\n]")


def rank_label(rank: int, name: str) -> str:
    """The label in front of a line from stream `name` of a rank."""
    return f"[{rank}]<{name}>:"


class OutputStream(Member, Protocol):
    """One output stream of a process of the job. advance() shows the beginning of an unfinished line."""

    def feed(self, data: bytes) -> None:
        """Takes what was read from the pipe."""

    def end(self) -> None:
        """The process closed the stream."""


class OutputClosedError(Exception):
    """The reader of the launcher's standard output or error has gone (`horovodrun ... | head`)."""


class Sink:
    """One destination on the launcher's side, shared by all ranks. `owner`: the stream whose unfinished line is last.
    `redraws`: a carriage return goes back to the line's start there, so that the next text overwrites the label."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.owner: RankStream | None = None
        self.closed = stream is None
        # Notebooks and test runners replace sys.stdout by something that only takes text.
        self.descriptor = stream.fileno() if _is_file(stream) else None
        self.redraws = self.descriptor is None or os.isatty(self.descriptor)

    def write(self, data: bytes) -> None:
        """Writes all of `data`. Raises OutputClosedError."""
        if self.closed or not data:
            return
        try:
            if self.descriptor is None:
                self.stream.write(data.decode("utf-8", "replace"))
                self.stream.flush()
            else:
                self.stream.flush()
                self._write_all(self.descriptor, data)
        except (OSError, ValueError) as error:
            # EIO: the terminal is gone. ValueError: the stream object was closed.
            if isinstance(error, ValueError) or error.errno in (errno.EPIPE, errno.EIO, errno.EBADF):
                self.closed = True
                raise OutputClosedError from error
            raise

    def _write_all(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                # Another process made the shared terminal non-blocking.
                select.select([], [descriptor], [])

    def note(self, text: str) -> None:
        """Writes one line of the launcher itself."""
        start = b"" if self.owner is None else b"\n"
        self.owner = None
        self.write(start + text.encode("utf-8", "surrogateescape") + b"\n")


class RankStream:
    """Standard output or standard error of one rank."""

    def __init__(self, label: str, sink: Sink, file: BinaryIO | None = None, timestamp: bool = False) -> None:
        self.label = label
        self.sink = sink
        self.file = file
        self.timestamp = timestamp
        self.pending = b""
        self.pending_since = 0.0
        self._returns = b""  # carriage returns that wait for the text that follows them
        self._line_open = False

    def _prefix(self) -> bytes:
        return ((time.asctime() if self.timestamp else "") + self.label).encode()

    def feed(self, data: bytes) -> None:
        """Takes what was read from the pipe."""
        self._save(data)
        out: list[bytes] = []
        held = bool(self.pending)
        self.pending += data
        end = 0
        for mark in _MARK.finditer(self.pending):
            if mark.start() > end:
                out += self._text(self.pending[end : mark.start()])
            if mark[0] == b"\n":
                out += self._line_feed()
            elif self._continues():  # at the start of a line a carriage return changes nothing
                self._returns += b"\r"
            end = mark.end()
        self.pending = self.pending[end:]
        if end or not held:
            self.pending_since = time.monotonic()
        self.sink.write(b"".join(out))
        if len(self.pending) > LONGEST_HELD:
            self.show_partial()

    def _continues(self) -> bool:
        """Whether the last line on the screen is this stream's, and unfinished."""
        return self._line_open and self.sink.owner is self

    def _new_line(self) -> list[bytes]:
        # An unfinished line of another stream is ended first; otherwise two ranks would share a line.
        return ([] if self.sink.owner is None else [b"\n"]) + [self._prefix()]

    def _text(self, text: bytes) -> list[bytes]:
        """The bytes to write for text without an end of line."""
        if not self._continues():
            start = self._new_line()
        elif self._returns and self.sink.redraws:
            start = [self._returns, self._prefix()]  # in the place of the one that the text would overwrite
        else:
            start = [self._returns]
        self._returns, self._line_open, self.sink.owner = b"", True, self
        return [*start, text]

    def _line_feed(self) -> list[bytes]:
        if self._continues():
            written = [self._returns, b"\n"]
        elif self._line_open:
            written = []  # another stream has ended the line already
        else:
            written = [*self._new_line(), b"\n"]
        if written:
            self.sink.owner = None
        self._returns, self._line_open = b"", False
        return written

    def show_partial(self) -> None:
        """Shows the beginning of an unfinished line."""
        if self.pending:
            data, self.pending = b"".join(self._text(self.pending)), b""
            self.sink.write(data)

    def due(self) -> float | None:
        return self.pending_since + PARTIAL_LINE_S if self.pending else None

    def advance(self, now: float) -> None:
        moment = self.due()
        if moment is not None and moment <= now:
            self.show_partial()

    def end(self) -> None:
        """The rank closed the stream."""
        self.show_partial()
        if self._continues():
            self.sink.owner = None
            self.sink.write(b"\n")
        if self.file is not None:
            self.file.close()
            self.file = None

    def _save(self, data: bytes) -> None:
        if self.file is None:
            return
        try:
            self.file.write(data)
            self.file.flush()
        except OSError as error:
            self.sink.note(f"horovodrun: {self.file.name} is not written any further: {error.strerror}")
            self.file = None


class Output:
    """All streams of a job. `folder`: where rank.<n>/stdout and /stderr are written, unprefixed, or None."""

    def __init__(self, num_proc: int, folder: str | None = None, timestamp: bool = False) -> None:
        self.folder = None if folder is None else Path(folder)
        self.num_proc = num_proc
        self.timestamp = timestamp
        self.stdout = Sink(sys.stdout)
        self.stderr = self.stdout if _same_file(sys.stdout, sys.stderr) else Sink(sys.stderr)

    def stream(self, rank: int, name: str) -> RankStream:
        """Stream `name` ("stdout" or "stderr") of a rank. Raises OSError if its file cannot be made."""
        file = None
        if self.folder is not None:
            directory = self.folder / f"rank.{rank:0{len(str(self.num_proc - 1))}d}"
            directory.mkdir(parents=True, exist_ok=True)
            file = open(directory / name, "wb")  # noqa: SIM115 (closed at the end of the stream)
        return RankStream(rank_label(rank, name), getattr(self, name), file, self.timestamp)

    def mute(self) -> None:
        """Discards all further output."""
        self.stdout.closed = self.stderr.closed = True


def _is_file(stream: Any) -> bool:
    """Whether the stream is Python's own, buffered or not, so that bytes can go to its descriptor."""
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    return isinstance(stream, io.TextIOWrapper) and isinstance(raw, io.FileIO)


def _same_file(first: Any, second: Any) -> bool:
    """Whether both streams end in the same terminal, pipe or file, so that unfinished lines would mix."""
    try:
        return os.path.sameopenfile(first.fileno(), second.fileno())
    except (OSError, ValueError, AttributeError):
        return False
