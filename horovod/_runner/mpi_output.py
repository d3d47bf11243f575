"""Splits the output of mpirun by rank, so that its jobs look like horovodrun's own.

mpirun writes a label in front of each part that it reads from a rank. A part ends at a line's end, but also where the
rank's write or the MPI's buffer ended, and the next part may be another rank's. So long lines, and lines that a program
writes in several calls (Python unbuffered, C's standard error), would be mixed. Runs on the thread of Job.run().
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from horovod._runner.output import PARTIAL_LINE_S, Output, RankStream, rank_label

_LONGEST_LABEL = 64


@dataclass(frozen=True)
class Labels:
    """The form of a label. `parts`: regular expressions; a read may end after any of them. Group 1 is the rank; group
    2, if it exists, is the name of the stream."""

    parts: tuple[bytes, ...]
    whole: re.Pattern[bytes] = field(init=False)
    cut: re.Pattern[bytes] = field(init=False)

    def __post_init__(self) -> None:
        rest = b""
        for part in reversed(self.parts[1:]):
            rest = b"(?:" + part + rest + b")?"
        object.__setattr__(self, "whole", re.compile(b"".join(self.parts)))
        object.__setattr__(self, "cut", re.compile(self.parts[0] + rest + rb"\Z"))


def _letters(text: str) -> list[bytes]:
    return [re.escape(letter).encode() for letter in text]


def of_open_mpi(version: tuple[int, ...]) -> Labels:
    """Labels of --tag-output, which cannot be chosen; since version 5 a space ends them."""
    end = ">:" if version[:1] <= (4,) else ">: "
    return Labels((*_letters("[1,"), rb"(\d+)", *_letters("]<"), rb"([a-z]+)", *_letters(end)))


def of_hydra() -> tuple[str, Labels]:
    """A value for -prepend-pattern that no program prints by chance, and the labels that it makes."""
    before = f"hvd-{secrets.token_hex(8)}-"
    return f"{before}%r|", Labels((*_letters(before), rb"(\d+)", *_letters("|")))


class LabelledStream:
    """Standard output or error of mpirun (`name`). Has the interface of a RankStream, and owns one for each rank."""

    def __init__(self, labels: Labels, output: Output, name: str):
        self._labels = labels
        self._output = output
        self._name = name
        # Text without a label is mpirun's own.
        self._own = self._stream("")
        self._ranks: dict[tuple[int, str], RankStream] = {}
        self._current = self._own
        self._behind_label = False
        self._held, self._held_since = b"", 0.0

    def _stream(self, label: str) -> RankStream:
        return RankStream(label, getattr(self._output, self._name), None, self._output.timestamp)

    def _streams(self) -> Iterator[RankStream]:
        yield from self._ranks.values()
        yield self._own

    def feed(self, data: bytes) -> None:
        """Takes data that was read from the pipe."""
        data = self._held + data
        at = 0
        for label in self._labels.whole.finditer(data):
            # A program that prints labels itself (it runs an mpirun) has its label behind mpirun's.
            if label.start() > at or not self._behind_label:
                self._give(data[at : label.start()])
                rank, *name = label.groups()
                self._current = self._of_rank(int(rank), name[0].decode() if name else self._name)
                self._behind_label, at = True, label.end()
        cut = self._labels.cut.search(data, max(at, len(data) - _LONGEST_LABEL))
        end = cut.start() if cut else len(data)
        self._give(data[at:end])
        self._held, self._held_since = data[end:], time.monotonic()

    def _of_rank(self, rank: int, name: str) -> RankStream:
        if (rank, name) not in self._ranks:
            self._ranks[rank, name] = self._stream(rank_label(rank, name))
        return self._ranks[rank, name]

    def _give(self, data: bytes) -> None:
        """Passes on the text between two labels: the rest of a rank's line, then mpirun's own lines."""
        if not data:
            return
        self._behind_label = False
        line_end = data.find(b"\n") + 1
        if self._current is self._own or line_end == 0:
            self._current.feed(data)
            return
        self._current.feed(data[:line_end])
        self._current = self._own
        if data[line_end:]:
            self._own.feed(data[line_end:])

    def _release(self) -> None:
        """Passes on text that looked like the beginning of a label."""
        held, self._held = self._held, b""
        self._give(held)

    def due(self) -> float | None:
        """When show_partial() should be called (time.monotonic()), None if there is nothing to show."""
        moments = [moment for stream in self._streams() if (moment := stream.due()) is not None]
        return min([*moments, *([self._held_since + PARTIAL_LINE_S] if self._held else [])], default=None)

    def show_partial(self) -> None:
        """Shows the beginnings of unfinished lines that are due."""
        now = time.monotonic()
        if self._held and self._held_since + PARTIAL_LINE_S <= now:
            self._release()
        for stream in self._streams():
            if (moment := stream.due()) is not None and moment <= now:
                stream.show_partial()

    def end(self) -> None:
        """mpirun closed the stream."""
        self._release()
        for stream in self._streams():
            stream.end()
