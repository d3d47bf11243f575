"""Timeline files: reads them, merges those of several ranks, and sums up what a rank did.

A file whose rank was killed in the middle of a write is read up to its last whole event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

Event = dict[str, Any]


def load(path: str | Path) -> list[Event]:
    """The events of a file, in its order. Raises OSError, or ValueError that names the file if it is no timeline."""
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    try:
        events = json.loads(text)
    except ValueError:
        events = _whole_events(text)
    if isinstance(events, dict):
        events = events.get("traceEvents")
    if not isinstance(events, list) or not all(isinstance(e, dict) and "ph" in e for e in events):
        raise ValueError(f"{path} is not a timeline: it must be a JSON list of events, each with 'ph'")
    return events


def _whole_events(text: str) -> list[Event] | None:
    """The events in front of the place where the file is cut off. The engine writes one event to a line."""
    if not text.startswith("["):
        return None
    events = []
    for line in text[1:].splitlines():
        line = line.strip().rstrip(",")
        if line in ("", "]"):
            continue
        try:
            events.append(json.loads(line))
        except ValueError:
            break
    return events


def tensor_names(events: list[Event]) -> dict[int, str]:
    """{pid: the name of its tensor}."""
    return {
        e["pid"]: e["args"]["name"]
        for e in events
        if e["ph"] == "M" and e["name"] == "process_name" and "name" in e["args"]
    }


def about_rank(events: list[Event]) -> dict[str, Any]:
    """Rank, size, host and start of the file: "start_time_since_epoch_in_micros", and, for files of hvd-core,
    "start_in_clock_of_rank_0_in_micros", in a clock that is the same for all ranks of the job."""
    facts: dict[str, Any] = {}
    for event in events:
        if event["ph"] == "M" and event.get("pid") == 0 and event["name"] in ("process_name", "horovod_rank"):
            facts.update(event["args"])
    return facts


def is_rank_tick(event: Event) -> bool:
    """Whether the event says that a rank is ready."""
    return event["ph"] == "X" and event.get("dur") == 0 and re.fullmatch(r"\d+", event["name"]) is not None


# Merges the timelines of several ranks on one clock: a process of the trace for each rank, with a thread for each tensor.


def merge(paths: Sequence[str | Path], out: str | Path) -> int:
    """Write the merged timeline to ``out``; returns its number of events. Files of one rank, such as t.before.json and
    t.json, follow each other. Raises OSError, or ValueError for a file that is no timeline, or that does not say its
    rank."""
    files = [(path, load(path)) for path in paths]
    if not files:
        raise ValueError("there is no timeline to merge: name at least one file")
    starts = [_start(path, events) for path, events in files]
    # A file of another program has no common clock: then all are put by their wall clocks.
    clocks = [clock for clock, _ in starts if clock is not None]
    begins = clocks if len(clocks) == len(starts) else [wall for _, wall in starts]
    origin = min(begins)
    merged: list[Event] = []
    for (path, events), begin in zip(files, begins):
        merged += _of_rank(path, events, begin - origin)
    head = [event for event in merged if event["ph"] == "M"]
    # Sorting keeps the order of events of one time, so that spans nest as before.
    rest = sorted((event for event in merged if event["ph"] != "M"), key=lambda event: event["ts"])
    with open(out, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(event) for event in head + rest) + "\n]\n")
    return len(head) + len(rest)


def _start(path: str | Path, events: list[Event]) -> tuple[int | None, int]:
    facts = about_rank(events)
    if "start_time_since_epoch_in_micros" not in facts:
        raise ValueError(f"{path} does not say when it began: is it a timeline of Horovod?")
    return facts.get("start_in_clock_of_rank_0_in_micros"), facts["start_time_since_epoch_in_micros"]


def _of_rank(path: str | Path, events: list[Event], shift: int) -> list[Event]:
    facts = about_rank(events)
    if "rank" not in facts:
        raise ValueError(f"{path} does not say which rank has written it")
    rank = facts["rank"]
    names = tensor_names(events)
    made: list[Event] = [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank} ({facts['host']})"}},
        {"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}},
        {"name": "horovod_rank", "ph": "M", "pid": rank, "args": facts},
    ]
    # Waiting callers come first, then the tensors in the order of their first use.
    lanes = {
        ("wait", event.get("tid", 0)) for event in events if event["ph"] == "X" and event.get("pid") == 0
    }
    for _, lane in sorted(lanes):
        made.append(
            _thread_name(rank, lane, "waiting callers" if lane == 0 else f"waiting callers {lane + 1}")
        )
    first = len(lanes)
    for pid, name in sorted(names.items()):
        made.append(_thread_name(rank, first + pid, name))
    for event in events:
        if event["ph"] == "M":
            continue
        pid = event.get("pid", 0)
        lane = first + pid if pid else event.get("tid", 0)
        made.append({**event, "pid": rank, "tid": lane, "ts": event["ts"] + shift})
    return made


def _thread_name(rank: int, lane: int, name: str) -> Event:
    return {"name": "thread_name", "ph": "M", "pid": rank, "tid": lane, "args": {"name": name}}


# Figures of a job: communication that callers waited for, overlap, stragglers, the tensors that took the longest.

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
    facts = about_rank(events)
    if any(e["ph"] == "M" and e["name"] == "thread_name" for e in events):
        raise ValueError("this timeline was merged; summarize the files of the ranks")
    names = tensor_names(events)
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
        elif is_rank_tick(event):
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
    bits = re.search(r"\d+", dtype)
    width = _BYTES.get(dtype) or (int(bits[0]) // 8 if bits else 0)
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
