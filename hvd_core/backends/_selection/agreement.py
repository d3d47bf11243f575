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

MUST_MATCH = ("HOROVOD_EMULATION", "HOROVOD_DYNAMIC_PROCESS_SETS", "HOROVOD_HIERARCHICAL_OVERLAP")
"""Switches on which ranks act together: with different values some ranks would wait for the others indefinitely."""

CHOICE = ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLGATHER")
"""Variables of the choice of backends. The agreement compares the choices; these names only appear in its message."""

TUNING = {
    "HOROVOD_FUSION_THRESHOLD": "rank 0's value is used",
    "HOROVOD_CYCLE_TIME": "each rank uses its own",
}
"""Variables whose differences are harmless, but may surprise the user."""

SETS = "init(process_sets=...)"
_VERDICT_READ_SECONDS = 5.0
Statement = dict[str, Any]
_log = logging.getLogger("horovod")


def _same_everywhere(name: str, setting_option: str) -> str:
    """How to give all ranks the same value, where the launcher's own option is Launcher.setting_option."""
    if not setting_option:
        return "set it in every rank's environment, on every host"
    return f"{setting_option.format(name=name)}, or set it in every rank's environment"


def statement(plan: BackendPlan, environ: Mapping[str, str], sets: str = "") -> Statement:
    """The statement of a rank about its choice: all values that must be equal on all ranks, and the sources of the
    choice. ``sets``: the process sets that init() makes, as a text."""
    devices: dict[str, list[Cell]] = {}
    for cell in plan.cells():
        devices.setdefault(cell.device, []).append(cell)
    return {
        "choice": {"hvd-core": __version__}
        | {d: _device_text(plan, d, cells) for d, cells in devices.items()},
        "names": sorted(b.name for b in plan.backends()),
        "sources": {d: list(dict.fromkeys(c.source for c in cells)) for d, cells in devices.items()},
        "set": variables_set(environ),
        "asked": environ.get(VARIABLE, ""),
        "sets": sets,
        "note": plan.note,
        "unused": plan.unused_between,
        "switches": {name: str(int(flag_of(environ, name))) for name in MUST_MATCH},
        "tuning": {name: environ.get(name, "").strip() or "unset" for name in TUNING},
    }


def of_device(plan: BackendPlan, device: DeviceRoutes) -> str:
    """The choice for a device type that no rule names, as a text that must be equal on all ranks."""
    return _device_text(plan, device.type, [cell for cell in plan.cells() if cell.device == device.type])


def failure(reason: str, topic: str, environ: Mapping[str, str]) -> Statement:
    """The statement of a rank whose choice failed. ``topic``: "error", or SETS if the process sets caused it."""
    return {"failed": reason, "topic": topic, "set": variables_set(environ)}


def variables_set(environ: Mapping[str, str]) -> list[str]:
    """The variables of the selection that are set on this rank."""
    named = (VARIABLE, FILE_VARIABLE, *legacy_variables(), *CHOICE)
    paths = sorted(v for v in environ if v.startswith("HOROVOD_BACKEND_PATH_"))
    return [v for v in (*named, *paths) if environ.get(v)]


def _device_text(plan: BackendPlan, device: str, cells: Sequence[Cell]) -> str:
    """``x 0.3.1 (libx 3.1.0, ABI 1.0)``: the backend of most operations first, then the operations that differ."""
    texts = {cell.operation: _cell_text(cell) for cell in cells}
    usual = max(texts.values(), key=list(texts.values()).count)
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
    verdict = ""
    if "failed" not in own:
        verdict = _verdict(world, key, deadline)
    elif world.rank == 0:
        world.store.set(f"{key}/verdict", compare([own], world.host_names, world.setting_option).encode())
    if verdict or "failed" in own:
        _wait_for_readers(world, key, deadline)
    if verdict.startswith(_about(SETS)):
        raise ValueError(verdict)
    if verdict:
        raise BackendDisagreement(verdict)


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
    verdict = compare(answers, world.host_names, world.setting_option)
    if not verdict:
        for text in warnings(answers, world.host_names, world.setting_option):
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


def compare(answers: Sequence[Statement], host_names: Sequence[str], setting_option: str = "") -> str:
    """Message about the differences and failures in the statements of ranks 0, 1, ...; "" if all agree and succeed."""
    good = [a for a in answers if "failed" not in a]
    has_failed = len(good) < len(answers)
    devices = list(dict.fromkeys(d for a in good for d in a["choice"]))
    differing = [d for d in devices if len({a["choice"].get(d) for a in good}) > 1]
    if any(a.get("topic") == SETS for a in answers) or not (has_failed or differing):
        sets = [_failed(a) or a["sets"] or "none" for a in answers]
        if has_failed or len(set(sets)) > 1:
            return _about(SETS) + _by_text(sets, host_names)
        return _compare_switches(answers, host_names, setting_option)
    # If the only difference is a failure, show all device types.
    shown = differing or [d for d in devices if d != "hvd-core"]
    lines = [_about("backends") + _by_text([_failed(a) or _text(a, shown) for a in answers], host_names)]
    lines += _unset(answers, host_names, setting_option)
    if len(lines) == 1 and not has_failed:
        lines.append(_fix(answers, shown))
    return "\n  ".join(lines)


def _failed(answer: Statement) -> str:
    return f"failed: {answer['failed']}" if "failed" in answer else ""


def _text(answer: Statement, shown: Sequence[str]) -> str:
    texts = []
    for device in shown:
        label = f"{device}: " if len(shown) > 1 or device == "hvd-core" else ""
        sources = answer["sources"].get(device)
        source = f" [{', '.join(sources)}]" if sources else ""
        # Other ranks have a backend for this device type; tell why this rank has no backend for it.
        none = f"none ({answer['note']})" if answer["note"] else "none"
        unused = f" ({answer['unused']})" if answer["unused"] and device == HOST else ""
        texts.append(f"{label}{answer['choice'].get(device) or none}{source}{unused}")
    return ", ".join(texts)


def _unset(answers: Sequence[Statement], host_names: Sequence[str], setting_option: str) -> list[str]:
    """A line for each variable that is set on some ranks only: the launcher does not pass it to all hosts."""
    lines = []
    for name in dict.fromkeys(v for a in answers for v in a["set"]):
        without = [rank for rank, a in enumerate(answers) if name not in a["set"]]
        if without:
            hosts = ", ".join(dict.fromkeys(host_names[rank] for rank in without[:100]))
            lines.append(
                f"{name} is unset on {_ranks(without)} ({hosts}) and set on the others.  "
                f"fix: {_same_everywhere(name, setting_option)}"
            )
    return lines


def _fix(answers: Sequence[Statement], shown: Sequence[str]) -> str:
    if all(answer["names"] == answers[0]["names"] for answer in answers):
        return "fix: install the same versions on all hosts"
    device = next((d for d in shown if d != "hvd-core"), "cpu")
    if len({answer["asked"] for answer in answers}) > 1:
        return f"fix: give all ranks the same {VARIABLE}"
    return f"fix: make the hosts alike, or name what all of them have: HOROVOD_BACKEND={device}=NAME"


def _compare_switches(answers: Sequence[Statement], host_names: Sequence[str], setting_option: str) -> str:
    lines = []
    for name in MUST_MATCH:
        values = [answer["switches"][name] for answer in answers]
        if len(set(values)) > 1:
            lines.append(
                f"{_about(name)}{_by_text(values, host_names)}\n  fix: {_same_everywhere(name, setting_option)}"
            )
    return "\n".join(lines)


def warnings(answers: Sequence[Statement], host_names: Sequence[str], setting_option: str) -> list[str]:
    """Rank 0's warnings about differences that do not stop the job."""
    lines = []
    for name, meaning in TUNING.items():
        values = [answer["tuning"][name] for answer in answers]
        if len(set(values)) > 1:
            about = _about(name).replace(".  ", f"; {meaning}.  ")
            lines.append(
                f"{about}{_by_text(values, host_names)}\n  fix: {_same_everywhere(name, setting_option)}"
            )
    return lines


def _about(topic: str) -> str:
    return f"horovod: ranks do not agree on {topic}.  "


def _by_text(texts: Sequence[str], host_names: Sequence[str]) -> str:
    """``ranks 0-6: a; rank 7 (node04): b``, for the texts of ranks 0, 1, ..."""
    groups: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        groups.setdefault(text, []).append(rank)
    return "; ".join(
        f"{_ranks(ranks)}{f' ({host_names[ranks[0]]})' if len(ranks) == 1 else ''}: {text}"
        for text, ranks in groups.items()
    )


def _ranks(ranks: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {shown}"
