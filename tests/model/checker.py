"""Walks every interleaving of a small program over the protocol model; reports the shortest way to a mistake.

    python tests/model/checker.py --programs 2000 --seed 1 [--start-on-guess | --no-dissolve | ...]

checks random programs (programs.py). ideal.py computes the outcome that a program should have, so that a deadlock can be
told from a program that stalls by its own fault. One thread.
"""

from __future__ import annotations

import argparse
import sys
import time

from breadth_first import Outcome, breadth_first
from ideal import Ideal, ideal
from programs import Program, random_program
from protocol import ProtocolError, Switches
from world import State, World


def explore(
    program: Program,
    switches: Switches = Switches(),
    coupled: bool = False,
    limit: int = 200_000,
    reduced: bool = True,
) -> Outcome:
    """Walks all moves, breadth first, to the first mistake or `limit` states. The other arguments are World's."""
    world = World(program, switches, coupled, reduced)
    wanted = ideal(world)
    return breadth_first(
        world.initial(), world.moves, lambda s: _check_end(world, s, wanted), ProtocolError, limit
    )


def _check_end(world: World, s: State, wanted: Ideal) -> None:
    """No move is possible: checks that every rank is where its program should end, with the right outcomes."""

    def check(ok: bool, text: str) -> None:
        if not ok:
            raise ProtocolError(text)

    *ranks, _, log = s
    if tuple(rank.pc for rank in ranks) != wanted.pcs:
        stuck = "; ".join(
            f"rank {r} at {op}" for r, op in world.unfinished(s).items() if s[r].pc < wanted.pcs[r]
        )
        raise ProtocolError(f"deadlock: {stuck or 'beyond the end that was expected'}")
    aborted = tuple(rank.aborted for rank in ranks)
    if any(aborted):
        check(all(aborted), f"the abort has not reached every rank: {aborted}")
        return
    runs = tuple(rank.runs for rank in ranks)
    check(
        all(n == len(log.entries) for n in runs),
        f"deadlock in execution: of {len(log.entries)} entries, {runs} are executed",
    )
    got: dict[tuple, str] = {}
    pending: set[tuple] = set()
    for r, rank in enumerate(ranks):
        got.update({(r, key, n): outcome for (key, n), (outcome, _) in rank.me.results.items()})
        pending |= {(r, key) for key in rank.me.open}
    for entry in log.entries:
        if entry[0] in ("EXEC", "RUN"):
            for key, _, consumed in entry[2] if entry[0] == "EXEC" else entry[4]:
                for r, n in consumed:
                    check(
                        got.get((r, key, n)) == "exec",
                        f"rank {r} did not execute {key} {n}, which others did",
                    )
    if world.ends_early:
        closed = [rank.me.closed for rank in ranks]
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


def report(program: Program, outcome: Outcome) -> str:
    """The program and the trace as text."""
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
