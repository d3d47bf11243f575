"""What a timeline tells about a job, in figures: communication that callers waited for, overlap, stragglers, the tensors
that took the longest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from hvd_core._observe import timeline_file
from hvd_core._observe.timeline_file import Event

_OPERATION = re.compile(r"[A-Z_]+")
_NEGOTIATE = "NEGOTIATE_"
_BYTES = {"bool": 1, "bfloat16": 2}


@dataclass
class Tensor:
    """Times in microseconds, sums over all operations of this name. ``bytes``: of the tensors as this rank has them."""

    name: str
    operations: int = 0
    negotiating: int = 0
    running: int = 0
    bytes: int = 0


@dataclass
class Straggler:
    """How often a rank was the last one to be ready, and by how many microseconds after the one before it."""

    rank: int
    last: int = 0
    behind: list[int] = field(default_factory=list)

    @property
    def median_behind(self) -> float:
        """In microseconds."""
        return median(self.behind) if self.behind else 0.0


@dataclass
class Summary:
    """One rank's timeline. Times are microseconds.

    ``span``: from the first event to the last. ``communication``: while at least one operation was carried out;
    ``exposed``: while a caller waited for one; ``hidden``: communication while no caller waited, which is the overlap
    with the program's own work. ``activities``: sums by name. ``lost``: events that the file lacks.
    """

    rank: int | None
    size: int | None
    span: int = 0
    communication: int = 0
    exposed: int = 0
    hidden: int = 0
    tensors: list[Tensor] = field(default_factory=list)
    stragglers: list[Straggler] = field(default_factory=list)
    activities: dict[str, int] = field(default_factory=dict)
    lost: int = 0


def summarize(events: list[Event]) -> Summary:
    """The figures of one rank's file. Raises ValueError for a merged file, in which ranks are processes."""
    facts = timeline_file.about_rank(events)
    if any(e["ph"] == "M" and e["name"] == "thread_name" for e in events):
        raise ValueError("this timeline was merged; summarize the files of the ranks")
    names = timeline_file.tensor_names(events)
    made = Summary(facts.get("rank"), facts.get("size"))
    tensors = {pid: Tensor(name) for pid, name in names.items()}
    ranks: dict[int, Straggler] = {}
    open_: dict[int, list[tuple[str, int]]] = {}
    ticks: dict[int, list[tuple[int, int]]] = {}
    runs: list[tuple[int, int]] = []
    waits: list[tuple[int, int]] = []
    timed = [e for e in events if e["ph"] != "M"]
    for event in timed:
        pid, at = event.get("pid", 0), int(event["ts"])
        spans = open_.setdefault(pid, [])
        if event["ph"] == "B":
            spans.append((event["name"], at))
            if event["name"].startswith(_NEGOTIATE):
                ticks[pid] = []
        elif event["ph"] == "E" and spans:
            name, since = spans.pop()
            _end_of_span(made, tensors.get(pid), name, at - since, len(spans), event)
            if name.startswith(_NEGOTIATE):
                _count_last(ticks.pop(pid, []), ranks)
            elif not spans:
                runs.append((since, at))
        elif timeline_file.is_rank_tick(event):
            ticks.setdefault(pid, []).append((at, int(event["name"])))
        elif event["ph"] == "X" and event["name"] == "WAIT":
            waits.append((at, at + int(event["dur"])))
        elif event.get("name") == "EVENTS_LOST":
            made.lost += event["args"]["count"]
    if timed:
        ends = [int(e["ts"]) + int(e.get("dur", 0)) for e in timed]
        made.span = max(ends) - min(int(e["ts"]) for e in timed)
    made.communication, made.exposed = _covered(runs), _covered(waits)
    made.hidden = max(0, _covered(runs + waits) - made.exposed)
    made.tensors = sorted((t for t in tensors.values() if t.operations), key=lambda t: -t.running)
    made.stragglers = sorted(ranks.values(), key=lambda s: (-s.last, s.rank))
    return made


def _end_of_span(
    made: Summary, tensor: Tensor | None, name: str, took: int, depth: int, event: Event
) -> None:
    if name.startswith(_NEGOTIATE):
        if tensor:
            tensor.negotiating += took
    elif depth:
        made.activities[name] = made.activities.get(name, 0) + took
    elif tensor:
        tensor.operations += 1
        tensor.running += took
        args = event.get("args", {})
        tensor.bytes += _bytes(args.get("dtype", ""), args.get("shape", ""))


def _count_last(ticks: list[tuple[int, int]], ranks: dict[int, Straggler]) -> None:
    for _, rank in ticks:
        ranks.setdefault(rank, Straggler(rank))
    if len(ticks) < 2:
        return
    before, (at, rank) = sorted(ticks)[-2:]
    ranks[rank].last += 1
    ranks[rank].behind.append(at - before[0])


def _bytes(dtype: str, shapes: str) -> int:
    width = _BYTES.get(dtype) or int((re.search(r"(\d+)", dtype) or [0, "0"])[1]) // 8
    total = 0
    for shape in re.findall(r"\[([^\]]*)\]", shapes):
        count = 1
        for size in shape.split(","):
            count *= int(size) if size.strip().isdigit() else 1
        total += count * width
    return total


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """The length of the union of the spans."""
    total, end = 0, None
    for begin, stop in sorted(spans):
        if end is None or begin > end:
            total, end = total + stop - begin, stop
        elif stop > end:
            total, end = total + stop - end, stop
    return total
