"""Cores: the cores that each rank of a host may use, the core of the engine's thread, and whether each rank can have one.

The cores that a process was given (taskset, ``mpirun --bind-to``, a cpuset) are a limit that no function here exceeds.
Pure functions of masks, one set of cores per local rank; called on the thread that runs init().
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

SETTING = "HOROVOD_THREAD_AFFINITY"
Masks = Sequence[AbstractSet[int]]
"""The cores that each rank of a host may use, by local rank."""


def inherited() -> list[int]:
    """The cores that the calling thread and its children may use, ascending."""
    return sorted(os.sched_getaffinity(0))


def to_text(cores: Iterable[int]) -> str:
    """[0, 1, 2, 5] as "0-2,5", the notation of the kernel."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def from_text(text: str) -> frozenset[int]:
    """The frozenset that to_text wrote."""
    cores: set[int] = set()
    for run in text.split(",") if text else ():
        low, _, high = run.partition("-")
        cores.update(range(int(low), int(high or low) + 1))
    return frozenset(cores)


def engine_core(setting: str, masks: Masks, local_rank: int) -> tuple[int | None, str | None]:
    """(core for this rank's engine thread or None, message about a fault of the setting or None).

    ``setting``: one core per local rank, or a single core N, which means N, N + 1, ... on a host with several ranks.
    The ranks of a host are pinned all or not at all, so each of them finds the same fault.
    """
    if not setting.strip():
        return None, None
    cores, fault = _parse(setting, len(masks))
    if not fault:
        outside = [
            f"core {core} for local rank {i}, which may use {to_text(mask) or 'none'}"
            for i, (core, mask) in enumerate(zip(cores, masks, strict=False))
            if core not in mask
        ]
        if outside:
            shown = "; ".join(outside[:4]) + ("; ..." if len(outside) > 4 else "")
            fault = f"it names cores that the ranks may not use ({shown})"
    if not fault:
        return cores[local_rank], None
    return None, (
        f"{SETTING}={setting!r}: {fault}. No engine thread is pinned on this host (local ranks 0 to "
        f"{len(masks) - 1}). Set a comma-separated list with one allowed core for each local rank, or unset it."
    )


def _parse(setting: str, local_size: int) -> tuple[list[int], str]:
    """The core of each local rank, and the fault of the setting or "" """
    words = [word.strip() for word in setting.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit()):
            return [], f"{word!r} is not the number of a core"
    cores = [int(word) for word in words]
    if len(cores) == 1:
        # The launcher's --thread-affinity has always been a single number, for any number of ranks.
        return [cores[0] + i for i in range(local_size)], ""
    if len(cores) < local_size:
        return [], f"it has {len(cores)} cores for {local_size} ranks"
    return cores, ""


def enough_cores(masks: Masks, local_rank: int) -> bool:
    """Whether this rank and the ranks that share cores with it have as many cores as they are."""
    own = frozenset(masks[local_rank])
    rivals = [mask for mask in masks if not own.isdisjoint(mask)]
    return len(rivals) <= len(frozenset().union(*rivals))
