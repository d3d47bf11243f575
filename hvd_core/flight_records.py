"""Reads the rings of the flight recorder: the last events of a rank, from a file that was saved or from raw memory.

    for ring in flight_records.load_job(folder):
        for event in ring.events: print(flight_records.describe(event))

The layout is hvd_core/engine/recorder/event_ring.h's, the meaning of an event's fields event.h's. A ring may be read
while its rank writes to it: a record that is being written is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SUFFIX = ".flight"
_MAGIC = b"hvdring1"
_VERSION = 1
_HEADER = struct.Struct("<8s4I4I2i2I64s64s8xQ")
HEADER_BYTES = 256
_RECORD = struct.Struct("<IBBHqIIQQ")

KINDS = {
    1: "started",
    2: "submitted",
    3: "ready",
    4: "entry",
    5: "members",
    6: "member",
    7: "begin",
    8: "step",
    9: "phase",
    10: "enqueued",
    11: "done",
    12: "waits",
    13: "waited",
    14: "failed",
    15: "set_added",
    16: "set_removed",
    17: "joined",
    18: "closed",
    19: "aborted",
    20: "cycle",
}
SET_OPERATIONS = {"set_added": 8, "set_removed": 9}
"""Operations that end with these events, without a batch: their numbers."""
_FAILURES = ("mistake", "disagreement", "end of the process set", "end of the job")


@dataclass(frozen=True)
class Event:
    """One event. ``time``: nanoseconds of CLOCK_MONOTONIC on the rank's host; ``number`` counts the rank's events.

    ``name``: of a request, of a phase, or the cause of an abort; ``what``: types and shapes, or an error. The other
    fields are the record's; event.h says what they mean for each kind.
    """

    number: int
    time: int
    kind: str
    detail: int
    set: int
    name: str
    what: str
    a: int
    b: int
    names: tuple[str, ...] = ()


@dataclass
class Ring:
    """The ring of one rank. ``events``: from the oldest to the newest; ``written``: how many there were in all;
    ``in_order``: whether the rank ended in good order; ``wall_offset``: add it to an event's time for nanoseconds since
    1970, None if that event is gone."""

    rank: int
    size: int
    pid: int
    host: str
    job: str
    written: int
    in_order: bool
    events: list[Event] = field(default_factory=list)
    wall_offset: int | None = None

    def pending(self) -> list[Event]:
        """The submissions among the events whose requests had not ended: neither done nor failed."""
        return _pending(self.events)


@dataclass(frozen=True)
class Header:
    """What a ring says about itself; offsets and sizes in bytes."""

    capacity: int
    texts_at: int
    texts_bytes: int
    records_at: int
    pid: int
    rank: int
    size: int
    host: str
    job: str


def is_ring(memory: bytes | memoryview) -> bool:
    """Whether a ring begins here. In memory that a rank shares this becomes true when the rank has laid it out."""
    return len(memory) >= HEADER_BYTES and bytes(memory[:8]) == _MAGIC


def header_of(memory: bytes | memoryview) -> Header:
    """Raises ValueError if there is no ring of this version."""
    if not is_ring(memory):
        raise ValueError("these bytes are not a flight recorder of hvd-core")
    (_, version, _, record_bytes, capacity, texts_at, texts_bytes, records_at, pid, rank, size, _, _,
     host, job, _) = _HEADER.unpack_from(memory)  # fmt: skip
    if version != _VERSION or record_bytes != _RECORD.size:
        raise ValueError(
            f"the flight recorder has version {version}, and this hvd-core reads version {_VERSION}: use the version of "
            "hvd-core that has written it"
        )
    if records_at + capacity * record_bytes > len(memory) or texts_at + texts_bytes > records_at:
        raise ValueError("the flight recorder is cut off: its file was not written to the end")
    return Header(capacity, texts_at, texts_bytes, records_at, pid, rank, size, _string(host), _string(job))


def texts_used_in(memory: bytes | memoryview) -> int:
    """Bytes of texts so far."""
    return int(_HEADER.unpack_from(memory)[11])


def ended_in(memory: bytes | memoryview) -> bool:
    """Whether the rank has ended in good order."""
    return bool(_HEADER.unpack_from(memory)[12])


def written_in(memory: bytes | memoryview) -> int:
    """How many events there were so far."""
    return int(_HEADER.unpack_from(memory)[15])


def read_ring(memory: bytes) -> Ring:
    """The ring in these bytes. Raises ValueError if they are not a ring of this version."""
    header = header_of(memory)
    written, used = written_in(memory), min(texts_used_in(memory), header.texts_bytes)
    named = dict(texts(memory[header.texts_at : header.texts_at + used]))
    ring = Ring(header.rank, header.size, header.pid, header.host, header.job, written, ended_in(memory))
    for number in range(max(0, written - header.capacity), written):
        record = _RECORD.unpack_from(memory, header.records_at + number % header.capacity * _RECORD.size)
        if record[0] == (number + 1) & 0xFFFFFFFF:
            ring.events.append(_event(number, record, named))
            if record[1] == 1:
                ring.wall_offset = record[7] - record[4]
    return ring


def writer_of(path: str | Path) -> int:
    """The pid of the rank that writes, or wrote, the ring in a file. Raises OSError, or ValueError if it is no ring."""
    with open(path, "rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or head[:8] != _MAGIC or _HEADER.unpack(head)[8] == 0:
        raise ValueError(f"{path} is not a flight recorder of hvd-core")
    return int(_HEADER.unpack(head)[8])


def load(path: str | Path) -> Ring:
    """The ring in a file. Raises OSError, or ValueError that names the file."""
    try:
        return read_ring(Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def load_job(folder: str | Path) -> list[Ring]:
    """The rings of one job, by rank: the files ``rank-N.flight`` of its folder. Raises as load() does."""
    return sorted((load(path) for path in Path(folder).glob(f"*{SUFFIX}")), key=lambda ring: ring.rank)


def jobs(folder: str | Path) -> list[Path]:
    """The folders of jobs below ``folder`` that have saved rings, the newest first."""
    found = {}
    for job in {path.parent for path in Path(folder).glob(f"*/*{SUFFIX}")}:
        with suppress(FileNotFoundError):  # its job has ended in good order meanwhile
            found[job] = job.stat().st_mtime
    return sorted(found, key=lambda job: found[job], reverse=True)


def describe(event: Event) -> str:
    """One event as a line of text without its time."""
    from hvd_core.types import OPERATIONS

    name = f"{event.name}.{event.b}" if event.b and event.kind in _NUMBERED else event.name
    of_set = f" of process set {event.set}" if event.set else ""
    operations = {op.number: op.name for op in OPERATIONS.values()}
    operation = operations.get(event.detail, f"operation {event.detail}")
    texts = {
        "started": "the engine has started",
        "submitted": f"{operation} '{name}'{of_set} was submitted: {event.what.replace('|', ' ')}, {event.a} bytes",
        "ready": f"'{name}'{of_set}: rank {event.a} of the set is ready",
        "entry": f"batch {event.a}: {operation} of {event.what} requests{of_set}: '{name}'",
        "members": "  and of " + ", ".join(f"'{one}'" for one in event.names),
        "member": f"  and of '{name}'",
        "begin": f"batch {event.a} begins",
        "step": f"batch {event.a}: {event.name} {'begins' if event.detail else 'ends'}",
        "phase": f"batch {event.a}: phase {event.name} {'begins' if event.detail else 'ends'}",
        "enqueued": f"batch {event.a} is enqueued on the device",
        "done": f"batch {event.a} is done",
        "waits": f"a caller waits for '{name}'{of_set}",
        "waited": f"'{name}'{of_set}: the wait is over after {(event.time - event.a) / 1e6:.3f} ms",
        "failed": f"'{name}'{of_set} has failed ({_at(_FAILURES, event.detail)}): {event.what}",
        "set_added": f"process set {event.set} of {event.a} ranks was added",
        "set_removed": f"process set {event.set} was removed",
        "joined": f"all ranks have joined, rank {event.a} as the last",
        "closed": f"rank {event.a} was the first to leave the job",
        "aborted": f"the job was aborted: {event.name}",
        "cycle": "a round of the engine",
    }
    return texts.get(event.kind, f"{event.kind} {event.name}".rstrip())


_NUMBERED = ("submitted", "ready", "entry", "member", "waits", "waited", "failed")


def _at(words: tuple[str, ...], index: int) -> str:
    return words[index] if index < len(words) else str(index)


def _string(text: bytes) -> str:
    return text.partition(b"\0")[0].decode(errors="replace")


def texts(memory: bytes) -> Iterator[tuple[int, str]]:
    """(number, text) of the texts that lie here one after the other."""
    at = 0
    while at + 6 <= len(memory):
        number, length = struct.unpack_from("<IH", memory, at)
        yield number, memory[at + 6 : at + 6 + length].decode(errors="replace")
        at += 6 + length


def _event(number: int, record: tuple[int, ...], named: dict[int, str]) -> Event:
    _, kind, detail, set_, time, name, what, a, b = record

    def text(identity: int) -> str:
        return named.get(identity, f"name {identity}") if identity else ""

    word = KINDS.get(kind, f"kind {kind}")
    if word == "members":
        ids = (name, what, a & 0xFFFFFFFF, a >> 32, b & 0xFFFFFFFF, b >> 32)
        return Event(number, time, word, detail, set_, "", "", 0, 0, tuple(text(i) for i in ids if i))
    counted = str(what) if word == "entry" else text(what)
    return Event(number, time, word, detail, set_, text(name), counted, a, b)


def _pending(events: Iterable[Event]) -> list[Event]:
    open_: dict[tuple[int, str, int], Event] = {}
    batches: dict[int, list[tuple[int, str, int]]] = {}
    newest: list[tuple[int, str, int]] = []
    for event in events:
        key = (event.set, event.name, event.b)
        if event.kind == "submitted":
            open_[key] = event
        elif event.kind == "failed":
            open_.pop(key, None)
        elif event.kind == "entry":
            newest = batches[event.a] = [key]
        elif event.kind == "member":
            newest.append(key)
        elif event.kind == "members":
            newest += [(event.set, name, 0) for name in event.names]
        elif event.kind == "done":
            for one in batches.pop(event.a, ()):
                open_.pop(one, None)
        elif event.kind in SET_OPERATIONS:
            number = SET_OPERATIONS[event.kind]
            done = next((k for k, asked in open_.items() if asked.detail == number), None)
            if done is not None:
                del open_[done]
    return list(open_.values())
