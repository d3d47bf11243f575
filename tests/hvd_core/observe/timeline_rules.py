"""The rules of the format of timelines, for the tests of the engine's files and of merged ones."""

import json
from typing import Any

Event = dict[str, Any]
_PHASES = ("B", "E", "X", "i", "M")


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
