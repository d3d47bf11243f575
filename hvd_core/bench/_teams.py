"""The measurement of `hvd bench`: sizes, turns and rounds over the alternatives. Used by the conductor, or by all
ranks of a job alike: each answer of the ranks is known to all of them, so that all decide the same.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import hvd_core as hvd
from hvd_core.bench._conductor import Fleet, Spec, Unavailable
from hvd_core.bench._worker import answer
from hvd_core.bench.alternative import Alternative, Call, Place, elements_of

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
    """The alternatives that are measured. Subclasses ask the ranks in their own way.

    ``titles``: of the alternatives that started. ``failed``: why the others cannot be measured.
    """

    titles: dict[str, str]
    failed: dict[str, str]

    def names(self) -> list[str]:
        """Those that have not failed."""
        raise NotImplementedError

    def ask(self, name: str, command: dict[str, Any]) -> list[dict[str, Any]]:
        """Every rank's answer. Raises Unavailable when one fails."""
        raise NotImplementedError

    def drop(self, name: str, why: str) -> None:
        """This alternative has failed."""
        raise NotImplementedError


def sweep(teams: Teams, plan: Plan, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each size, alternative and form: {"bytes", "count", "in_place", "name", "us", "algbw", "busbw",
    "wrong"}, or "without": the reason. GB/s are 10^9 bytes."""
    rows: list[dict[str, Any]] = []
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


def _size(teams: Teams, plan: Plan, call: Call) -> list[dict[str, Any]]:
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


def _calibrated(teams: Teams, plan: Plan, call: Call, name: str, row: dict[str, Any]) -> int:
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


def _ask(teams: Teams, name: str, command: dict[str, Any]) -> list[dict[str, Any]] | None:
    try:
        return teams.ask(name, command)
    except Unavailable as error:
        teams.drop(name, str(error))
        return None


def _seconds(answers: list[dict[str, Any]], iters: int) -> float:
    """Of one call on the slowest rank."""
    slowest: int = max(answer["ns"] for answer in answers)
    return max(1, slowest) / 1e9 / iters


def _command(call: Call, iters: int, warmup: int, check: bool) -> dict[str, Any]:
    return {"do": "collective", "call": asdict(call), "iters": iters, "warmup": warmup, "check": check}


# ---- `hvd bench` by itself: each alternative has its ranks, which sleep while others measure --------------------------

# Both of Open MPI's start-up systems refuse root, and more ranks than cores, unless these variables are set.
_MPIRUN = {
    **{f"{tool}_ALLOW_RUN_AS_ROOT{more}": "1" for tool in ("OMPI", "PRTE") for more in ("", "_CONFIRM")},
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def horovodrun(size: int) -> list[str]:
    """The words before a command that start it on so many ranks of this machine."""
    return [sys.executable, "-m", "horovod.runner.launch", "-np", str(size)]


def mpirun(size: int) -> list[str]:
    """The same, with the MPI on the PATH. Raises Unavailable."""
    found = shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise Unavailable("there is no mpirun on the PATH")
    return [found, "-np", str(size)]


class Launched(Fleet, Teams):
    """A context manager: leaving it ends every process that it started."""

    def __init__(self, size: int, device: str, pinned: bool, patience_s: float) -> None:
        super().__init__(size, patience_s)
        self._env = {"HVD_BENCH_DEVICE": device, "HVD_BENCH_PIN": "1" if pinned else "0"}
        self._device = device
        self.titles = {}

    def start_entry(self, entry: str, load: Callable[[], type[Alternative]], backends: list[str]) -> None:
        """Start an alternative, once for each backend if it runs over backends; note why where that is impossible."""
        try:
            kind = load()
        except Exception as error:  # a module of another distribution
            return self.drop(entry, f"{type(error).__name__}: {error}")
        for backend in backends if kind.over_backends and backends else [""]:
            name = f"{entry}/{backend}" if backend else entry
            self.start(name, partial(self._spec, name, entry, kind, backend))
            if name in self.teams:
                self.titles[name] = kind.title + (f", backend {backend}" if backend else "")
        return None

    def _spec(self, name: str, entry: str, kind: type[Alternative], backend: str) -> Spec:
        kind.check(self._device)
        env = self._env | ({"HOROVOD_BACKEND": backend} if backend else {})
        prefix = None
        if kind.launcher == "horovodrun":
            prefix = horovodrun(self.size)
        elif kind.launcher == "mpirun":
            prefix = mpirun(self.size)
            env |= {key: value for key, value in _MPIRUN.items() if key not in os.environ}
        command = [sys.executable, "-m", "hvd_core.bench._worker", entry]
        return Spec(name.replace("/", "."), kind.title, command, prefix, env)

    def names(self) -> list[str]:
        return list(self.teams)

    def ask(self, name: str, command: dict[str, Any]) -> list[dict[str, Any]]:
        team = self.teams[name]
        return self.quiet.turn(team.pids.values(), lambda: team.ask(command))


# ---- `hvd bench` under a launcher: all alternatives take turns in the ranks of one job --------------------------------


def _gathered(text: str) -> list[str]:
    """The texts of all ranks."""
    mine = np.frombuffer(text.encode() + b"\0", dtype=np.uint8)
    return bytes(hvd.allgather(mine)).decode().split("\0")[:-1]


def _from_root(data: bytes) -> bytes:
    return bytes.fromhex(_gathered(data.hex())[0])


class InJob(Teams):
    """The alternatives of this job. ``make``: how to load each, by its name. Call after hvd_core.init()."""

    def __init__(self, make: dict[str, Callable[[], type[Alternative]]], device: str) -> None:
        self.failed, self.titles = {}, {}
        self._made: dict[str, Alternative] = {}
        place = Place(hvd.rank(), hvd.size(), hvd.local_rank(), device, None, _from_root)
        for name, load in make.items():
            try:
                kind, why = load(), ""
                kind.check(device)
            except Exception as error:  # a rank that leaves here would leave the others alone
                why = str(error) or repr(error)
            if self._all_can(name, why):
                try:
                    self._made[name], why = kind(place), ""
                except Exception as error:
                    why = str(error) or repr(error)
                if self._all_can(name, why):
                    self.titles[name] = self._made[name].title

    def _all_can(self, name: str, why: str) -> bool:
        reasons = [f"rank {rank}: {text}" for rank, text in enumerate(_gathered(why)) if text]
        if reasons:
            self.drop(name, reasons[0])
        return not reasons

    def names(self) -> list[str]:
        return list(self._made)

    def ask(self, name: str, command: dict[str, Any]) -> list[dict[str, Any]]:
        try:
            mine = answer(self._made[name], command)
        except Exception:
            mine = {"error": traceback.format_exc()}
        answers = [json.loads(text) for text in _gathered(json.dumps(mine))]
        for rank, found in enumerate(answers):
            if "error" in found:
                raise Unavailable(f"{name}, rank {rank}: {found['error']}")
        return answers

    def drop(self, name: str, why: str) -> None:
        self.failed[name] = why
        self._made.pop(name, None)
        if hvd.rank() == 0:
            print(f"without {name}: {why}", file=sys.stderr)
