"""The engine's own protocol code, given the model's programs under random schedules, does what they mean."""

from __future__ import annotations

import pytest

from engine_walk import Settings, Walk
from programs import Program, random_messages, random_program
from protocol import ProtocolError
from protocol_sim import ProtocolSim
from test_protocol_model import NASTY

TREES = {  # parents: stars, chains, two hosts
    2: [(-1, 0)],
    3: [(-1, 0, 0), (-1, 0, 1)],
    4: [(-1, 0, 0, 0), (-1, 0, 1, 2), (-1, 0, 0, 2)],
}


def walk(program: Program, seeds: range) -> None:
    for parents in TREES[len(program)]:
        for seed in seeds:
            settings = Settings(parents, repeats=seed % 2, merge_ns=[1, 5_000_000][seed % 3 > 0])
            w = Walk(ProtocolSim, program, seed, settings)
            try:
                w.run()
            except ProtocolError as e:
                lines = "\n".join(f"  rank {r}: {ops}" for r, ops in enumerate(program))
                way = "\n".join(f"  {line}" for line in w.trace)
                pytest.fail(f"{e}\n{settings}, schedule {seed}, program:\n{lines}\nwhat happened:\n{way}")


def for_the_engine(program: Program) -> Program:
    """The engine refuses a second set with the ranks of another; the model has no such rule.

    If a program adds a set of all ranks, it gets one more rank, which does everything but the operations in that set.
    """
    everyone = tuple(range(len(program)))
    twins = {op[1] for ops in program for op in ops if op[0] == "add" and tuple(op[2]) == everyone}
    if not twins:
        return program
    return program + [
        [op for op in program[-1] if op[0] in ("add", "end") or op[1:2] not in [(t,) for t in twins]]
    ]


def schedules(few: int, many: int):
    """The first schedules are for every run, the others for the slow one."""
    later = pytest.param(range(few, many), marks=pytest.mark.slow)
    return pytest.mark.parametrize("seeds", [range(few), later], ids=["few", "many"])


@schedules(48, 100)
@pytest.mark.parametrize("name", NASTY)
def test_nasty_programs(name: str, seeds: range) -> None:
    walk(for_the_engine(NASTY[name]), seeds)


@schedules(4, 8)
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_programs(first: int, seeds: range) -> None:
    for seed in range(first, first + 100):
        walk(for_the_engine(random_program(seed)), seeds)


@schedules(4, 8)
def test_random_messages(seeds: range) -> None:
    for seed in range(100):
        walk(random_messages(seed), seeds)


def test_coalescing_delay_and_dissolve_delay_are_apart() -> None:
    sim = ProtocolSim(parents=[-1], coalesce_ns=1000, dissolve_after_ns=5000, repeats=1)

    def executed(delay: int) -> list:
        sim.advance(delay)
        sim.step(0)
        return [event[2] for event in sim.take_events(0) if event[0] == "execute"]

    for _ in range(2):  # two requests become a known batch
        assert sim.submit(0, "a", 1, 1) and sim.submit(0, "b", 1, 2)
        assert executed(0) == [] and sim.next_deadline(0) == 1000
        assert executed(999) == [] and executed(1) == [["a", "b"]]
    assert sim.submit(0, "a", 1, 1)  # held in part, until the dissolve delay is over; then urgent
    assert executed(0) == [] and sim.next_deadline(0) == 5000
    assert executed(4999) == [] and executed(1) == [["a"]]
