"""Makes a failing program small: takes away what it fails without. For people who have to understand it.

The smaller programs stay programs: what all ranks must do together (sets, joins) is taken away on all of them, and
no name comes again while it may be in flight. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from programs import Op, Program


def minimise(program: Program, fails: Callable[[Program], bool], tries: int = 2000) -> Program:
    """The smallest program found in that many tries for which `fails` still holds."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in list(_smaller(program)):
            if tries <= 0:
                return program
            if _size(candidate) >= _size(program) or not is_valid(candidate):
                continue
            tries -= 1
            if fails(candidate):
                program, smaller = candidate, True
                break
    return program


def is_valid(program: Program) -> bool:
    """Whether every name is waited for (or its set ended) before it comes again, and sets exist while used."""
    signals = {op[1] for ops in program for op in ops if op[0] == "signal"}
    if any(op[0] == "await" and op[1] not in signals for ops in program for op in ops):
        return False
    for ops in program:
        busy: set = set()
        sets = {"w"}
        for op in ops:
            kind, *rest = op
            key = tuple(rest[:2])
            if kind in ("submit", "fail", "poll") and rest[0] not in sets:
                return False
            if kind == "submit":
                if key in busy:
                    return False
                busy.add(key)
            elif kind == "wait":
                busy.discard(key)
            elif kind == "join":
                busy.clear()
            elif kind == "add":
                sets.add(rest[0])
            elif kind == "end":
                if rest[0] not in sets:
                    return False
                sets.discard(rest[0])
                busy = {k for k in busy if k[0] != rest[0]}
    return True


def _size(program: Program) -> int:
    return sum(map(len, program))


def _smaller(program: Program) -> Iterator[Program]:
    """Largest cuts first: tails, keys, sets and joins, stretches of one rank, single operations."""
    longest = max(map(len, program))
    for keep in (longest // 2, longest * 3 // 4, longest * 9 // 10):
        yield [ops[: keep * len(ops) // longest] for ops in program]
    for key in sorted({op[1:3] for ops in program for op in ops if len(op) > 2 and op[0] != "add"}):
        yield _without(program, lambda op, key=key: op[0] != "add" and op[1:3] == key)
    for name in sorted({op[1] for ops in program for op in ops if op[0] == "add"}):
        yield _without(program, lambda op, name=name: len(op) > 1 and op[1] == name)
    for together in ("join", "add", "end"):
        count = max(sum(op[0] == together for op in ops) for ops in program)
        for i in range(count):
            yield [_without_nth(ops, together, i) for ops in program]
    for width in (8, 4):
        for r, ops in enumerate(program):
            for at in range(0, len(ops), width):
                cut = [op for op in ops[at : at + width] if op[0] in ("add", "end", "join")]
                yield program[:r] + [ops[:at] + cut + ops[at + width :]] + program[r + 1 :]
    # One and the same submission and its wait on every rank.
    for key in sorted({op[1:3] for ops in program for op in ops if op[0] == "submit"}):
        for i in range(max(sum(op[0] == "submit" and op[1:3] == key for op in ops) for ops in program)):
            yield [_without_round(ops, key, i) for ops in program]
    for r, ops in enumerate(program):
        for at, op in enumerate(ops):
            if op[0] not in ("add", "end", "join"):
                yield program[:r] + [ops[:at] + ops[at + 1 :]] + program[r + 1 :]


def _without(program: Program, away: Callable[[Op], bool]) -> Program:
    return [[op for op in ops if not away(op)] for ops in program]


def _without_nth(ops: list[Op], kind: str, n: int) -> list[Op]:
    places = [at for at, op in enumerate(ops) if op[0] == kind]
    return ops[: places[n]] + ops[places[n] + 1 :] if n < len(places) else ops


def _without_round(ops: list[Op], key: tuple, n: int) -> list[Op]:
    places = [at for at, op in enumerate(ops) if op[0] == "submit" and op[1:3] == key]
    if n >= len(places):
        return ops
    wait = next((at for at in range(places[n], len(ops)) if ops[at] == ("wait", *key)), len(ops))
    return ops[: places[n]] + ops[places[n] + 1 : wait] + ops[wait + 1 :]


def show(program: Program) -> str:
    return "\n".join(
        f"  rank {r}: {', '.join(' '.join(map(str, op)) for op in ops)}" for r, ops in enumerate(program)
    )
