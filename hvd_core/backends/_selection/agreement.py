"""Checks that all ranks chose the same backends and the same first process sets. If not, every rank names the difference.

Called on the thread that runs ``hvd.init()``, after the choice and before any backend is opened. A rank whose choice
failed takes part too, so that the others do not wait for it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hvd_core._config.plugins_toml import FILE_VARIABLE
from hvd_core._config.selection_rules import HOST, VARIABLE, legacy_variables
from hvd_core._config.settings import flag_of
from hvd_core.backends._selection.plan import BackendPlan, Cell, DeviceRoutes
from hvd_core.backends.errors import BackendDisagreement
from hvd_core.version import __version__

# Environment variables that may differ between ranks: which must be equal, which rank's value counts if they differ,
# and how to make a launcher pass them to all ranks. Open MPI passes only the variables that ``-x`` names to other
# hosts.

MUST_MATCH = ("HOROVOD_EMULATION", "HOROVOD_DYNAMIC_PROCESS_SETS", "HOROVOD_HIERARCHICAL_OVERLAP")
"""Switches. Ranks act on these together: with different values some ranks would wait for the others
forever, or fail alone."""

CHOICE = ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLGATHER")
"""Variables of the choice of backends. The agreement compares the choices; these names only appear in its message."""

FIRST_RANK_DECIDES = ("HOROVOD_FUSION_THRESHOLD",)
"""Variables of which only rank 0 uses its value. A difference is harmless, but may surprise the user."""

EACH_ITS_OWN = ("HOROVOD_CYCLE_TIME",)
"""Variables of which every rank uses its own value; the largest one determines the speed of the job."""


def switches(environ: Mapping[str, str]) -> dict[str, str]:
    """This rank's values of the variables in MUST_MATCH: "1" or "0"."""
    return {name: str(int(flag_of(environ, name))) for name in MUST_MATCH}


def tuning(environ: Mapping[str, str]) -> dict[str, str]:
    """This rank's values of the variables whose differences are only warned of; "" for unset."""
    return {name: environ.get(name, "").strip() for name in (*FIRST_RANK_DECIDES, *EACH_ITS_OWN)}


def differing(values: Sequence[Mapping[str, str]]) -> list[str]:
    """The variables that do not have one value on all ranks."""
    return [name for name in values[0] if len({one.get(name, "") for one in values}) > 1]


def warning(name: str, values: str, launcher: str) -> str:
    """Rank 0's warning about a difference that is not an error. ``values`` lists the ranks by value."""
    meaning = "rank 0's value is used" if name in FIRST_RANK_DECIDES else "each rank uses its own"
    return f"horovod: ranks do not agree on {name}; {meaning}.  {values}\n  fix: {remedy(name, launcher)}"


def remedy(name: str, launcher: str) -> str:
    """How to give all ranks the same value, for this launcher (Identity.launcher; "" if unknown)."""
    own = "set it in every rank's environment"
    if launcher == "mpich":
        return f"mpirun -genv {name} VALUE, or {own}"
    if launcher == "srun":
        return f"srun --export=ALL,{name}=VALUE, or {own}"
    if launcher in ("torchrun", "horovodrun"):
        return f"{own}, on every host"
    return f"mpirun -x {name}, or {own}"


SETS = "init(process_sets=...)"
_VERDICT_READ_SECONDS = 5.0
Statement = dict[str, Any]
_log = logging.getLogger("horovod")


def statement(plan: BackendPlan, environ: Mapping[str, str], sets: str = "") -> Statement:
    """The statement of a rank about its choice: all values that must be equal on all ranks, and the sources of the
    choice. ``sets``: the process sets that init() makes, as a text."""
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
        "switches": switches(environ),
        "tuning": tuning(environ),
    }


def of_device(plan: BackendPlan, device: DeviceRoutes) -> str:
    """The choice for a device type that no rule names, as a text that must be equal on all ranks."""
    cells = [cell for cell in plan.cells() if cell.device == device.type]
    versions = sorted({f"{b.describe()}, ABI {b.abi[0]}.{b.abi[1]}" for b in device.backends()})
    return f"{_device_text(plan, device.type, cells)} [{'; '.join(versions)}]"


def failure(reason: str, topic: str, environ: Mapping[str, str]) -> Statement:
    """The statement of a rank whose choice failed. ``topic``: "error", or SETS if the process sets caused it."""
    return {"failed": reason, "topic": topic, "set": variables_set(environ)}


def variables_set(environ: Mapping[str, str]) -> list[str]:
    """The variables of the selection that are set on this rank."""
    named = (VARIABLE, FILE_VARIABLE, *legacy_variables(), *CHOICE)
    paths = sorted(v for v in environ if v.startswith("HOROVOD_BACKEND_PATH_"))
    return [v for v in (*named, *paths) if environ.get(v)]


def _device_text(plan: BackendPlan, device: str, cells: Sequence[Cell]) -> str:
    """``x 0.3.1 (libx 3.1.0)``: the backend of most operations first, then the operations that differ."""
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


def agree(world: Any, own: Statement, timeout_s: float) -> None:
    """Compare the statements of all ranks of ``world``. ``own``: this rank's statement() or failure().

    Raises BackendDisagreement that lists the ranks by statement, also if the only difference is another rank's failure;
    ValueError if the difference is in the process sets; BootstrapTimeout if a rank makes no statement in time; RankLost
    if a rank ends meanwhile. Returns
    on a rank that failed itself, because its caller raises the original error.
    """
    if world.size == 1:
        return
    key = f"backend/{world.epoch}"
    deadline = time.monotonic() + timeout_s
    # The store keeps equal texts once.
    world.share(key, json.dumps(own, sort_keys=True).encode())
    verdict = _failed_first(world, key, own) if "failed" in own else _verdict(world, key, deadline)
    if verdict or "failed" in own:
        _wait_for_readers(world, key, deadline)
    if verdict.startswith(_about(SETS)):
        raise ValueError(verdict)
    if verdict:
        raise BackendDisagreement(verdict)


def _failed_first(world: Any, key: str, own: Statement) -> str:
    """Tells the other ranks, on rank 0, that its own choice failed. "", because the caller raises its own error."""
    if world.rank == 0:
        world.store.set(f"{key}/verdict", compare([own], world.host_names, world.launcher).encode())
    return ""


def _verdict(world: Any, key: str, deadline: float) -> str:
    def left() -> float:
        return max(0.0, deadline - time.monotonic())

    try:
        if world.rank != 0:
            verdict: str = world.read(f"{key}/verdict", left()).decode()
            return verdict
        texts = world.shared(key, left())
    except TimeoutError as error:
        missing = world.store.absent(key, world.size)[:1] if world.rank == 0 else []
        raise type(error)(
            f"rank {missing[0] if missing else 0} has not told its choice of backends in time (HOROVOD_START_TIMEOUT): "
            "it may be loading a backend's library that does not come back"
        ) from None
    parsed = {text: json.loads(text) for text in set(texts)}
    answers = [parsed[text] for text in texts]
    verdict = compare(answers, world.host_names, world.launcher)
    if not verdict:
        for text in warnings(answers, world.host_names, world.launcher):
            _log.warning("%s", text)
    world.store.set(f"{key}/verdict", verdict.encode())
    return verdict


def _wait_for_readers(world: Any, key: str, deadline: float) -> None:
    """The job ends here. If the store is in this process, wait until the other ranks have read the verdict."""
    if not world.holds_store:
        with suppress(Exception):  # the store may close as soon as this message has arrived
            world.store.set(f"{key}/heard/{world.rank}", b"")
        return
    until = min(deadline, time.monotonic() + _VERDICT_READ_SECONDS)
    for rank in range(world.size):
        if rank != world.rank:
            with suppress(Exception):  # that rank has ended or never came; this rank raises an error anyway
                world.read(f"{key}/heard/{rank}", max(0.0, until - time.monotonic()))


def compare(answers: Sequence[Statement], host_names: Sequence[str], launcher: str = "") -> str:
    """Message about the differences and failures in the statements of ranks 0, 1, ...; "" if all agree and succeed."""
    good = [a for a in answers if "failed" not in a]
    devices = list(dict.fromkeys(d for a in good for d in a["choice"]))
    differing = [d for d in devices if len({a["choice"].get(d) for a in good}) > 1]
    exact = any(a["exact"] != good[0]["exact"] for a in good)
    if len(good) == len(answers) and not differing and not exact:
        sets = _compare_sets([answer["sets"] for answer in answers])
        return sets or _compare_switches([answer["switches"] for answer in answers], host_names, launcher)
    topic = SETS if any(a.get("topic") == SETS for a in answers) else "backends"
    # Of a successful choice, show the differing device types; if the only difference is a failure, show all.
    shown = differing or ([] if len(good) == len(answers) else [d for d in devices if d != "hvd-core"])
    names = [] if differing else _differing_versions(good)
    groups: dict[str, list[int]] = {}
    for rank, answer in enumerate(answers):
        text = answer["sets"] or "none" if topic == SETS and "sets" in answer else _text(answer, shown, names)
        groups.setdefault(text, []).append(rank)
    parts = [f"{_rank_names(ranks, host_names)}: {text}" for text, ranks in groups.items()]
    lines = [_about(topic) + "; ".join(parts)]
    if topic != SETS:
        lines += _unset(answers, host_names, launcher)
        if len(lines) == 1 and len(good) == len(answers):
            lines.append(_fix(answers, shown))
    return "\n  ".join(lines)


def _differing_versions(good: Sequence[Statement]) -> list[str]:
    """The backends whose versions differ between ranks in a way that their description does not show."""
    names = dict.fromkeys(name for a in good for name in a["exact"])
    return [n for n in names if any(a["exact"].get(n) != good[0]["exact"].get(n) for a in good)]


def _text(answer: Statement, shown: Sequence[str], names: Sequence[str]) -> str:
    if "failed" in answer:
        return f"failed: {answer['failed']}"
    texts = []
    for device in shown:
        label = f"{device}: " if len(shown) > 1 or device == "hvd-core" else ""
        sources = answer["sources"].get(device)
        source = f" [{', '.join(sources)}]" if sources else ""
        # Other ranks have a backend for this device type; tell why this rank has no backend for it.
        none = f"none ({answer['note']})" if answer["note"] else "none"
        unused = f" ({answer['unused']})" if answer["unused"] and device == HOST else ""
        texts.append(f"{label}{answer['choice'].get(device) or none}{source}{unused}")
    for name in names:
        version, library, major, minor = answer["exact"].get(name, ["none", "", 0, 0])
        texts.append(f"{name} {version} ({library + ', ' if library else ''}ABI {major}.{minor})")
    return ", ".join(texts)


def _unset(answers: Sequence[Statement], host_names: Sequence[str], launcher: str) -> list[str]:
    """A line for each variable that is set on some ranks only: the launcher does not pass it to all hosts."""
    lines = []
    for name in dict.fromkeys(v for a in answers for v in a["set"]):
        without = [rank for rank, a in enumerate(answers) if name not in a["set"]]
        if without:
            hosts = ", ".join(dict.fromkeys(host_names[rank] for rank in without[:100]))
            lines.append(
                f"{name} is unset on {_ranks(without)} ({hosts}) and set on the others.  "
                f"fix: {remedy(name, launcher)}"
            )
    return lines


def _fix(answers: Sequence[Statement], shown: Sequence[str]) -> str:
    def names(answer: Statement) -> list[str]:
        return sorted(answer["exact"])

    if all(names(a) == names(answers[0]) for a in answers):
        return "fix: install the same versions on all hosts"
    device = next((d for d in shown if d != "hvd-core"), "cpu")
    if len({a.get("asked") for a in answers}) > 1:
        return f"fix: give all ranks the same {VARIABLE}"
    return f"fix: make the hosts alike, or name what all of them have: HOROVOD_BACKEND={device}=NAME"


def _compare_sets(all_sets: Sequence[str]) -> str:
    groups: dict[str, list[int]] = {}
    for rank, sets in enumerate(all_sets):
        groups.setdefault(sets, []).append(rank)
    if len(groups) == 1:
        return ""
    parts = [f"{_ranks(r)}: {sets or 'none'}" for sets, r in groups.items()]
    return _about(SETS) + "; ".join(parts)


def _compare_switches(values: Sequence[dict[str, str]], host_names: Sequence[str], launcher: str) -> str:
    lines = [
        f"{_about(name)}{_by_value(values, name, host_names)}\n  fix: {remedy(name, launcher)}"
        for name in differing(values)
    ]
    return "\n".join(lines)


def warnings(answers: Sequence[Statement], host_names: Sequence[str], launcher: str) -> list[str]:
    """The warnings about differences that do not stop the job."""
    values = [answer["tuning"] for answer in answers]
    return [warning(name, _by_value(values, name, host_names), launcher) for name in differing(values)]


def _by_value(values: Sequence[dict[str, str]], name: str, host_names: Sequence[str]) -> str:
    groups: dict[str, list[int]] = {}
    for rank, one in enumerate(values):
        groups.setdefault(one[name], []).append(rank)
    return "; ".join(
        f"{_rank_names(ranks, host_names)}: {value or 'unset'}" for value, ranks in groups.items()
    )


def _about(topic: str) -> str:
    return f"horovod: ranks do not agree on {topic}.  "


def _rank_names(ranks: Sequence[int], host_names: Sequence[str]) -> str:
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
