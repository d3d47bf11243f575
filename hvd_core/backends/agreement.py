"""All ranks must have chosen the same backend and the same first process sets; whoever did not is named, on every rank.

Called by the thread that runs ``hvd.init()``, after the choice and before anything is opened. A rank whose choice failed
takes part too, so that the others do not wait for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from hvd_core.backends.errors import BackendDisagreement

_SETS = "init(process_sets=...)"


def agree(world: Any, choice: str, source: str, failed: bool, timeout_s: float, sets: str = "") -> None:
    """Compare ``choice`` (or, if ``failed``, the reason why there is none) over all ranks of ``world``.
    ``source`` says where the choice came from; it is told, not compared. ``sets``: the process sets that init() is to
    make, compared as well.

    Raises BackendDisagreement, or ValueError when it is about process sets, that lists the ranks by what they said, also
    when all that others said is a failure. A rank that failed itself returns: it has a better error to raise. Raises
    BootstrapTimeout when a rank says nothing in time.
    """
    if world.size == 1:
        return
    key = f"backend/{world.epoch}"
    deadline = time.monotonic() + timeout_s
    said = json.dumps({"choice": choice, "source": source, "failed": failed, "sets": sets})
    world.store.set(f"{key}/{world.rank}", said.encode())
    if failed:
        return
    if world.rank == 0:
        answers = [
            json.loads(world.store.get(f"{key}/{rank}", max(0.0, deadline - time.monotonic())))
            for rank in range(world.size)
        ]
        verdict = compare(answers, world.host_names)
        world.store.set(f"{key}/verdict", verdict.encode())
    else:
        verdict = _verdict_or_failure(world, key, deadline)
    if verdict.startswith(_about(_SETS)):
        raise ValueError(verdict)
    if verdict:
        raise BackendDisagreement(verdict)


def _verdict_or_failure(world: Any, key: str, deadline: float) -> str:
    # Rank 0 writes the verdict unless it has failed itself, which its own answer tells.
    first = json.loads(world.store.get(f"{key}/0", max(0.0, deadline - time.monotonic())))
    if first["failed"]:
        return compare([first], world.host_names)
    return world.store.get(f"{key}/verdict", max(0.0, deadline - time.monotonic())).decode()


def compare(answers: Sequence[dict[str, Any]], host_names: Sequence[str]) -> str:
    """The message for answers of ranks 0, 1, ... that are not all equal and good; "" if they are."""
    groups: dict[tuple[bool, str], list[int]] = {}
    for rank, answer in enumerate(answers):
        groups.setdefault((answer["failed"], answer["choice"]), []).append(rank)
    if len(groups) == 1 and not next(iter(groups))[0]:
        return _compare_sets([answer.get("sets", "") for answer in answers])
    topic = _SETS if any(a["failed"] and a["source"] == _SETS for a in answers) else "backends"
    parts = []
    for (failed, choice), ranks in groups.items():
        sources = sorted({answers[rank]["source"] for rank in ranks})
        where = _ranks(ranks) if len(ranks) > 1 else f"rank {ranks[0]} ({host_names[ranks[0]]})"
        parts.append(f"{where}: {'failed: ' if failed else ''}{choice} [{', '.join(sources)}]")
    return _about(topic) + "; ".join(parts)


def _compare_sets(said: Sequence[str]) -> str:
    groups: dict[str, list[int]] = {}
    for rank, sets in enumerate(said):
        groups.setdefault(sets, []).append(rank)
    if len(groups) == 1:
        return ""
    parts = [f"{_ranks(r) if len(r) > 1 else f'rank {r[0]}'}: {sets or 'none'}" for sets, r in groups.items()]
    return _about(_SETS) + "; ".join(parts)


def _about(topic: str) -> str:
    return f"horovod: ranks do not agree on {topic}.  "


def _ranks(ranks: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return "ranks " + ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
