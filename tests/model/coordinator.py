"""The root's half of the protocol model: it counts the ranks' messages and writes the log.

Mirrors hvd_core/engine/agreement/coordinator.h. The words are in protocol.py, the R-numbers in
docs/protocol.md.
"""

from __future__ import annotations

import itertools
from typing import Any

from protocol import POISON, READY, SETS_KEY, WORLD, Key, Switches, askers, check, pack


class Coordinator:
    """`out` receives the entries that it appends to the log."""

    def __init__(self, frozen: tuple, switches: Switches):
        self.switches = switches
        rounds, decided, sets, self.joined, live, dead, streaks, self.closed = frozen
        self.rounds: dict[Key, list[dict]] = {k: [dict(r) for r in rs] for k, rs in rounds}
        self.decided: dict[Key, tuple] = dict(decided)  # not yet in a batch: key -> (signature, consumed)
        self.sets: dict[str, tuple] = dict(sets)
        self.live = {i: (gen, members, dict(arrived)) for i, (gen, members, arrived) in live}
        # Dissolved: id -> (gen, members, ranks that may not know it), for arrivals under way (R6).
        self.dead: dict[int, tuple] = dict(dead)
        self.streaks: dict[tuple, int] = dict(streaks)
        self.out: list[tuple] = []

    @staticmethod
    def initial(world: int) -> tuple:
        return ((), (), ((WORLD, tuple(range(world))),), (), (), (), (), False)

    def freeze(self) -> tuple:
        rounds = pack({k: tuple(pack(r) for r in rs) for k, rs in self.rounds.items() if rs})
        live = pack({i: (gen, members, pack(arrived)) for i, (gen, members, arrived) in self.live.items()})
        known = live, pack(self.dead), pack(self.streaks)
        return (rounds, pack(self.decided), pack(self.sets), self.joined, *known, self.closed)

    def receive(self, message: tuple) -> None:
        if self.closed:
            return
        kind, rank, *rest = message
        if kind == READY:
            key, n, sig = rest
            check(self._live_with(key) is None, f"rank {rank} announced {key}, a member of a live batch")
            self._count(key, rank, READY, n, sig)
        elif kind == POISON:
            key, n = rest
            batch = self._live_with(key)
            if batch is not None and not self.switches.keep_on_poison:
                self.dissolve(batch)  # R8
            self._count(key, rank, POISON, n, None)
        elif kind == "ARRIVE":
            self._arrive(rank, *rest)
        elif kind == "ASK":
            batch, gen = rest
            if batch in self.live and self.live[batch][0] == gen:
                self.dissolve(batch)
        elif kind == "DISSOLVED":
            self._known_by(rank, *rest)
        elif kind == "JOIN":
            for batch in sorted(self.live):
                self.dissolve(batch)
            self.joined = (*self.joined, rank)
            for key in sorted(self.rounds):
                self._decide(key)
            if len(self.joined) == len(self.sets[WORLD]):
                check(not any(self.rounds.values()), "keys are undecided though all ranks have joined")
                self.form_batches()  # R9: decided keys come before JOINED
                self.joined = ()
                self.out.append(("JOINED", rank))
        elif kind == "LEAVE":
            self.form_batches()
            self.closed = True
            self.out.append(("CLOSE", rank))

    def form_batches(self) -> None:
        """R3, R4. In the model, requests go together when set and signature are equal."""
        groups: dict[tuple, list] = {}
        for key, (sig, consumed) in sorted(self.decided.items()):
            groups.setdefault((key[0], sig), []).append((key, sig, consumed))
        self.decided = {}
        for (name, _), items in sorted(groups.items()):
            members = tuple((key, sig) for key, sig, _ in items)
            known = not self.joined and len(items) >= self.switches.smallest_known
            # R4: a failed submission for the next round may be here already.
            known &= self.switches.define_over_poison or not any(self.rounds.get(key) for key, _ in members)
            if known and self.switches.repeats > 1:
                self.streaks[members] = self.streaks.get(members, 0) + 1
                known = self.streaks[members] >= self.switches.repeats
            batch = None
            if known:
                taken = self.live if self.switches.reuse_early else self.live | self.dead
                batch = next(i for i in itertools.count() if i not in taken)
                self.dead.pop(batch, None)
                self.live[batch] = (0, members, {})
                self.streaks.pop(members, None)
            self.out.append(("EXEC", self.sets[name], tuple(items), batch))

    def _arrive(self, rank: int, batch: int, gen: int, ghosts: tuple) -> None:
        if batch not in self.live:
            check(batch in self.dead, f"rank {rank} arrived at {batch}/{gen}, which does not exist")
            dead_gen, members, _ = self.dead[batch]
            check(dead_gen == gen, f"rank {rank} arrived at {batch}/{gen}, which ended with {dead_gen}")
            self._count_arrival(rank, members, ghosts)  # R6
            return
        live_gen, members, arrived = self.live[batch]
        check(live_gen == gen and rank not in arrived, f"rank {rank} arrived at {batch}/{gen} out of turn")
        check([k for k, _ in ghosts] == [k for k, _ in members], f"rank {rank} arrived at an earlier {batch}")
        arrived[rank] = ghosts
        ranks = self.sets[members[0][0][0]]
        if len(arrived) < len(ranks):
            return
        items = tuple(
            (k, sig, tuple((r, dict(arrived[r])[k]) for r in sorted(arrived))) for k, sig in members
        )
        for key, _, consumed in items:
            self._same_round(key, consumed)
        self.live[batch] = (gen + 1, members, {})
        self.out.append(("RUN", ranks, batch, gen, items))

    def dissolve(self, batch: int) -> None:
        gen, members, arrived = self.live.pop(batch)
        ranks = self.sets[members[0][0][0]]
        self.dead[batch] = (gen, members, ranks)
        self.out.append(("DISSOLVE", ranks, batch, gen))
        for rank in sorted(arrived):
            self._count_arrival(rank, members, arrived[rank])

    def _known_by(self, rank: int, batch: int, gen: int) -> None:
        """R4: after the last rank, the number is free."""
        dead_gen, members, unaware = self.dead.pop(batch, (None, (), ()))
        if self.switches.reuse_early and rank not in unaware:
            return
        check(dead_gen == gen and rank in unaware, f"rank {rank} knows of an end of {batch}/{gen}")
        if unaware != (rank,):
            self.dead[batch] = (gen, members, tuple(r for r in unaware if r != rank))

    def _count_arrival(self, rank: int, members: tuple, ghosts: tuple) -> None:
        for (key, sig), (_, n) in zip(members, ghosts, strict=True):
            self._count(key, rank, READY, n, sig)

    def _count(self, key: Key, rank: int, kind: str, n: tuple, sig: Any) -> None:
        """R2, R8: it counts for the first round of this key for which the rank has not been counted yet."""
        if key[0] not in self.sets:
            return  # R10: the set has ended
        rounds = self.rounds.setdefault(key, [])
        spoken = [r for r in rounds if rank in r]
        if self.switches.replace_poison and spoken and spoken[-1][rank][0] == POISON:
            spoken[-1][rank] = (kind, n, sig)
        else:
            if len(spoken) == len(rounds):
                rounds.append({})
            rounds[len(spoken)][rank] = (kind, n, sig)
        self._decide(key)

    def _decide(self, key: Key) -> None:
        """R1."""
        ranks = (not self.switches.all_ranks_ask and askers(key)) or self.sets[key[0]]
        while self.rounds.get(key) and all(r in self.rounds[key][0] or r in self.joined for r in ranks):
            said = self.rounds[key].pop(0)
            consumed = tuple((r, said[r][1]) for r in sorted(said))
            poisoners = tuple(r for r in sorted(said) if said[r][0] == POISON)
            sigs = {sig for kind, _, sig in said.values() if kind == READY}
            self._same_round(key, consumed)
            if poisoners or len(sigs) > 1:
                self.out.append(("FAIL", key, consumed, poisoners))
            elif key == SETS_KEY or askers(key):
                self._change_sets(sigs.pop(), consumed, key)
            else:
                check(key not in self.decided, f"{key} is decided twice before it is in a batch")
                self.decided[key] = (sigs.pop(), consumed)

    def _same_round(self, key: Key, consumed: tuple) -> None:
        rounds = {n for _, n in consumed}
        check(
            len(rounds) == 1 or self.switches.replace_poison, f"{key} counted for the wrong round: {consumed}"
        )

    def _change_sets(self, change: tuple, consumed: tuple, key: Key) -> None:
        verb, name, ranks = change
        check(not askers(key) or ranks == askers(key), f"{key} is about a set of the ranks {ranks}")
        self._dissolve_all_of(name)
        self.form_batches()  # R10: decided keys come before the end
        self._dissolve_all_of(name)  # a batch may have become known just now; no rank can have arrived at it
        if verb == "add":
            self.sets[name] = ranks
        else:
            del self.sets[name]
            self.rounds = {k: v for k, v in self.rounds.items() if k[0] != name}
        self.out.append(("SETS", change, consumed, key, askers(key) or self.sets[WORLD]))

    def _dissolve_all_of(self, name: str) -> None:
        for batch in [i for i, (_, members, _) in sorted(self.live.items()) if members[0][0][0] == name]:
            self.dissolve(batch)

    def _live_with(self, key: Key) -> int | None:
        return next(
            (i for i, (_, members, _) in self.live.items() if any(k == key for k, _ in members)), None
        )
