"""The measurement of `hvd bench`: sizes, turns and rounds over the alternatives. Used by the conductor, or by all
ranks of a job alike: each answer of the ranks is known to all of them, so that all decide the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from hvd_core.bench.collectives import Call, elements_of
from hvd_core.bench.conductor import Unavailable

_MOST_ITERS = 1000


@dataclass(frozen=True)
class Plan:
    """All that a run measures. ``call``: the first one; sizes are put into it. ``budget_s``: of a turn. ``iters``:
    calls of a turn, or None for as many as fit in the budget."""

    call: Call
    sizes: list[int]
    rounds: int
    budget_s: float
    iters: int | None
    warmup: int
    size: int  # ranks


class Teams:
    """The alternatives that are measured. Subclasses ask the ranks in their own way."""

    def names(self) -> list[str]:
        """Those that have not failed."""
        raise NotImplementedError

    def ask(self, name: str, command: dict) -> list[dict]:
        """Every rank's answer. Raises Unavailable when one fails."""
        raise NotImplementedError

    def drop(self, name: str, why: str) -> None:
        """This alternative has failed."""
        raise NotImplementedError


def sweep(teams: Teams, plan: Plan, say: Callable[[str], None]) -> list[dict]:
    """A row for each size, alternative and form: {"bytes", "count", "in_place", "name", "us", "algbw", "busbw",
    "wrong"}, or "without": the reason. GB/s are 10^9 bytes."""
    rows: list[dict] = []
    for nbytes in plan.sizes:
        for in_place in (False, True):
            elements = elements_of(nbytes, plan.call, plan.size)
            call = replace(plan.call, elements=elements, in_place=in_place)
            made = _size(teams, plan, call)
            rows += made
            shown = "  ".join(f"{row['name']} {row['us']:.4g}" for row in made if "us" in row)
            if shown:
                say(f"{call.nbytes:>12} B {'in place' if in_place else 'out of place'}, us: {shown}")
    return rows


def _size(teams: Teams, plan: Plan, call: Call) -> list[dict]:
    found = {name: {"name": name, "bytes": call.nbytes, "count": call.count(plan.size), "in_place": call.in_place}
             for name in teams.names()}  # fmt: skip
    iters = {name: _calibrated(teams, plan, call, name, row) for name, row in found.items()}
    taken: dict[str, list[float]] = {name: [] for name, count in iters.items() if count}
    for _ in range(plan.rounds):
        for name, times in taken.items():
            if name in teams.names():
                answers = _ask(teams, name, _command(call, iters[name], 1, check=False))
                times += [_seconds(answers, iters[name])] if answers else []
    for name, times in taken.items():
        if times:
            seconds = statistics.median(times)
            algbw = call.nbytes / seconds / 1e9
            found[name] |= {"us": seconds * 1e6, "algbw": algbw, "busbw": algbw * call.kind.bus(plan.size)}
            found[name]["rounds_us"] = [one * 1e6 for one in times]
    return [row for row in found.values() if "us" in row or "without" in row]


def _calibrated(teams: Teams, plan: Plan, call: Call, name: str, row: dict) -> int:
    """Checks the result, and returns how many calls a turn has; 0 for a call that this alternative lacks."""
    answers = _ask(teams, name, _command(call, 1, 1, check=True))
    if answers is None:
        return 0
    if any("without" in answer for answer in answers):
        row["without"] = next(answer["without"] for answer in answers if "without" in answer)
        return 0
    row["wrong"] = sum(answer["wrong"] for answer in answers)
    if plan.iters:
        return plan.iters
    for count in (2, 10):
        answers = _ask(teams, name, _command(call, count, plan.warmup, check=False))
        if answers is None:
            return 0
        seconds = _seconds(answers, count)
        if seconds * 10 > plan.budget_s:
            break
    return max(1, min(_MOST_ITERS, int(plan.budget_s / seconds)))


def _ask(teams: Teams, name: str, command: dict) -> list[dict] | None:
    try:
        return teams.ask(name, command)
    except Unavailable as error:
        teams.drop(name, str(error))
        return None


def _seconds(answers: list[dict], iters: int) -> float:
    """Of one call on the slowest rank."""
    return max(1, max(answer["ns"] for answer in answers)) / 1e9 / iters


def _command(call: Call, iters: int, warmup: int, check: bool) -> dict:
    return {"do": "collective", "call": asdict(call), "iters": iters, "warmup": warmup, "check": check}
