"""The meaning of a program: a sequential model without batches, messages, links or a log.

The n-th submission of a key on one rank meets the n-th on every other; a round is decided when all ranks of its
set have submitted or joined. Used by the protocol model's checker, by the walks over the engine's own protocol
code, and for programs on real processes. One thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from protocol import SETS_KEY, WORLD, askers, own_key
from world import World


class Round(NamedTuple):
    key: tuple[str, str]
    outcome: str  # exec | fail
    said: dict[int, tuple[tuple, Any]]  # rank -> (n, signature; None for a failed submission)
    ranks: tuple[int, ...]  # of the set; ranks that are not in `said` have joined


class Ideal(NamedTuple):
    pcs: tuple[int, ...]  # where each rank's program ends
    results: dict[tuple, str]  # (rank, key, n) -> exec | fail | ended; empty if a rank leaves or aborts
    rounds: list[Round]  # decided rounds, in an order that keeps the order of each key
    pending: set[tuple]  # (rank, key): submitted, and never decided


def ideal(world: World) -> Ideal:
    """Each step only enables others, so that the order of the steps does not matter."""
    code, size = world.code, world.size
    pcs = [0] * size
    sets: dict[str, tuple] = {WORLD: tuple(range(size))}
    submitted: dict[tuple, list] = {}  # (rank, key) -> [(n, sig or None for a failure)] not yet decided
    counts: dict[tuple, int] = {}
    results: dict[tuple, str] = {}
    rounds: list[Round] = []
    joined: set[int] = set()
    joins = 0
    over = False

    def undecided(r: int, key: tuple) -> bool:
        return any(sig is not None for _, sig in submitted.get((r, key), ()))

    def decide() -> bool:
        nonlocal joins
        for key in sorted({key for (_, key), queue in submitted.items() if queue}):
            if key[0] not in sets:
                continue  # a message that waits for the set of its two ranks
            ranks = askers(key) or sets[key[0]]
            heads = {r: submitted[r, key][0] for r in ranks if submitted.get((r, key))}
            if any(r not in heads and r not in joined for r in ranks):
                continue
            outcome = (
                "exec" if len({sig for _, sig in heads.values()}) == 1 and heads[min(heads)][1] else "fail"
            )
            for r, (n, sig) in heads.items():
                submitted[r, key].pop(0)
                if sig is not None:
                    results[r, key, n] = outcome
            rounds.append(Round(key, outcome, heads, ranks))
            if (key == SETS_KEY or askers(key)) and outcome == "exec":
                verb, name, ranks = heads[min(heads)][1]
                if verb in ("add", "open"):
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
        elif kind in ("submit", "fail", "add", "end", "open", "shut"):
            sig = {"submit": op[-1], "fail": None}.get(kind, op)
            if kind in ("open", "shut"):
                key = own_key(op[1] if kind == "open" else f"end of {op[1]}", op[2])
            elif kind in ("add", "end"):
                key = SETS_KEY
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
    return Ideal(tuple(pcs), results, rounds, {(r, key) for (r, key) in submitted if undecided(r, key)})
