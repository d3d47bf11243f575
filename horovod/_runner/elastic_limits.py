"""The limits of an elastic job, as horovodrun's options give them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Of an elastic job. `first`: the slots with which it begins; `least`, `most`: ranks of a world; `timeout_s`: how
    long it waits for enough slots; `grace_s`: how long for members to leave a world that has ended; `start_s`: for hosts
    to answer; `init_s`: for workers to come to init() while others wait for them there; `spares`: workers beyond `most`,
    which wait for a place; `preemption_s`: between the SIGTERM of a rank and its end, None if that is the same;
    `chaos_s`: kill a rank about so often."""

    first: int
    least: int
    most: int | None
    timeout_s: float
    grace_s: float
    start_s: float
    reset_limit: int | None = None
    cooldown: tuple[float, float] | None = None
    spares: int = 0
    init_s: float = 600.0
    preemption_s: float | None = None
    chaos_s: float | None = None
