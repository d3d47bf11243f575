"""All ranks must have chosen the same backends and the same first process sets; whoever did not is named, on every rank.

Called by the thread that runs ``hvd.init()``, after the choice and before anything is opened. A rank whose choice failed
takes part too, so that the others do not wait for it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hvd_core.backends import agreed_variables
from hvd_core.backends.errors import BackendDisagreement
from hvd_core.backends.plan import Cell, Plan
from hvd_core.backends.rules import HOST, VARIABLE, legacy_variables
from hvd_core.config.plugins_toml import FILE_VARIABLE
from hvd_core.version import __version__

SETS = "init(process_sets=...)"
_PARTING_SECONDS = 5.0
Said = dict[str, Any]
_log = logging.getLogger("horovod")


def statement(plan: Plan, environ: Mapping[str, str], sets: str = "") -> Said:
    """What a rank says about its choice: everything that must be equal, with who chose it. ``sets``: the process sets
    that init() is to make."""
    choice: dict[str, list[Cell]] = {}
    for cell in plan.cells():
        choice.setdefault(cell.device, []).append(cell)
    return {
        "choice": {
            "hvd-core": __version__,
            **{d: _device_text(plan, d, cells) for d, cells in choice.items()},
        },
        "exact": {b.name: [b.version, b.vendor_lib, *b.abi] for b in plan.backends()},
        "sources": {d: list(dict.fromkeys(c.source for c in cells)) for d, cells in choice.items()},
        "set": variables_set(environ),
        "asked": environ.get(VARIABLE, ""),
        "sets": sets,
        "note": plan.note,
        "unused": plan.unused_between,
        "switches": agreed_variables.switches(environ),
        "tuning": agreed_variables.tuning(environ),
    }


def failure(reason: str, topic: str, environ: Mapping[str, str]) -> Said:
    """What a rank says that has no choice. ``topic``: "error", or SETS when the process sets are at fault."""
    return {"failed": reason, "topic": topic, "set": variables_set(environ)}


def variables_set(environ: Mapping[str, str]) -> list[str]:
    """The variables of the selection that are set here."""
    named = (VARIABLE, FILE_VARIABLE, *legacy_variables(), *agreed_variables.CHOICE)
    paths = sorted(v for v in environ if v.startswith("HOROVOD_BACKEND_PATH_"))
    return [v for v in (*named, *paths) if environ.get(v)]


def _device_text(plan: Plan, device: str, cells: Sequence[Cell]) -> str:
    """``x 0.3.1 (libx 3.1.0)``; what most operations have first, then those that differ."""
    texts = {cell.operation: _cell_text(cell) for cell in cells}
    counts = {text: list(texts.values()).count(text) for text in texts.values()}
    usual = max(counts, key=lambda text: counts[text])
    others = [f"{operation}: {text}" for operation, text in texts.items() if text != usual]
    table = next((d.table for d in plan.devices if d.type == device), None)
    opened = f", devices by {table.describe()}" if table is not None and table.describe() not in usual else ""
    return "; ".join([usual + opened, *others])


def _cell_text(cell: Cell) -> str:
    over = " x ".join(b.describe() for b in cell.backends)
    return f"staged over {over}" if cell.staged else over


def agree(world: Any, said: Said, timeout_s: float) -> None:
    """Compare what all ranks of ``world`` say: statement() or failure().

    Raises BackendDisagreement, or ValueError when it is about process sets, that lists the ranks by what they said, also
    when all that others said is a failure. A rank that failed itself returns: it has a better error to raise. Raises
    BootstrapTimeout when a rank says nothing in time.
    """
    if world.size == 1:
        return
    key = f"backend/{world.epoch}"
    deadline = time.monotonic() + timeout_s
    world.store.set(f"{key}/{world.rank}", json.dumps(said).encode())
    verdict = "" if "failed" in said else _verdict(world, key, deadline)
    if verdict or "failed" in said:
        _part(world, key, deadline)
    if verdict.startswith(_about(SETS)):
        raise ValueError(verdict)
    if verdict:
        raise BackendDisagreement(verdict)


def _verdict(world: Any, key: str, deadline: float) -> str:
    def said_by(name: object) -> bytes:
        return world.store.get(f"{key}/{name}", max(0.0, deadline - time.monotonic()))

    if world.rank == 0:
        answers = [json.loads(said_by(rank)) for rank in range(world.size)]
        verdict = compare(answers, world.host_names, world.launcher)
        if not verdict:
            for text in warnings(answers, world.host_names, world.launcher):
                _log.warning("%s", text)
        world.store.set(f"{key}/verdict", verdict.encode())
        return verdict
    # Rank 0 writes the verdict unless it has failed itself, which its own answer tells.
    first = json.loads(said_by(0))
    if "failed" in first:
        return compare([first], world.host_names, world.launcher)
    return said_by("verdict").decode()


def _part(world: Any, key: str, deadline: float) -> None:
    """Nobody goes on from here. Where the store ends with this process, the others are given time to read it."""
    if not world.holds_store:
        with suppress(Exception):  # it may be gone the moment this has arrived
            world.store.set(f"{key}/heard/{world.rank}", b"")
        return
    until = min(deadline, time.monotonic() + _PARTING_SECONDS)
    for rank in range(world.size):
        if rank != world.rank:
            with suppress(
                Exception
            ):  # it has ended, or it has not come: there is an error to raise here anyway
                world.store.get(f"{key}/heard/{rank}", max(0.0, until - time.monotonic()))


def compare(answers: Sequence[Said], host_names: Sequence[str], launcher: str = "") -> str:
    """The message for answers of ranks 0, 1, ... that are not all equal and good; "" if they are."""
    good = [a for a in answers if "failed" not in a]
    devices = list(dict.fromkeys(d for a in good for d in a["choice"]))
    differing = [d for d in devices if len({a["choice"].get(d) for a in good}) > 1]
    exact = any(a["exact"] != good[0]["exact"] for a in good)
    if len(good) == len(answers) and not differing and not exact:
        sets = _compare_sets([answer["sets"] for answer in answers])
        return sets or _compare_switches([answer["switches"] for answer in answers], host_names, launcher)
    topic = SETS if any(a.get("topic") == SETS for a in answers) else "backends"
    # What to show of those that have a choice: what differs; where only others failed, all of it.
    shown = differing or ([] if len(good) == len(answers) else [d for d in devices if d != "hvd-core"])
    names = [] if differing else _differing_versions(good)
    groups: dict[str, list[int]] = {}
    for rank, answer in enumerate(answers):
        text = answer["sets"] or "none" if topic == SETS and "sets" in answer else _text(answer, shown, names)
        groups.setdefault(text, []).append(rank)
    parts = [f"{_who(ranks, host_names)}: {text}" for text, ranks in groups.items()]
    lines = [_about(topic) + "; ".join(parts)]
    if topic != SETS:
        lines += _unset(answers, host_names, launcher)
        if len(lines) == 1 and len(good) == len(answers):
            lines.append(_fix(answers, shown))
    return "\n  ".join(lines)


def _differing_versions(good: Sequence[Said]) -> list[str]:
    """The backends that are of one name and not the same all the same, in a way that their description does not show."""
    names = dict.fromkeys(name for a in good for name in a["exact"])
    return [n for n in names if any(a["exact"].get(n) != good[0]["exact"].get(n) for a in good)]


def _text(answer: Said, shown: Sequence[str], names: Sequence[str]) -> str:
    if "failed" in answer:
        return f"failed: {answer['failed']}"
    texts = []
    for device in shown:
        label = f"{device}: " if len(shown) > 1 or device == "hvd-core" else ""
        sources = answer["sources"].get(device)
        source = f" [{', '.join(sources)}]" if sources else ""
        # The others have a backend for this device type: why not here?
        none = f"none ({answer['note']})" if answer["note"] else "none"
        unused = f" ({answer['unused']})" if answer["unused"] and device == HOST else ""
        texts.append(f"{label}{answer['choice'].get(device) or none}{source}{unused}")
    for name in names:
        version, library, major, minor = answer["exact"].get(name, ["none", "", 0, 0])
        texts.append(f"{name} {version} ({library + ', ' if library else ''}ABI {major}.{minor})")
    return ", ".join(texts)


def _unset(answers: Sequence[Said], host_names: Sequence[str], launcher: str) -> list[str]:
    """A line for each variable that only some ranks have: a launcher that does not hand on the environment."""
    lines = []
    for name in dict.fromkeys(v for a in answers for v in a["set"]):
        without = [rank for rank, a in enumerate(answers) if name not in a["set"]]
        if without:
            hosts = ", ".join(dict.fromkeys(host_names[rank] for rank in without[:100]))
            lines.append(
                f"{name} is unset on {_ranks(without)} ({hosts}) and set on the others.  "
                f"fix: {agreed_variables.remedy(name, launcher)}"
            )
    return lines


def _fix(answers: Sequence[Said], shown: Sequence[str]) -> str:
    def names(answer: Said) -> list[str]:
        return sorted(answer["exact"])

    if all(names(a) == names(answers[0]) for a in answers):
        return "fix: install the same versions on all hosts"
    device = next((d for d in shown if d != "hvd-core"), "cpu")
    if len({a.get("asked") for a in answers}) > 1:
        return f"fix: give all ranks the same {VARIABLE}"
    return f"fix: make the hosts alike, or name what all of them have: HOROVOD_BACKEND={device}=NAME"


def _compare_sets(said: Sequence[str]) -> str:
    groups: dict[str, list[int]] = {}
    for rank, sets in enumerate(said):
        groups.setdefault(sets, []).append(rank)
    if len(groups) == 1:
        return ""
    parts = [f"{_ranks(r)}: {sets or 'none'}" for sets, r in groups.items()]
    return _about(SETS) + "; ".join(parts)


def _compare_switches(said: Sequence[dict[str, str]], host_names: Sequence[str], launcher: str) -> str:
    lines = [
        f"{_about(name)}{_by_value(said, name, host_names)}\n  fix: {agreed_variables.remedy(name, launcher)}"
        for name in agreed_variables.differing(said)
    ]
    return "\n".join(lines)


def warnings(answers: Sequence[Said], host_names: Sequence[str], launcher: str) -> list[str]:
    """What is to be told of answers that do not keep the job from running."""
    said = [answer["tuning"] for answer in answers]
    return [
        agreed_variables.warning(name, _by_value(said, name, host_names), launcher)
        for name in agreed_variables.differing(said)
    ]


def _by_value(said: Sequence[dict[str, str]], name: str, host_names: Sequence[str]) -> str:
    groups: dict[str, list[int]] = {}
    for rank, one in enumerate(said):
        groups.setdefault(one[name], []).append(rank)
    return "; ".join(f"{_who(ranks, host_names)}: {value or 'unset'}" for value, ranks in groups.items())


def _about(topic: str) -> str:
    return f"horovod: ranks do not agree on {topic}.  "


def _who(ranks: Sequence[int], host_names: Sequence[str]) -> str:
    return _ranks(ranks) if len(ranks) > 1 else f"rank {ranks[0]} ({host_names[ranks[0]]})"


def _ranks(ranks: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ("ranks " if len(ranks) > 1 else "rank ") + ", ".join(
        str(a) if a == b else f"{a}-{b}" for a, b in spans
    )
