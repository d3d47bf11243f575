"""Runs a program (programs.py) on the engine's own protocol code, under a random schedule.

N control nodes in one process, joined by queues, on a clock that only moves when told: ProtocolSim. A
schedule decides at each turn which rank's program goes on, which node works, which bytes arrive. An execution
completes when all ranks have begun it, as a collective does. What must come out is what checker.ideal()
says, as for the model. Process sets are left out: the simulation has only that of all ranks. One thread.
"""

from __future__ import annotations

import random

from checker import ideal
from programs import Program
from protocol import ProtocolError, Switches
from world import World

DISSOLVE_AFTER_NS = 1_000_000
SIGNATURES = {"f32": 1, "i64": 2}


class Walk:
    """One program, one schedule. `run()` raises ProtocolError when the outcome is not what it should be."""

    def __init__(self, sim_type: type, program: Program, seed: int, parents: list[int], repeats: int):
        self.world = World(program, Switches())  # for the program's instructions
        self.sim = sim_type(parents=parents, repeats=repeats, dissolve_after_ns=DISSOLVE_AFTER_NS)
        self.rng = random.Random(seed)
        size = len(program)
        self.pcs = [0] * size
        self.counts: list[dict] = [{} for _ in range(size)]  # submissions of a key since the last JOINED
        self.joins = [0] * size
        self.joined = [False] * size
        self.over: list[str] = [""] * size  # closed or aborted
        self.tokens: dict[int, tuple] = {}  # token -> (rank, key, n)
        self.pending: list[dict] = [{} for _ in range(size)]  # key -> token
        self.executions: list[list] = [
            [] for _ in range(size)
        ]  # what each rank was told to execute, in order
        self.completed = 0  # executions that all ranks have begun
        self.results: dict[tuple, str] = {}
        self.trace: list[str] = []

    def run(self) -> None:
        size = len(self.pcs)
        while True:
            turns = [("program", r) for r in range(size) if self._can_go_on(r)]
            turns += [("deliver", link) for link in self.sim.in_flight()]
            turns += [("step", r) for r in range(size)]
            if self.rng.random() < 0.03:
                turns = [("advance", 0)]
            if not self._take(*self.rng.choice(turns)) and len(turns) == size and self._is_quiet():
                break
        self._check()

    def _take(self, kind: str, what) -> bool:
        if kind == "program":
            self._go_on(what)
        elif kind == "deliver":
            self.trace.append(f"bytes {'from' if what[1] else 'to'} rank {what[0]} arrive")
            self.sim.deliver(*what)
        elif kind == "advance":
            self.trace.append("time passes")
            self.sim.advance(DISSOLVE_AFTER_NS)
        else:
            worked = self.sim.step(what)
            heard = self._take_events()
            if worked or heard:
                self.trace.append(f"rank {what} works")
            return worked or heard
        self._take_events()
        return True

    def _is_quiet(self) -> bool:
        """Nothing happens any more, not even when everybody works once and time passes."""
        size = len(self.pcs)
        for _ in range(2):
            worked = [self._take("step", r) for r in range(size)]
            if any(worked) or self.sim.in_flight() or any(self._can_go_on(r) for r in range(size)):
                return False
            self.sim.advance(DISSOLVE_AFTER_NS)
        return True

    def _can_go_on(self, r: int) -> bool:
        if self.pcs[r] == len(self.world.code[r]):
            return False
        kind, *args = self.world.code[r][self.pcs[r]]
        if kind == "await":
            sender, at = self.world.signals[args[0]]
            return self.pcs[sender] > at
        if self.over[r]:
            return True
        if kind == "wait":
            return args[0] not in self.pending[r]
        return not (kind == "joined" and self.joined[r]) and kind != "closed"

    def _go_on(self, r: int) -> None:
        op = self.world.code[r][self.pcs[r]]
        self.pcs[r] += 1
        self.trace.append(f"rank {r}: {op}")
        kind = op[0]
        if self.over[r]:
            return
        if kind in ("submit", "fail"):
            _, name = key = op[1]
            self.counts[r][key] = self.counts[r].get(key, 0) + 1
            n = (self.joins[r], self.counts[r][key])
            if kind == "fail":
                self.sim.poison(r, name, f"rank {r} failed")
                return
            token = len(self.tokens) + 1
            self.tokens[token] = (r, key, n)
            self.pending[r][key] = token
            if not self.sim.submit(r, name, SIGNATURES[op[2]], token):
                raise ProtocolError(f"rank {r}: {name} was refused though it is not in flight")
        elif kind == "poll":
            self.sim.wanted(r, op[1][1])
        elif kind == "join":
            self.joined[r] = True
            self.sim.join(r)
        elif kind == "leave":
            self.sim.leave(r, f"rank {r} has left")
        elif kind == "abort":
            self.sim.abort(r, f"rank {r} has broken down")

    def _take_events(self) -> bool:
        heard = False
        for r in range(len(self.pcs)):
            for kind, *args in self.sim.take_events(r):
                heard = True
                if kind == "execute":
                    _, names, tokens = args
                    self.executions[r].append((names, tokens))
                elif kind == "fail":
                    self._finish(r, args[0], "fail")
                elif kind == "joined":
                    self.joined[r] = False
                    self.joins[r] += 1
                    self.counts[r].clear()
                elif kind in ("closed", "aborted"):
                    self.over[r] = kind
        while all(len(done) > self.completed for done in self.executions):
            begun = [done[self.completed] for done in self.executions]
            if any(names != begun[0][0] for names, _ in begun):
                raise ProtocolError(f"ranks execute different things: {[names for names, _ in begun]}")
            for i, name in enumerate(begun[0][0]):
                rounds = {self.tokens[tokens[i]][2] for _, tokens in begun if tokens[i]}
                if len(rounds) != 1:
                    raise ProtocolError(f"{name} executed with data of different rounds: {rounds}")
            for r, (_, tokens) in enumerate(begun):
                for token in filter(None, tokens):
                    self._finish(r, token, "exec")
            self.completed += 1
        return heard

    def _finish(self, r: int, token: int, outcome: str) -> None:
        rank, key, n = self.tokens[token]
        if rank != r or self.pending[r].get(key) != token:
            raise ProtocolError(f"rank {r} ends request {(rank, key, n)} twice, or another rank's: {outcome}")
        del self.pending[r][key]
        self.results[rank, key, n] = outcome

    def _check(self) -> None:
        wanted = ideal(self.world)
        if tuple(self.pcs) != wanted.pcs:
            stuck = {r: self.world.code[r][pc] for r, pc in enumerate(self.pcs) if pc < wanted.pcs[r]}
            raise ProtocolError(f"deadlock: {stuck}")
        if any("aborted" in over for over in self.over):
            if not self.world.ends_early:
                raise ProtocolError(f"an abort nobody asked for: {self.over}")
            return
        if len({len(done) for done in self.executions}) != 1:
            raise ProtocolError(
                f"executions begun and not completed: {[len(done) for done in self.executions]}"
            )
        if self.world.ends_early:
            if len(set(self.over)) != 1:
                raise ProtocolError(f"not every rank has heard of the end: {self.over}")
            return
        wrong = {
            k: (self.results.get(k), wanted.results.get(k))
            for k in self.results.keys() | wanted.results.keys()
            if self.results.get(k) != wanted.results.get(k)
        }
        if wrong:
            raise ProtocolError(f"outcomes (got, expected): {wrong}")
