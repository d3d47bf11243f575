"""What one rank does, from its events: spans to draw, and figures. Plain bookkeeping, one event after the other.

Times are nanoseconds of the host's clock. When events were lost, what was open is forgotten, and the figures continue
from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hvd_core.flight_records import SET_OPERATIONS

# Numbers of kinds, see hvd_core/engine/recorder/event.h.
SUBMITTED, ENTRY, MEMBERS, MEMBER, STEP, PHASE, DONE = 2, 4, 5, 6, 8, 9, 11
WAITS, WAITED, FAILED, SET_ADDED, SET_REMOVED, ABORTED = 12, 13, 14, 15, 16, 19

WAIT_ROW, NEGOTIATE_ROW, BATCH_ROW, BACKEND_ROW = range(4)
_MOST_OPEN, _MOST_BATCHES, _KEPT_STEPS, _MOST_NAMES = 100_000, 10_000, 120, 5_000
OTHERS = "(others)"

Key = tuple[int, int, int]
"""Process set, number of the name's text on this rank, number of the request."""
Request = tuple[int, str, int]
"""The same with the text itself, so that it means the same request on all ranks."""


@dataclass(slots=True)
class Open:
    """A submission that is not done."""

    time: int
    bytes: int
    operation: int
    entered: bool = False  # all ranks have submitted it


@dataclass(slots=True)
class Batch:
    operation: int
    entered: int
    count: int
    keys: list[Key]
    steps: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Sum:
    """Of all operations of a name, or of all collectives of one: how many, bytes, nanoseconds."""

    count: int = 0
    bytes: int = 0
    time: int = 0


Span = tuple[int, int, int, int, int]
"""Row, begin, end, number of the name's text (0: of an operation), details: requests and operation of a batch."""


class RankFigures:
    """The events of one rank, taken in their order.

    Args:
        text: a text by its number.
        entered: called for each batch: first request, its last submission here, its entry of the log.
        span: called for each span to draw.
    """

    def __init__(
        self,
        text: Callable[[int], str],
        entered: Callable[[Request, int, int], None],
        span: Callable[[Span], None],
    ) -> None:
        self._text, self._entered, self._span = text, entered, span
        self.open: dict[Key, Open] = {}
        self._tensors: dict[int, Sum] = {}  # by the number of the name's text
        self.collectives: dict[str, Sum] = {}
        self.steps: deque[tuple[int, int, int]] = deque(maxlen=_KEPT_STEPS)
        """(begin, length, exposed) of the last steps."""
        self.steps_done = 0
        self.bytes = self.operations = self.failures = self.lost = 0
        self.last_event = 0
        self.aborted = self.failed = ""
        self.sets: set[int] = set()
        """Process sets in which the rank has submitted operations."""
        self._batches: dict[int, Batch] = {}
        self._newest: Batch | None = None
        self._waiting: dict[Key, int] = {}
        self._wait_since = self._exposed = 0
        self._step_names: set[Key] = set()
        self._step_begin = self._step_exposed = 0

    def exposed(self, now: int) -> int:
        """Nanoseconds so far in which at least one caller waited."""
        return self._exposed + (max(0, now - self._wait_since) if self._waiting else 0)

    @property
    def waiting(self) -> bool:
        """Whether a caller waits."""
        return bool(self._waiting)

    @property
    def tensors(self) -> dict[str, Sum]:
        """The sums of each name, and of OTHERS."""
        return {self._text(name) if name >= 0 else OTHERS: made for name, made in self._tensors.items()}

    def forget(self, lost: int) -> None:
        """Events were lost: the ends of open requests and batches may be among them."""
        self.lost += lost
        self.open.clear()
        self._batches.clear()
        self._waiting.clear()
        self._step_names.clear()
        self._newest = None

    def take(self, events: Iterable[tuple[int, ...]]) -> None:
        """Take events: (kind, detail, set, time, name, what, a, b)."""
        for kind, detail, set_, time, name, what, a, b in events:
            self.last_event = time
            if kind == SUBMITTED:
                self._submitted((set_, name, b), time, detail, a)
            elif kind == MEMBERS:
                if self._newest is not None:
                    ids = (name, what, a & 0xFFFFFFFF, a >> 32, b & 0xFFFFFFFF, b >> 32)
                    self._newest.keys += [(set_, one, 0) for one in ids if one]
            elif kind in (STEP, PHASE):
                self._step(self._batches.get(a), detail == 1, name, time)
            elif kind == ENTRY:
                self._enter_newest()
                if len(self._batches) >= _MOST_BATCHES:
                    self._batches.clear()
                self._newest = self._batches[a] = Batch(detail, time, what, [(set_, name, b)])
            elif kind == DONE:
                self._done(self._batches.pop(a, None), time)
            elif kind == WAITS:
                if not self._waiting:
                    self._wait_since = time
                self._waiting[set_, name, b] = time
            elif kind == WAITED:
                self._waited((set_, name, b), time)
            elif kind == MEMBER:
                if self._newest is not None:
                    self._newest.keys.append((set_, name, b))
            elif kind == FAILED:
                self.failures += 1
                self.failed = f"'{self.name_of((set_, name, b))}': {self._text(what)}"
                self.open.pop((set_, name, b), None)
            elif kind in (SET_ADDED, SET_REMOVED):
                self._settle_set(SET_OPERATIONS["set_added" if kind == SET_ADDED else "set_removed"])
            elif kind == ABORTED:
                self.aborted = self._text(name) or "the job was aborted"
        # The members of the newest batch may follow with the next events.
        if self._newest is not None and len(self._newest.keys) >= self._newest.count:
            self._enter_newest()

    def name_of(self, key: Key) -> str:
        """The name of a request."""
        return f"{self._text(key[1])}.{key[2]}" if key[2] else self._text(key[1])

    def request_of(self, key: Key) -> Request:
        """A request by what all ranks know of it."""
        return key[0], self._text(key[1]), key[2]

    def _submitted(self, key: Key, time: int, operation: int, bytes_: int) -> None:
        if len(self.open) >= _MOST_OPEN:
            self.open.clear()
        self.open[key] = Open(time, bytes_, operation)
        self.sets.add(key[0])
        if key[2]:
            return  # without a name of its own: it does not repeat
        # A name that comes again begins the next step.
        if key in self._step_names:
            exposed = self.exposed(time)
            self.steps.append((self._step_begin, time - self._step_begin, exposed - self._step_exposed))
            self.steps_done += 1
            self._step_names.clear()
            self._step_begin, self._step_exposed = time, exposed
        elif not self._step_names:
            self._step_begin, self._step_exposed = time, self.exposed(time)
        if len(self._step_names) < _MOST_OPEN:
            self._step_names.add(key)

    def _enter_newest(self) -> None:
        """All members of the newest batch are known now."""
        batch, self._newest = self._newest, None
        if batch is None:
            return
        members = [self.open[key] for key in batch.keys if key in self.open]
        for member in members:
            member.entered = True
        times = [member.time for member in members]
        if times:
            self._entered(self.request_of(batch.keys[0]), max(times), batch.entered)
            self._span((NEGOTIATE_ROW, min(times), batch.entered, 0, batch.count << 8 | batch.operation))

    def _settle_set(self, operation: int) -> None:
        """A process set was added or removed, which has no batch: the oldest request for that is done."""
        done = next((key for key, request in self.open.items() if request.operation == operation), None)
        if done is not None:
            del self.open[done]

    def _step(self, batch: Batch | None, begins: bool, name: int, time: int) -> None:
        if batch is None:
            return
        if begins:
            batch.steps.append((name, time))
        elif batch.steps:
            name, since = batch.steps.pop()
            self._collective(batch, name, since, time)

    def _collective(self, batch: Batch, name: int, since: int, time: int) -> None:
        made = _of(self.collectives, self._text(name))
        made.count += 1
        made.time += time - since
        self._span((BACKEND_ROW, since, time, name, batch.count << 8 | batch.operation))

    def _done(self, batch: Batch | None, time: int) -> None:
        if batch is None:
            return
        if batch is self._newest:
            self._enter_newest()
        for name, since in batch.steps:
            self._collective(batch, name, since, time)
        moved = 0
        for key in batch.keys:
            request = self.open.pop(key, None)
            if request is None:
                continue
            made = self._tensors.get(key[1]) or self._tensor(key[1])
            made.count += 1
            made.bytes += request.bytes
            made.time += time - request.time
            moved += request.bytes
        self.bytes += moved
        self.operations += batch.count
        first = batch.keys[0][1] if batch.count == 1 else 0
        self._span((BATCH_ROW, batch.entered, time, first, batch.count << 8 | batch.operation))

    def _tensor(self, name: int) -> Sum:
        return self._tensors.setdefault(name if len(self._tensors) < _MOST_NAMES else -1, Sum())

    def _waited(self, key: Key, time: int) -> None:
        if self._waiting.pop(key, None) is None or self._waiting:
            return
        self._exposed += time - self._wait_since
        self._span((WAIT_ROW, self._wait_since, time, key[1], 0))


def _of(sums: dict[str, Sum], name: str) -> Sum:
    if name not in sums and len(sums) >= _MOST_NAMES:
        name = OTHERS
    return sums.setdefault(name, Sum())


# Stragglers: the member that is the last to submit an operation. The submissions of all members precede the entry of
# their batch on each of them. So two members speak of the same batch if each one's submission precedes the other's
# entry. Members are the ranks of a host, or the hosts of a job.

_MOST_REQUESTS, _MOST_ROUNDS = 20_000, 512
_KEPT_LATE = 1_000


@dataclass(frozen=True, slots=True)
class Part:
    """What a member knows of a batch: its last submission and the rank that made it, the submission before that if there
    are several, the entry. Times of one clock in nanoseconds."""

    submitted: int
    rank: int
    before: int | None
    entered: int


@dataclass
class Straggler:
    """How often a rank was the last one, and how long behind the one before."""

    last: int = 0
    behind: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT_LATE))


class Stragglers:
    """All stragglers by their ranks."""

    def __init__(self) -> None:
        self._found: dict[int, Straggler] = {}

    def note(self, part: Part) -> None:
        """A batch of which all parts are known."""
        if part.before is not None:
            straggler = self._found.setdefault(part.rank, Straggler())
            straggler.last += 1
            straggler.behind.append(part.submitted - part.before)

    def shown(self) -> list[list[Any]]:
        """[rank, how often, median microseconds behind], the most frequent one first."""
        found = sorted(self._found.items(), key=lambda item: -item[1].last)
        return [[rank, s.last, median(s.behind) / 1000] for rank, s in found]


class Rounds:
    """The batches of which some parts are known.

    Args:
        members: how many members there are now. closed: called with the request and what all members together know,
        for each batch that is whole or will never be.
    """

    def __init__(self, members: Callable[[], int], closed: Callable[[Request, Part], None]) -> None:
        self._members, self._closed = members, closed
        self._rounds: dict[Request, deque[dict[int, Part]]] = {}

    def entered(self, member: int, request: Request, part: Part, since: int) -> None:
        """A member has got the entry of a batch. Batches whose entries are older than ``since`` never become whole."""
        if request not in self._rounds and len(self._rounds) >= _MOST_REQUESTS:
            self._rounds.clear()
        rounds = self._rounds.setdefault(request, deque(maxlen=_MOST_ROUNDS))
        while rounds and all(known.entered < since for known in rounds[0].values()):
            self._close(request, rounds.popleft())
        batch = None
        for other in reversed(rounds):
            if member in other:
                break  # all earlier ones precede this batch
            if all(p.submitted <= part.entered and part.submitted <= p.entered for p in other.values()):
                batch = other
        if batch is None:
            batch = {}
            rounds.append(batch)
        batch[member] = part
        if len(batch) == self._members():
            # Earlier ones lack a member, which is not in the process set or has lost events.
            while rounds:
                first = rounds.popleft()
                self._close(request, first)
                if first is batch:
                    break

    def _close(self, request: Request, batch: dict[int, Part]) -> None:
        parts = sorted(batch.values(), key=lambda part: (part.submitted, part.rank))
        last = parts[-1]
        before = [part.submitted for part in parts[:-1]] + ([] if last.before is None else [last.before])
        entered = min(part.entered for part in parts)
        self._closed(request, Part(last.submitted, last.rank, max(before, default=None), entered))
