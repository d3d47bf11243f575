"""Reads timeline files, and checks that one keeps the rules of Chrome's trace format and of Horovod's timelines.

A file whose rank was killed in the middle of a write is read up to its last whole event.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_PHASES = ("B", "E", "X", "i", "M")


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


def faults(events: list[Event], complete: bool = True) -> list[str]:
    """The places where the events break the format: types of fields, spans that do not nest, times that go back within a
    tensor. ``complete``: all spans must have ended, as after an orderly end. An empty list for a good file."""
    found: list[str] = []
    open_: dict[tuple[Any, Any], list[str]] = {}
    last: dict[tuple[Any, Any], float] = {}
    for number, event in enumerate(events):
        where = f"event {number} {json.dumps(event)[:120]}"
        fault = _fault_of_fields(event)
        if fault:
            found.append(f"{where}: {fault}")
            continue
        if event["ph"] == "M":
            continue
        lane = (event.get("pid"), event.get("tid"))
        if event["ph"] in "BE" or event.get("dur") == 0:
            if event["ts"] < last.get(lane, 0):
                found.append(f"{where}: the time goes back")
            last[lane] = event["ts"]
        spans = open_.setdefault(lane, [])
        if event["ph"] == "B":
            spans.append(event["name"])
        elif event["ph"] == "E":
            if not spans:
                found.append(f"{where}: ends a span that did not begin")
            else:
                spans.pop()
    if complete:
        found += [f"pid {lane[0]}: {spans} did not end" for lane, spans in open_.items() if spans]
    return found


def _fault_of_fields(event: Event) -> str:
    phase = event.get("ph")
    if phase not in _PHASES:
        return f"'ph' must be one of {', '.join(_PHASES)}"
    if phase != "E" and not isinstance(event.get("name"), str):
        return "'name' must be a text"
    if not isinstance(event.get("pid", 0), int):
        return "'pid' must be a whole number"
    if phase == "M":
        return "" if isinstance(event.get("args"), dict) else "'args' must be an object"
    if not isinstance(event.get("ts"), (int, float)) or event["ts"] < 0:
        return "'ts' must be a number of microseconds, 0 or greater"
    if phase == "X" and not (isinstance(event.get("dur"), (int, float)) and event["dur"] >= 0):
        return "'dur' must be a number of microseconds, 0 or greater"
    if phase == "i" and event.get("s") not in ("g", "p", "t"):
        return "'s' must be g, p or t"
    return ""


def is_rank_tick(event: Event) -> bool:
    """Whether the event says that a rank is ready."""
    return event["ph"] == "X" and event.get("dur") == 0 and re.fullmatch(r"\d+", event["name"]) is not None
