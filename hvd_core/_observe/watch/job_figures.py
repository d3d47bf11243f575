"""The figures of a job for the page of the live timeline: the ranks of this host, and the answers of other hosts.

All rings of a host are read in turn: stragglers, stalls, ends of ranks. The first host's watcher adds the answers of
the other hosts' watchers, in its own clock. Nothing is read while no page asks, so that a watcher without a page costs
nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from heapq import nlargest
from typing import Any

from hvd_core._observe.watch.rank_figures import (
    Open,
    Part,
    RankFigures,
    Request,
    Rounds,
    Span,
    Stragglers,
    Sum,
)
from hvd_core._observe.watch.shared_rings import SharedRing, SharedRings
from hvd_core.types import OPERATIONS

VIEWER_TIMEOUT_S = 10.0
"""For so long after the last question of a page that is not closed the rings are read."""
STALL_S = 2.0
_KEPT_SPANS, _SENT_SPANS = 60_000, 8_000
_KEPT_RATES = 240
KEPT_ROUNDS_NS = 4_000_000_000  # longer than a ring is read later for a record that is not whole
SHOWN_TENSORS, SHOWN_STALLS = 15, 8
_TENSORS_NS = 1_000_000_000  # the age at which the sums of all tensors are added anew
_MOST_PAGES = 64
RUNS, ENDED, DIED, ABORTED = "runs", "ended", "died", "aborted"


class _Rank:
    """A rank as the page shows it."""

    def __init__(self, ring: SharedRing, host: HostFigures) -> None:
        self.ring = ring
        self.ended_at = 0
        rank = ring.rank
        self.figures = RankFigures(
            ring.text,
            lambda request, submitted, entered: host.entered(rank, request, submitted, entered),
            lambda span: host.spans.append((rank, span)),
        )
        self.rates: deque[tuple[int, float, float, float]] = deque(maxlen=_KEPT_RATES)
        """(time, bytes per second, operations per second, share of exposed time)."""
        self._before = (0, 0, 0, 0)

    def note_rates(self, now: int) -> None:
        made = self.figures
        sums = (now, made.bytes, made.operations, made.exposed(now))
        before, self._before = self._before, sums
        took = (now - before[0]) / 1e9
        if before[0] and took > 0:
            moved, done, exposed = (b - a for a, b in zip(before[1:], sums[1:]))
            self.rates.append((now, moved / took, done / took, min(1.0, exposed / 1e9 / took)))

    def take(self, now: int, resumed: bool) -> float:
        """Take what the rank has written. ``resumed``: no page has asked for a while, so that events may lack. Returns
        which share of the ring was new."""
        events, lost = self.ring.take()
        if lost:
            self.figures.forget(0 if resumed else lost)
        self.figures.take(events)
        if resumed:
            made = self.figures
            self._before = (now, made.bytes, made.operations, made.exposed(now))
        return 1.0 if lost else len(events) / self.ring.capacity

    @property
    def state(self) -> str:
        if not self.ended_at:
            return RUNS
        if self.ring.ended:
            return ENDED
        return ABORTED if self.figures.aborted else DIED

    def look_at_process(self, now: int) -> None:
        if not self.ended_at and (self.ring.ended or not self.ring.alive()):
            self.ended_at = now


class HostFigures:
    """The ranks of a host. read() is called again and again by one thread; any thread may call the others."""

    def __init__(
        self, rings: SharedRings, on_round: Callable[[Request, Part], None] = lambda request, part: None
    ) -> None:
        """``on_round``: called for each batch with the knowledge of the ranks of this host."""
        self._rings = rings
        self._ranks: dict[int, _Rank] = {}
        self._mutex = threading.Lock()
        self._pages: dict[str, float] = {}  # when each page has asked
        self._reading = False
        self._origin = time.monotonic_ns()
        self.spans: _Numbered = _Numbered()
        self._rounds = Rounds(lambda: len(self._ranks), self._on_round)
        self._late = Stragglers()
        self._on_closed = on_round
        self._rates_at = 0
        self._read_at = self._origin
        self._rounds_from = 0
        self._tensors_at = 0
        self._tensors_shown: list[Any] = []

    def has_viewers(self) -> bool:
        """Whether a page has asked lately."""
        since = time.monotonic() - VIEWER_TIMEOUT_S
        return any(at > since for at in list(self._pages.values()))

    def note_closed(self, page: str) -> None:
        """The page is closed or hidden. It may ask again."""
        self._pages.pop(page, None)

    def is_over(self) -> bool:
        """Whether no rank runs any more."""
        return bool(self._ranks) and all(r.state != RUNS for r in self._ranks.values())

    def read(self) -> float:
        """Take what the ranks have written since the last time. Without a page, look only which of them run. Returns the
        greatest share of a ring that was new."""
        with self._mutex:
            for ring in self._rings.look():
                if ring.rank not in self._ranks:
                    self._ranks[ring.rank] = _Rank(ring, self)
            # If the last look took events, they were all that there were, up to those that were only being written.
            self._rounds_from = self._read_at - KEPT_ROUNDS_NS if self._reading else 0
            self._read_at = now = time.monotonic_ns()
            for rank in self._ranks.values():
                rank.look_at_process(now)
            viewed, was = self.has_viewers(), self._reading
            self._reading = viewed
            new = 0.0
            if viewed:
                new = max((rank.take(now, not was) for rank in self._ranks.values()), default=0.0)
            if viewed and now - self._rates_at > 450_000_000:
                self._rates_at = now
                for rank in self._ranks.values():
                    if not rank.ended_at:
                        rank.note_rates(now)
            return new

    def entered(self, rank: int, request: Request, submitted: int, entered: int) -> None:
        """A rank has got the entry of a batch."""
        self._rounds.entered(rank, request, Part(submitted, rank, None, entered), self._rounds_from)

    def _on_round(self, request: Request, part: Part) -> None:
        self._late.note(part)
        self._on_closed(request, part)

    def add_spans(self, spans: list[tuple[int, Span]]) -> None:
        """Spans of ranks on other hosts, with texts instead of the numbers of names."""
        with self._mutex:
            for span in spans:
                self.spans.append(span)

    @property
    def origin(self) -> int:
        """Nanoseconds of the clock from which the page counts."""
        return self._origin

    # ------------------------------------------------------------------------------------------------- for the page

    def for_page(
        self, after: int, page: str = "", stalls: tuple[float, int] = (STALL_S, SHOWN_STALLS)
    ) -> dict[str, Any]:
        """What the page draws; times in microseconds since the start of the watcher. ``after``: the number of the last
        span that it has; ``page``: its own name; ``stalls``: the least seconds that an operation has waited, and the
        most
        operations."""
        if page not in self._pages and len(self._pages) >= _MOST_PAGES:
            self._pages.clear()
        self._pages[page] = time.monotonic()
        with self._mutex:
            now = time.monotonic_ns()
            spans, last, skipped = self.spans.after(after, _SENT_SPANS)
            names = _Names()
            drawn = [
                [
                    rank,
                    row,
                    self._micros(begin),
                    max(0, (end - begin) // 1000),
                    self._label(names, rank, name, what),
                ]
                for rank, (row, begin, end, name, what) in spans
            ]
            return {
                "now": self._micros(now),
                "read": self._micros(self._read_at),
                "last": last,
                "skipped": skipped,
                "spans": drawn,
                "names": names.all,
                "ranks": [self._of_rank(rank, now) for rank in self._ranks.values()],
                "tensors": self._tensors(now),
                "collectives": self._collectives(),
                "stragglers": self._late.shown(),
                "stalls": self._stalls(now, *stalls),
            }

    def _micros(self, at: int) -> int:
        return (at - self._origin) // 1000

    def _label(self, names: _Names, rank: int, name: int | str, what: int) -> int:
        if isinstance(name, str):  # of another host
            return names.number(name)
        count, operation = what >> 8, _LABELS.get(what & 255, "operation")
        text = self._ranks[rank].ring.text(name) if name else ""
        if not what:
            return names.number(f"WAIT {text}")
        if text:
            return names.number(text)
        return names.number(f"{operation} of {count} requests" if count > 1 else operation)

    def _of_rank(self, rank: _Rank, now: int) -> dict[str, Any]:
        made, ring = rank.figures, rank.ring
        return {
            "rank": ring.rank,
            "pid": ring.pid,
            "host": ring.host,
            "state": rank.state,
            "ended": self._micros(rank.ended_at) if rank.ended_at else None,
            "aborted": made.aborted,
            "failed": made.failed,
            "failures": made.failures,
            "waiting": made.waiting,
            "pending": len(made.open),
            "not done": [made.name_of(key) for key in list(made.open)[:SHOWN_STALLS]],
            "silent": (now - made.last_event) // 1000 if made.last_event else None,
            "lost": made.lost,
            "steps": [
                [self._micros(begin), took // 1000, exposed // 1000] for begin, took, exposed in made.steps
            ],
            "steps done": made.steps_done,
            "rates": [[self._micros(at), round(b), round(o, 1), round(e, 4)] for at, b, o, e in rank.rates],
        }

    def _tensors(self, now: int) -> list[list[Any]]:
        # There may be thousands, so that the sums cost more than all else that a page gets.
        if now - self._tensors_at > _TENSORS_NS or len(self._tensors_shown) < SHOWN_TENSORS:
            self._tensors_at = now
            found = _added(rank.figures.tensors for rank in self._ranks.values())
            most = nlargest(SHOWN_TENSORS, found.items(), key=lambda item: item[1].time)
            self._tensors_shown = [[name, s.count, s.bytes, s.time // 1000] for name, s in most]
        return self._tensors_shown

    def _collectives(self) -> list[list[Any]]:
        found = _added(rank.figures.collectives for rank in self._ranks.values())
        return [
            [name, s.count, s.time // 1000] for name, s in sorted(found.items(), key=lambda i: -i[1].time)
        ]

    def _stalls(self, now: int, least_s: float, most: int) -> list[dict[str, Any]]:
        """Operations that wait for long, with the ranks of this host that have submitted them and those that have not: of
        a process set, those of its ranks that have used it before."""
        running = {number: rank.figures for number, rank in self._ranks.items() if rank.state == RUNS}
        asked: dict[Request, dict[int, Open]] = {}
        for number, made in running.items():
            for key, request in made.open.items():
                asked.setdefault(made.request_of(key), {})[number] = request
        found: list[dict[str, Any]] = []
        for (set_, text, count), by in asked.items():
            age = now - min(request.time for request in by.values())
            if age < least_s * 1e9:
                continue
            members = [number for number, made in running.items() if not set_ or set_ in made.sets]
            everywhere = any(request.entered for request in by.values())
            found.append(
                {
                    "name": f"{text}.{count}" if count else text,
                    "set": set_,
                    "age": age // 1000,
                    "entered": everywhere,
                    "submitted": sorted(by),
                    "missing": [] if everywhere else [number for number in members if number not in by],
                }
            )
        return sorted(found, key=lambda stall: -stall["age"])[:most]


_LABELS = {operation.number: operation.label for operation in OPERATIONS.values()} | {7: "ADASUM"}


class _Numbered:
    """The last spans, numbered from 1."""

    def __init__(self) -> None:
        self._spans: deque[tuple[int, Span]] = deque(maxlen=_KEPT_SPANS)
        self._count = 0

    def append(self, span: tuple[int, Span]) -> None:
        self._spans.append(span)
        self._count += 1

    def after(self, number: int, most: int) -> tuple[list[tuple[int, Span]], int, int]:
        """(the newest spans behind this number, the number of the last one, how many were left out)."""
        new = max(0, self._count - number) if 0 <= number <= self._count else self._count
        sent = min(new, most, len(self._spans))
        spans = [self._spans[i] for i in range(len(self._spans) - sent, len(self._spans))] if sent else []
        return spans, self._count, new - sent


class _Names:
    """The texts of one answer."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._known: dict[str, int] = {}

    def number(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = len(self.all)
            self.all.append(text)
        return self._known[text]


def _added(sums: Iterable[Mapping[str, Sum]]) -> dict[str, Sum]:
    found: dict[str, Sum] = {}
    for one in sums:
        for name, s in one.items():
            total = found.setdefault(name, Sum())
            total.count += s.count
            total.bytes += s.bytes
            total.time += s.time
    return found


ALL_STALLS = (0.0, 500)
"""With these limits a host reports all operations that wait: one that it does not report was not submitted there."""
_MOST_ROUNDS = 5_000
_KEPT_TRIPS = 20
_OWN = -1


class ReportedFigures(HostFigures):
    """The figures of a host that another host's watcher asks for."""

    def __init__(self, rings: SharedRings) -> None:
        self._entries: deque[tuple[Request, Part]] = deque(maxlen=_MOST_ROUNDS)
        super().__init__(rings, lambda request, part: self._entries.append((request, part)))

    def answer(self, after: int) -> dict[str, Any]:
        """For JobFigures.take() of the first host."""
        made = self.for_page(after, "the page of the first host", ALL_STALLS)
        made["origin"] = self.origin
        made["clock"] = time.monotonic_ns()
        entries = [self._entries.popleft() for _ in range(len(self._entries))]
        made["rounds"] = [
            [*request, part.submitted, part.rank, part.before, part.entered] for request, part in entries
        ]
        return made


class _Host:
    """Another host, as its watcher has answered last."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {}
        self.trips: deque[tuple[int, int]] = deque(maxlen=_KEPT_TRIPS)
        """(length of a question in nanoseconds, difference of the clocks that it shows)."""
        self.answers = False

    @property
    def ahead(self) -> int:
        """What the host's clock is ahead of ours: the shortest question errs least."""
        return min(self.trips)[1]


class JobFigures:
    """All hosts' figures. ``rings``: those of this host. Any thread may call."""

    def __init__(self, rings: SharedRings) -> None:
        self.host = HostFigures(rings, lambda request, part: self._entered(_OWN, request, part))
        self._mutex = threading.Lock()
        self._hosts: dict[int, _Host] = {}
        self._late = Stragglers()
        self._rounds = Rounds(
            lambda: 1 + sum(host.answers for host in self._hosts.values()),
            lambda _, part: self._late.note(part),
        )

    def _entered(self, host: int, request: Request, part: Part) -> None:
        with self._mutex:
            self._rounds.entered(host, request, part, time.monotonic_ns() - KEPT_ROUNDS_NS)

    def last_span(self, number: int) -> int:
        """The number of the last span of a host that was taken."""
        with self._mutex:
            host = self._hosts.get(number)
            return host.answer.get("last", 0) if host else 0

    def take(self, number: int, answer: dict[str, Any], asked: int, answered: int) -> None:
        """What the watcher of another host has answered to a question between two times of our clock."""
        with self._mutex:
            host = self._hosts.setdefault(number, _Host())
            host.trips.append((answered - asked, answer["clock"] - (asked + answered) // 2))
            host.answer, host.answers = answer, True
            ahead = host.ahead
        begin = answer["origin"] - ahead  # nanoseconds of our clock
        names = answer["names"]
        self.host.add_spans(
            [
                (rank, (row, begin + at * 1000, begin + (at + length) * 1000, names[name], 0))
                for rank, row, at, length, name in answer.pop("spans")
            ]
        )
        for set_, text, count, submitted, rank, before, entered in answer.pop("rounds"):
            earlier = None if before is None else before - ahead
            part = Part(submitted - ahead, rank, earlier, entered - ahead)
            self._entered(number, (set_, text, count), part)

    def lose(self, number: int) -> None:
        """The watcher of another host does not answer any more."""
        with self._mutex:
            if number in self._hosts:
                self._hosts[number].answers = False

    def for_page(self, after: int, page: str) -> dict[str, Any]:
        """What the page draws: that of HostFigures.for_page(), of all hosts that have answered."""
        made = self.host.for_page(after, page, ALL_STALLS)
        with self._mutex:
            others = [host for host in self._hosts.values() if host.answer]
            made["stragglers"] = self._late.shown()
            shifts = [(h.answer["origin"] - h.ahead - self.host.origin) // 1000 for h in others]
        parts = [made, *(host.answer for host in others)]
        stalls = _stalls(parts)
        for host, shift in zip(others, shifts):
            made["ranks"] = made["ranks"] + [
                _shifted(rank, shift, host.answers) for rank in host.answer["ranks"]
            ]
        made["ranks"].sort(key=lambda rank: rank["rank"])
        made["tensors"] = _summed([part["tensors"] for part in parts], -1)[:SHOWN_TENSORS]
        made["collectives"] = _summed([part["collectives"] for part in parts], -1)
        made["stalls"] = stalls
        return made


def _shifted(rank: dict[str, Any], shift: int, answers: bool) -> dict[str, Any]:
    """A rank of another host with the times of our page."""
    made = dict(rank)
    made["steps"] = [[begin + shift, *rest] for begin, *rest in rank["steps"]]
    made["rates"] = [[at + shift, *rest] for at, *rest in rank["rates"]]
    made["ended"] = None if rank["ended"] is None else rank["ended"] + shift
    if rank["state"] == RUNS and not answers:
        made["state"] = "no answer"
    return made


def _summed(tables: list[list[list[Any]]], by: int) -> list[list[Any]]:
    """Lines [name, number, ...] of several tables, added by names, the greatest ones of a column first."""
    found: dict[str, list[int]] = {}
    for name, *numbers in (line for table in tables for line in table):
        found[name] = [a + b for a, b in zip(found.get(name, [0] * len(numbers)), numbers)]
    return sorted(([name, *numbers] for name, numbers in found.items()), key=lambda line: -line[by])


def _stalls(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The operations that wait, with the ranks of all hosts that have submitted them and those that have not."""
    running = {rank["rank"] for part in parts for rank in part["ranks"] if rank["state"] == RUNS}
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for stall in (one for part in parts for one in part["stalls"]):
        key = (stall["name"], stall["set"])
        merged = found.setdefault(key, {**stall, "submitted": [], "missing": []})
        merged["age"] = max(merged["age"], stall["age"])
        merged["entered"] |= stall["entered"]
        merged["submitted"] = sorted(merged["submitted"] + stall["submitted"])
        # Of a process set only the hosts that know the operation say which ranks are missing.
        merged["missing"] = sorted(merged["missing"] + stall["missing"])
    for merged in found.values():
        if merged["entered"]:
            merged["missing"] = []
        elif not merged["set"]:
            merged["missing"] = sorted(running - set(merged["submitted"]))
    shown = [stall for stall in found.values() if stall["age"] >= STALL_S * 1e6]
    return sorted(shown, key=lambda stall: -stall["age"])[:SHOWN_STALLS]
