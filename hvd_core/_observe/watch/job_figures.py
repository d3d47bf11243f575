"""What the page of a job on several hosts gets: the figures of the first host's watcher, together with the answers of
the watchers of the other hosts (other_hosts.py), all in the clock of the first host.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from hvd_core._observe.watch.host_figures import (
    KEPT_ROUNDS_NS,
    RUNS,
    SHOWN_STALLS,
    SHOWN_TENSORS,
    STALL_S,
    HostFigures,
)
from hvd_core._observe.watch.rank_figures import Request
from hvd_core._observe.watch.rounds import Part, Rounds, Stragglers
from hvd_core._observe.watch.shared_rings import SharedRings

ALL_STALLS = (0.0, 500)
"""With these a host tells all operations that wait, so that one that it does not tell is not submitted there."""
_MOST_ROUNDS = 5_000
_KEPT_TRIPS = 20
_OWN = -1


class ToldFigures(HostFigures):
    """The figures of a host that another host's watcher asks for."""

    def __init__(self, rings: SharedRings) -> None:
        self._told: deque[tuple[Request, Part]] = deque(maxlen=_MOST_ROUNDS)
        super().__init__(rings, lambda request, part: self._told.append((request, part)))

    def answer(self, after: int) -> dict[str, Any]:
        """For JobFigures.take() of the first host."""
        made = self.for_page(after, "the page of the first host", ALL_STALLS)
        made["origin"] = self.origin
        made["clock"] = time.monotonic_ns()
        told = [self._told.popleft() for _ in range(len(self._told))]
        made["rounds"] = [
            [*request, part.submitted, part.rank, part.before, part.entered] for request, part in told
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
