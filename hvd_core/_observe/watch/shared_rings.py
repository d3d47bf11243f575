"""The rings of a host's ranks, in memory that this process maps read-only: events and counters, while the ranks write.

    for ring in SharedRings(Place(segment="/proc/4711/fd/12", slots=2)).look(): events, lost = ring.take()

The layout is hvd_core/engine/recorder/event_ring.h's. Any thread may ask; one thread at a time may take events.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from hvd_core import flight_records
from hvd_core._base.processes import process_stat
from hvd_core._bootstrap.links import HEADER_BYTES, SLOT_BYTES


class Process:
    """The process that has this pid now. Any thread may ask."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._found = process_stat(pid)

    def alive(self) -> bool:
        """Whether it runs."""
        now = process_stat(self._pid)
        return (
            now is not None
            and now.is_running
            and self._found is not None
            and now.started == self._found.started
        )


# For so long a record that a rank has begun to write is waited for.
_PATIENCE_S = 2.0
# Behind the rings of the control plane, see engine/agreement/segment.cc.
_RING_AT = 4096 + (256 << 10) + (512 << 10)
_RECORD = np.dtype(
    [
        ("stamp", "<u4"),
        ("kind", "u1"),
        ("detail", "u1"),
        ("set", "<u2"),
        ("time", "<i8"),
        ("name", "<u4"),
        ("what", "<u4"),
        ("a", "<u8"),
        ("b", "<u8"),
    ]
)


@dataclass(frozen=True)
class Place:
    """Where the rings of a host's ranks are. ``segment``: a path of the control segment, with ``slots`` local ranks;
    ``file``: a ring in a file of its own, of a rank that is alone on its host."""

    segment: str = ""
    slots: int = 0
    file: str = ""


@dataclass
class Counts:
    """Sums since the start of a rank. ``operations`` and ``bytes``: by number of the operation; ``collectives``:
    by name."""

    batches: int = 0
    requests: int = 0
    waits: int = 0
    wait_ns: int = 0
    failures: int = 0
    stall_reports: int = 0
    operations: dict[int, int] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)
    collectives: dict[str, int] = field(default_factory=dict)


class SharedRing:
    """The ring of one rank, in memory that both processes map. ``memory`` begins with the ring's header."""

    def __init__(self, memory: memoryview) -> None:
        header = flight_records.header_of(memory)
        self.rank, self.size, self.pid = header.rank, header.size, header.pid
        self.host, self.job = header.host, header.job
        self._memory = memory
        self.capacity = header.capacity
        end = header.records_at + header.capacity * _RECORD.itemsize
        self._records = np.frombuffer(memory[header.records_at : end], _RECORD)
        self._texts_at, self._texts_bytes = header.texts_at, header.texts_bytes
        self._texts_read = 0
        self._texts: dict[int, str] = {}
        self._texts_mutex = threading.Lock()
        self._next = 0
        self._unfinished, self._unfinished_since = -1, 0.0
        self._process = Process(self.pid)

    @property
    def written(self) -> int:
        """How many events there were so far."""
        return flight_records.written_in(self._memory)

    @property
    def ended(self) -> bool:
        """Whether the rank has ended in good order."""
        return flight_records.ended_in(self._memory)

    def alive(self) -> bool:
        """Whether the rank's process runs."""
        return self._process.alive()

    def text(self, identity: int) -> str:
        """A text by its number."""
        if identity and identity not in self._texts:
            self._read_texts()
        return self._texts.get(identity, f"name {identity}") if identity else ""

    def take(self) -> tuple[list[tuple[int, ...]], int]:
        """(events since the last call, how many were overwritten before they were read). An event is (kind, detail, set,
        time, name, what, a, b)."""
        end = self.written
        begin = max(self._next, end - self.capacity)
        lost = begin - self._next
        if begin == end:
            return [], lost
        numbers = np.arange(begin, end, dtype=np.uint64)
        at = (numbers % self.capacity).astype(np.intp)
        stamps = (numbers + 1).astype(np.uint32)
        found = self._records[at]
        # A record that was overwritten meanwhile has another stamp now, though its copy may look whole.
        whole = (found["stamp"] == stamps) & (self._records["stamp"][at] == stamps)
        missing = [begin + int(i) for i in np.flatnonzero(~whole)]
        overwritten = self.written - self.capacity
        # A record that is only being written is taken the next time, with those behind it.
        stop = next((n for n in missing if n >= overwritten and not self._gives_up(n, end)), end)
        self._next = stop
        taken = found[: stop - begin][whole[: stop - begin]]
        return [event[1:] for event in taken.tolist()], lost + sum(n < stop for n in missing)

    def _gives_up(self, number: int, end: int) -> bool:
        """Whether an unfinished record is to be skipped: its thread does not continue, or newer events would be
        overwritten meanwhile."""
        if number != self._unfinished:
            self._unfinished, self._unfinished_since = number, time.monotonic()
        late = time.monotonic() - self._unfinished_since > _PATIENCE_S
        return late or end - number >= self.capacity // 2

    def counts(self) -> Counts:
        """The rank's counters. Empty for a ring of an older version."""
        made = Counts()
        if self._texts_at < _COUNTS_AT + _COUNTS.size:
            return made
        values = _COUNTS.unpack_from(self._memory, _COUNTS_AT)
        (made.batches, made.requests, made.waits, made.wait_ns, made.failures, made.stall_reports) = values[
            :6
        ]
        kinds, steps = values[8 : 8 + 2 * _KINDS], values[8 + 2 * _KINDS :]
        for number in range(_KINDS):
            if kinds[2 * number]:
                made.operations[number], made.bytes[number] = kinds[2 * number : 2 * number + 2]
        for name, count in zip(steps[::2], steps[1::2]):
            if name:
                made.collectives[self.text(name)] = count
        return made

    def last_events(self) -> flight_records.Ring:
        """All events that the ring holds now."""
        return flight_records.read_ring(bytes(self._memory))

    def _read_texts(self) -> None:
        with self._texts_mutex:
            memory = self._memory[self._texts_at : self._texts_at + self._texts_bytes]
            used = min(flight_records.texts_used_in(self._memory), self._texts_bytes)
            self._texts.update(flight_records.texts(bytes(memory[self._texts_read : used])))
            self._texts_read = used


_KINDS, _STEPS = 16, 32
_COUNTS_AT = flight_records.HEADER_BYTES
_COUNTS = struct.Struct(f"<{8 + 2 * _KINDS + 2 * _STEPS}Q")


class SharedRings:
    """The rings at a place, as they appear: a rank makes its ring in the middle of init()."""

    def __init__(self, place: Place) -> None:
        """Raises OSError if the segment cannot be opened."""
        self._unseen: list[Callable[[], memoryview]] = []
        self._found: list[SharedRing] = []
        self._mutex = threading.Lock()
        if place.segment:
            memory = _mapped(place.segment)

            def part(at: int) -> Callable[[], memoryview]:
                return lambda: memory[at + _RING_AT : at + SLOT_BYTES]

            self._unseen = [part(HEADER_BYTES + slot * SLOT_BYTES) for slot in range(place.slots)]
        elif place.file:
            self._unseen.append(lambda: _mapped(place.file))

    def look(self) -> list[SharedRing]:
        """The rings that are there now, by rank."""
        with self._mutex:
            for memory_of in list(self._unseen):
                # It may not be there yet, its rank may have deleted it, or it has another version.
                with suppress(OSError, ValueError):
                    if flight_records.is_ring(memory := memory_of()):
                        self._found.append(SharedRing(memory))
                        self._unseen.remove(memory_of)
            self._found.sort(key=lambda ring: ring.rank)
            return list(self._found)

    @property
    def complete(self) -> bool:
        """Whether all rings are there."""
        return not self._unseen


def _mapped(path: str) -> memoryview:
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ))
