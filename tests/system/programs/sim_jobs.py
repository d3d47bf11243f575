"""Random programs on N control nodes in one process: the engine's protocol code on a virtual clock.

Each program is walked on several trees and schedules; one that fails is made small. Values play no role here:
real_jobs.py has them. Used by the tests and by soak.py, on one thread.
"""

from __future__ import annotations

import random

from engine_walk import Settings, Walk
from generator import generate
from minimise import minimise, show
from programs import Program
from protocol import ProtocolError

TREES = {
    1: [(-1,)],
    2: [(-1, 0)],
    3: [(-1, 0, 0), (-1, 0, 1)],
    4: [(-1, 0, 0, 0), (-1, 0, 1, 2), (-1, 0, 0, 2), (-1, 0, 1, 1)],  # star, chain, two hosts, one leader
}


def settings_of(size: int, schedule: int) -> Settings:
    """Small caches, small batches, early and late batches, impatient and patient clocks."""
    rng = random.Random(schedule)
    return Settings(
        parents=TREES[size][schedule % len(TREES[size])],
        repeats=rng.choice([0, 1, 1, 2]),
        cache_capacity=rng.choice([0, 2, 5, 1024]),
        fusion_threshold=rng.choice([0, 64, 4096, 128 << 20, 128 << 20]),
        merge_ns=rng.choice([1, 1_000_000, 5_000_000]),
        eager=rng.choice([0.2, 1.0, 5.0]),
        patience=rng.choice([0.0, 0.03, 0.1]),
    )


def walk_once(sim_type: type, program: Program, schedule: int) -> tuple[str, list[str]]:
    """("", trace) when all is as it should be, else (what is wrong, trace)."""
    walk = Walk(sim_type, program, schedule, settings_of(len(program), schedule))
    try:
        walk.run()
    except ProtocolError as error:
        return str(error), walk.trace
    return "", walk.trace


def check_seed(sim_type: type, seed: int, schedules: int = 4) -> str:
    """The engine's fault, shown by the smallest program found; empty when no fault is found."""
    program = generate(seed).program
    for i in range(schedules):
        schedule = seed * 16 + i
        wrong, _ = walk_once(sim_type, program, schedule)
        if wrong:
            return explain(sim_type, program, wrong, f"seed {seed}", schedule)
    return ""


def explain(sim_type: type, program: Program, wrong: str, what: str, schedule: int) -> str:
    def failing(candidate: Program) -> int | None:
        # Another program makes other choices of the same schedule: give it some to fail in.
        tried = (schedule + 16 * len(TREES[len(program)]) * k for k in range(12))
        return next((s for s in tried if walk_once(sim_type, candidate, s)[0]), None)

    small = minimise(program, lambda candidate: failing(candidate) is not None)
    where = failing(small)
    if where is None:
        small, where = program, schedule
    said, trace = walk_once(sim_type, small, where)
    return (
        f"{what}, schedule {schedule}: {wrong}\n"
        f"made small, with schedule {where} ({settings_of(len(small), where)}): {said}\n{show(small)}\n"
        "what happened:\n" + "\n".join(f"  {line}" for line in trace[-120:])
    )
