"""Walks every interleaving of a small program over the protocol model; reports the shortest way to a mistake.

    python tests/model/checker.py --programs 2000 --seed 1 [--start-on-guess | --no-dissolve | ...]

checks random programs (programs.py). What a program should come to is worked out by `ideal`, which knows
nothing of batches, messages or the log: so a deadlock is told from a program that stalls by its own fault.
One thread.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from typing import NamedTuple

from programs import Program, random_program
from protocol import SETS_KEY, WORLD, ProtocolError, Switches
from world import State, World


class Outcome(NamedTuple):
    """`error` is None when nothing is wrong; `trace` is the shortest list of moves that leads to it."""

    error: str | None
    trace: list[str]
    states: int
    complete: bool  # False: the limit on states was reached first


class Ideal(NamedTuple):
    pcs: tuple[int, ...]  # where each rank's program ends
    results: dict[
        tuple, str
    ]  # (rank, key, n) -> exec | fail | ended; not given when somebody leaves or aborts
    pending: set[tuple]  # (rank, key): submitted, and never decided


def explore(
    program: Program,
    switches: Switches = Switches(),
    coupled: bool = False,
    limit: int = 200_000,
    reduced: bool = True,
) -> Outcome:
    """Breadth first, over all moves, to the first mistake or `limit` states. The rest as in World."""
    world = World(program, switches, coupled, reduced)
    wanted = ideal(world)
    start = world.initial()
    came_from: dict[State, tuple[State | None, str]] = {start: (None, "")}
    queue = deque([start])

    def trace(s: State | None, last: str = "") -> list[str]:
        steps = [last] if last else []
        while s is not None:
            s, label = came_from[s]
            steps.append(label)
        return [label for label in reversed(steps) if label]

    while queue:
        if len(came_from) > limit:
            return Outcome(None, [], len(came_from), False)
        s = queue.popleft()
        try:
            moves = world.moves(s)
            if not moves:
                _check_end(world, s, wanted)
        except ProtocolError as e:
            return Outcome(str(e), trace(s), len(came_from), True)
        for label, after in moves:
            if after not in came_from:
                came_from[after] = (s, label)
                queue.append(after)
    return Outcome(None, [], len(came_from), True)


def _check_end(world: World, s: State, wanted: Ideal) -> None:
    """Nothing can move any more: is everybody where the program should end, with the right outcomes?"""

    def check(ok: bool, text: str) -> None:
        if not ok:
            raise ProtocolError(text)

    if s.pcs != wanted.pcs:
        stuck = "; ".join(
            f"rank {r} at {op}" for r, op in world.unfinished(s).items() if s.pcs[r] < wanted.pcs[r]
        )
        raise ProtocolError(f"deadlock: {stuck or 'beyond the end that was expected'}")
    log = world.log(s)
    if any(s.aborted):
        check(all(s.aborted), f"the abort has not reached every rank: {s.aborted}")
        return
    check(
        all(n == len(log) for n in s.runs),
        f"deadlock in execution: of {len(log)} entries, {s.runs} are executed",
    )
    got: dict[tuple, str] = {}
    pending: set[tuple] = set()
    for r in range(world.size):
        me = world.participant(s, r)
        got.update({(r, key, n): outcome for (key, n), (outcome, _) in me.results.items()})
        pending |= {(r, key) for key in me.open}
    for entry in log:
        if entry[0] in ("EXEC", "RUN"):
            for key, _, consumed in entry[2] if entry[0] == "EXEC" else entry[4]:
                for r, n in consumed:
                    check(
                        got.get((r, key, n)) == "exec",
                        f"rank {r} did not execute {key} {n}, which others did",
                    )
    if world.ends_early:
        closed = [world.participant(s, r).closed for r in range(world.size)]
        check(len(set(closed)) == 1, f"not every rank has replayed CLOSE: {closed}")
        check(not all(closed) or not pending, f"pending after CLOSE: {pending}")
        if any(closed):
            return
    if world.switches.replace_poison:
        return
    check(pending == wanted.pending, f"pending at the end: {pending}, expected: {wanted.pending}")
    wrong = {k: (got.get(k), wanted.results.get(k)) for k in got.keys() | wanted.results.keys()}
    wrong = {k: v for k, v in wrong.items() if v[0] != v[1]}
    check(not wrong, f"outcomes (got, expected): {wrong}")


def ideal(world: World) -> Ideal:
    """What the program means: the n-th submission of a key on one rank meets the n-th on every other.

    Every step here only ever enables others, so the order in which they are taken does not matter.
    """
    code, size = world.code, world.size
    pcs = [0] * size
    sets: dict[str, tuple] = {WORLD: tuple(range(size))}
    submitted: dict[tuple, list] = {}  # (rank, key) -> [(n, sig or None for a failure)] not yet decided
    counts: dict[tuple, int] = {}
    results: dict[tuple, str] = {}
    joined: set[int] = set()
    joins = 0
    over = False

    def undecided(r: int, key: tuple) -> bool:
        return any(sig is not None for _, sig in submitted.get((r, key), ()))

    def decide() -> bool:
        nonlocal joins
        for key in sorted({key for (_, key), queue in submitted.items() if queue}):
            heads = {r: submitted[r, key][0] for r in sets[key[0]] if submitted.get((r, key))}
            if any(r not in heads and r not in joined for r in sets[key[0]]):
                continue
            outcome = (
                "exec" if len({sig for _, sig in heads.values()}) == 1 and heads[min(heads)][1] else "fail"
            )
            for r, (n, sig) in heads.items():
                submitted[r, key].pop(0)
                if sig is not None:
                    results[r, key, n] = outcome
            if key == SETS_KEY and outcome == "exec":
                verb, name, ranks = heads[min(heads)][1]
                if verb == "add":
                    sets[name] = ranks
                else:
                    for (r, other), queue in submitted.items():
                        if other[0] == name:
                            results.update({(r, other, n): "ended" for n, sig in queue if sig is not None})
                            queue.clear()
            return True
        if len(joined) == size:
            joined.clear()
            counts.clear()
            joins += 1
            return True
        return False

    def step(r: int) -> bool:
        nonlocal over
        op = code[r][pcs[r]]
        kind, key = op[0], op[1] if len(op) > 1 else None
        if kind == "await":
            sender, at = world.signals[key]
            if pcs[sender] <= at:
                return False
        elif over:
            pass
        elif kind in ("submit", "fail", "add", "end"):
            sig = {"submit": op[-1], "fail": None}.get(kind, op)
            key = key if kind in ("submit", "fail") else SETS_KEY
            counts[r, key] = counts.get((r, key), 0) + 1
            submitted.setdefault((r, key), []).append(((joins, counts[r, key]), sig))
        elif kind == "join":
            joined.add(r)
        elif (kind == "wait" and undecided(r, key)) or (kind == "joined" and r in joined):
            return False
        elif kind in ("leave", "abort"):
            over = True
        pcs[r] += 1
        return True

    while any(pcs[r] < len(code[r]) and step(r) for r in range(size)) or (not over and decide()):
        pass
    return Ideal(tuple(pcs), results, {(r, key) for (r, key) in submitted if undecided(r, key)})


def report(program: Program, outcome: Outcome) -> str:
    """The program and the trace, for people."""
    lines = [f"{outcome.error}", "program:"]
    lines += [
        f"  rank {r}: " + ", ".join(" ".join(map(str, op)) for op in ops) for r, ops in enumerate(program)
    ]
    lines += [f"shortest way there ({len(outcome.trace)} moves):"]
    return "\n".join(lines + [f"  {i:2}. {label}" for i, label in enumerate(outcome.trace, 1)])


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the agreement protocol on random programs.")
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=200_000, help="give a program up after this many states")
    parser.add_argument("--coupled", action="store_true", help="ranks do not replay ahead of execution")
    for name, default in Switches._field_defaults.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
        elif isinstance(default, tuple):
            parser.add_argument(flag, action="append", default=[])
        else:
            parser.add_argument(flag, type=int, default=default)
    args = parser.parse_args()
    given = {name: getattr(args, name) for name in Switches._fields}
    switches = Switches(**given | {"overtaken": tuple(args.overtaken)})
    began, states, bad, given_up = time.monotonic(), 0, 0, 0
    for seed in range(args.seed, args.seed + args.programs):
        program = random_program(seed)
        outcome = explore(program, switches, args.coupled, args.limit)
        states += outcome.states
        given_up += not outcome.complete
        if outcome.error:
            bad += 1
            print(f"--- seed {seed}: {report(program, outcome)}")
    took = time.monotonic() - began
    print(
        f"{args.programs} programs, {states} states, {bad} with mistakes, "
        f"{given_up} given up after {args.limit} states, {took:.1f} s"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
