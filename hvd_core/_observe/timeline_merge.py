"""Puts the timelines of several ranks into one file, on one clock: a process of the trace for each rank, with a thread
for each tensor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hvd_core._observe import timeline_file
from hvd_core._observe.timeline_file import Event


def merge(paths: Sequence[str | Path], out: str | Path) -> int:
    """Write the merged timeline to ``out``; returns its number of events. Files of one rank, such as t.before.json and
    t.json, follow each other. Raises OSError, or ValueError for a file that is no timeline, or that does not say its
    rank."""
    files = [(path, timeline_file.load(path)) for path in paths]
    if not files:
        raise ValueError("there is no timeline to merge: name at least one file")
    starts = [_start(path, events) for path, events in files]
    # A file of another program has no common clock: then all are put by their wall clocks.
    common = all(clock is not None for clock, _ in starts)
    origin = min(clock if common else wall for clock, wall in starts)
    merged: list[Event] = []
    for (path, events), (clock, wall) in zip(files, starts):
        merged += _of_rank(path, events, (clock if common else wall) - origin)
    head = [event for event in merged if event["ph"] == "M"]
    # Sorting keeps the order of events of one time, so that spans nest as before.
    rest = sorted((event for event in merged if event["ph"] != "M"), key=lambda event: event["ts"])
    with open(out, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(event) for event in head + rest) + "\n]\n")
    return len(head) + len(rest)


def _start(path: str | Path, events: list[Event]) -> tuple[int | None, int]:
    facts = timeline_file.about_rank(events)
    if "start_time_since_epoch_in_micros" not in facts:
        raise ValueError(f"{path} does not say when it began: is it a timeline of Horovod?")
    return facts.get("start_in_clock_of_rank_0_in_micros"), facts["start_time_since_epoch_in_micros"]


def _of_rank(path: str | Path, events: list[Event], shift: int) -> list[Event]:
    facts = timeline_file.about_rank(events)
    if "rank" not in facts:
        raise ValueError(f"{path} does not say which rank has written it")
    rank = facts["rank"]
    names = timeline_file.tensor_names(events)
    told: list[Event] = [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank} ({facts['host']})"}},
        {"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}},
        {"name": "horovod_rank", "ph": "M", "pid": rank, "args": facts},
    ]
    # Waiting callers come first, then the tensors in the order of their first use.
    lanes = {
        ("wait", event.get("tid", 0)) for event in events if event["ph"] == "X" and event.get("pid") == 0
    }
    for _, lane in sorted(lanes):
        told.append(
            _thread_name(rank, lane, "waiting callers" if lane == 0 else f"waiting callers {lane + 1}")
        )
    first = len(lanes)
    for pid, name in sorted(names.items()):
        told.append(_thread_name(rank, first + pid, name))
    for event in events:
        if event["ph"] == "M":
            continue
        pid = event.get("pid", 0)
        lane = first + pid if pid else event.get("tid", 0)
        told.append({**event, "pid": rank, "tid": lane, "ts": event["ts"] + shift})
    return told


def _thread_name(rank: int, lane: int, name: str) -> Event:
    return {"name": "thread_name", "ph": "M", "pid": rank, "tid": lane, "args": {"name": name}}
