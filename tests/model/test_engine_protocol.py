"""The engine's own protocol code, given the model's programs under random schedules, does what they mean."""

from __future__ import annotations

import pytest

from engine_walk import Walk
from programs import Program, random_program
from protocol import ProtocolError
from test_protocol_model import NASTY

core = pytest.importorskip("hvd_core._core", reason="the engine is not built")

TREES = {2: [[-1, 0]], 3: [[-1, 0, 0], [-1, 0, 1]]}  # parents: a star, a chain


def walk(program: Program, seeds: range) -> None:
    for parents in TREES[len(program)]:
        for seed in seeds:
            w = Walk(core.ProtocolSim, program, seed, parents, repeats=seed % 2)
            try:
                w.run()
            except ProtocolError as e:
                lines = "\n".join(f"  rank {r}: {ops}" for r, ops in enumerate(program))
                way = "\n".join(f"  {line}" for line in w.trace)
                pytest.fail(
                    f"{e}\nparents {parents}, schedule {seed}, program:\n{lines}\nwhat happened:\n{way}"
                )


def has_sets(program: Program) -> bool:
    return any(op[0] in ("add", "end") for ops in program for op in ops)


@pytest.mark.parametrize("name", [name for name, program in NASTY.items() if not has_sets(program)])
def test_nasty_programs(name: str) -> None:
    walk(NASTY[name], range(100))


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 100):
        program = random_program(seed)
        if not has_sets(program):
            walk(program, range(8))
