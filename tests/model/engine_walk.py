"""Runs a program (programs.py) on the engine's own protocol code, under a random schedule.

N control nodes in one process, joined by queues, on a clock that the test moves: ProtocolSim. At each turn a schedule
decides which rank's program goes on, which node works, and which bytes arrive. An execution completes when all members
of its process set have begun it, as a collective does, and each rank executes in the order of the log. The outcome must
be ideal()'s, as for the model. One thread.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from ideal import ideal
from programs import Program
from protocol import SETS_KEY, WORLD, ProtocolError, Switches, own_key
from world import World


class Settings(NamedTuple):
    """Settings of the control nodes and of the schedule."""

    parents: tuple[int, ...]  # the tree: the parent of each rank, -1 for the root
    repeats: int = 1  # how often a batch comes before it is known
    cache_capacity: int = 1024
    fusion_threshold: int = 128 << 20
    dissolve_after_ns: int = 1_000_000
    merge_ns: int = 5_000_000
    eager: float = 1.0  # how much more often programs go on than other moves happen
    patience: float = 0.03  # how often time passes


class _Meaning:
    """A program's instructions, and its outcome. Walks of one program follow each other: the last one is kept."""

    _last: _Meaning | None = None

    def __init__(self, program: Program):
        self.program, self.world = program, World(program, Switches())
        self.outcome = ideal(self.world)

    @classmethod
    def of(cls, program: Program) -> _Meaning:
        if cls._last is None or cls._last.program is not program:
            cls._last = cls(program)
        return cls._last


class Walk:
    """One program, one schedule. `run()` raises ProtocolError if the outcome is wrong."""

    def __init__(self, sim_type: type, program: Program, seed: int, settings: Settings):
        self.meaning = _Meaning.of(program)
        self.world = self.meaning.world
        self.settings = settings
        self.sim = sim_type(
            parents=list(settings.parents),
            cache_capacity=settings.cache_capacity,
            fusion_threshold=settings.fusion_threshold,
            repeats=settings.repeats,
            dissolve_after_ns=settings.dissolve_after_ns,
            merge_ns=settings.merge_ns,
        )
        self.rng = random.Random(seed)
        size = len(program)
        self.pcs = [0] * size
        self.counts: list[dict] = [{} for _ in range(size)]  # submissions of a key since the last JOINED
        self.joins = [0] * size
        self.joined = [False] * size
        self.over: list[str] = [""] * size  # closed or aborted
        self.tokens: dict[int, tuple] = {}  # token -> (rank, key, n)
        self.pending: list[dict] = [
            {} for _ in range(size)
        ]  # key -> tokens; a join frees a name before its execution
        self.set_numbers: dict[str, int] = {WORLD: 0}
        # R17, which the engine does above its control node: what waits on a rank for a set that it has asked for.
        self.unborn: list[dict[str, list]] = [{} for _ in range(size)]
        self.members: dict[int, tuple] = {0: tuple(range(size))}
        self.signatures: dict[str, int] = {}
        # Executions of each rank in order: (set, number of earlier ones of that set, names, tokens).
        self.executions: list[list] = [[] for _ in range(size)]
        self.executed = [0] * size
        self.results: dict[tuple, str] = {}
        self.trace: list[str] = []
        self.programs_changed = True  # since the ranks that can go on were last counted

    def run(self) -> None:
        size = len(self.pcs)
        rest = nodes = [("step", r) for r in range(size)]
        last_links: list = []
        while True:
            if self.programs_changed:
                programs = [("program", r) for r in range(size) if self._can_go_on(r)]
                self.programs_changed = False
            if (links := self.sim.in_flight()) != last_links:
                last_links, rest = links, [("deliver", link) for link in links] + nodes
            if self.rng.random() < self.settings.patience:
                self._take("advance", self.rng.choice([1, 2, 10]) * self.settings.dissolve_after_ns // 2)
            eager = len(programs) * self.settings.eager
            turns = programs if self.rng.random() * (eager + len(rest)) < eager else rest
            if self._take(*self.rng.choice(turns)):
                continue
            if not programs and len(rest) == size and self._is_quiet():
                break
        self._check()

    def _take(self, kind: str, what) -> bool:
        if kind == "program":
            self._go_on(what)
            self.programs_changed = True
            self._take_events(what)
            return True
        elif kind == "deliver":
            self.trace.append(f"bytes {'from' if what[1] else 'to'} rank {what[0]} arrive")
            self.sim.deliver(*what)
            return True
        elif kind == "advance":
            self.trace.append("time passes")
            self.sim.advance(what)
            return True
        else:
            worked = self.sim.step(what)
            heard = self._take_events(what)
            if worked or heard:
                self.trace.append(f"rank {what} works")
            return worked or heard

    def _is_quiet(self) -> bool:
        """Whether no event follows, even if every node works once and the nodes' deadlines pass."""
        size = len(self.pcs)
        for _ in range(100):
            worked = [self._take("step", r) for r in range(size)]
            if any(worked) or self.sim.in_flight() or any(self._can_go_on(r) for r in range(size)):
                return False
            deadlines = [t for t in map(self.sim.next_deadline, range(size)) if t is not None]
            if not deadlines:
                return True
            self._take("advance", max(min(deadlines), 1))
        raise ProtocolError("the nodes' timers go on for ever though nothing happens")

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
            return not self.pending[r].get(args[0])
        if kind == "shut":  # by the set's number, which the rank knows when the set is there
            return args[0] not in self.unborn[r]
        return not (kind == "joined" and self.joined[r]) and kind != "closed"

    def _go_on(self, r: int) -> None:
        op = self.world.code[r][self.pcs[r]]
        self.pcs[r] += 1
        self.trace.append(f"rank {r}: {op}")
        kind = op[0]
        if self.over[r]:
            return
        if kind == "submit" and op[1][0] in self.unborn[r]:
            self.unborn[r][op[1][0]].append((op, self._new_token(r, op[1])))
        elif kind == "fail":
            in_set, name = op[1]
            self._count(r, op[1])
            self.sim.poison(r, name, f"rank {r} failed", self.set_numbers[in_set])
        elif kind == "submit":
            self._submit(r, op, self._new_token(r, op[1]))
        elif kind == "open":
            self.unborn[r][op[1]] = []
            self.sim.add_members_set(r, list(op[2]), op[1], self._new_token(r, own_key(op[1], op[2]), op[1]))
        elif kind == "shut":
            key = own_key(f"end of {op[1]}", op[2])
            token = self._new_token(r, key, op[1])
            self.sim.remove_members_set(r, list(op[2]), f"end of {op[1]}", self.set_numbers[op[1]], token)
        elif kind == "add":
            self.sim.add_set(r, list(op[2]), self._new_token(r, SETS_KEY, op[1]))
        elif kind == "end":
            self.sim.remove_set(r, self.set_numbers[op[1]], self._new_token(r, SETS_KEY, op[1]))
        elif kind == "poll":
            in_set, name = op[1]
            if in_set in self.unborn[r]:
                return
            self.sim.wanted(r, name, self.set_numbers[in_set])
        elif kind == "join":
            self.joined[r] = True
            self.sim.join(r)
        elif kind == "leave":
            self.sim.leave(r, f"rank {r} has left")
        elif kind == "abort":
            self.sim.abort(r, f"rank {r} has broken down")

    def _submit(self, r: int, op: tuple, token: int) -> None:
        in_set, name = op[1]
        sig = self.signatures.setdefault(op[2], len(self.signatures) + 1)
        urgent = self.rng.random() < 0.1
        if not self.sim.submit(
            r, name, sig, token, repeats="?" not in name, urgent=urgent, set=self.set_numbers[in_set]
        ):
            raise ProtocolError(f"rank {r}: {name} was refused though it is not in flight")

    def _count(self, r: int, key: tuple) -> tuple:
        self.counts[r][key] = self.counts[r].get(key, 0) + 1
        return (self.joins[r], self.counts[r][key])

    def _new_token(self, r: int, key: tuple, about: str = "") -> int:
        token = len(self.tokens) + 1
        self.tokens[token] = (r, key, self._count(r, key), about)
        self.pending[r].setdefault(key, set()).add(token)
        return token

    def _take_events(self, r: int) -> bool:
        """Whether the node of rank r, the only one that has done something, has reported an event."""
        events = self.sim.take_events(r)
        if not events:
            return False
        for kind, *args in events:
            if kind == "execute":
                before = sum(1 for done in self.executions[r] if done[0] == args[0])
                self.executions[r].append((args[0], before, *args[1:]))
            elif kind == "fail":
                self._finish(r, args[0], "ended" if args[1] == "Process set has been removed" else "fail")
            elif kind == "set_added":
                self._set_added(r, *args)
            elif kind == "set_removed":
                if args[1]:
                    self._finish(r, args[1], "exec")
            elif kind == "joined":
                self.joined[r] = False
                self.joins[r] += 1
                self.counts[r].clear()
            elif kind in ("closed", "aborted"):
                self.over[r] = kind
        self.programs_changed = True
        while self._execute():
            pass
        return True

    def _set_added(self, r: int, number: int, members: list, token: int) -> None:
        if self.members.setdefault(number, tuple(members)) != tuple(members):
            raise ProtocolError(
                f"rank {r}: set {number} has members {members}, elsewhere {self.members[number]}"
            )
        if token:
            name = self.tokens[token][3]
            if self.set_numbers.setdefault(name, number) != number:
                raise ProtocolError(f"rank {r}: {name} is {number}, elsewhere {self.set_numbers[name]}")
            self._finish(r, token, "exec")
            for op, waiting in self.unborn[r].pop(name, ()):
                self._submit(r, op, waiting)

    def _execute(self) -> bool:
        """Ends an execution that all its ranks have begun."""
        heads = [
            done[at] if at < len(done) else None
            for done, at in zip(self.executions, self.executed, strict=True)
        ]
        for head in filter(None, heads):
            ranks = self.members[head[0]]
            begun = [heads[r] for r in ranks]
            if any(other is None or other[:2] != head[:2] for other in begun):
                continue
            _, _, names, _ = head
            if any(other[2] != names for other in begun):
                raise ProtocolError(f"ranks execute different things: {[other[2] for other in begun]}")
            for i, name in enumerate(names):
                rounds = {self.tokens[other[3][i]][2] for other in begun if other[3][i]}
                if len(rounds) != 1:
                    raise ProtocolError(f"{name} executed with data of different rounds: {rounds}")
            for r, other in zip(ranks, begun, strict=True):
                self.executed[r] += 1
                for token in filter(None, other[3]):
                    self._finish(r, token, "exec")
            return True
        return False

    def _finish(self, r: int, token: int, outcome: str) -> None:
        rank, key, n, _ = self.tokens[token]
        if rank != r or token not in self.pending[r].get(key, ()):
            raise ProtocolError(f"rank {r} ends request {(rank, key, n)} twice, or another rank's: {outcome}")
        self.pending[r][key].discard(token)
        self.results[rank, key, n] = outcome

    def _check(self) -> None:
        wanted = self.meaning.outcome
        if tuple(self.pcs) != wanted.pcs:
            stuck = {r: self.world.code[r][pc] for r, pc in enumerate(self.pcs) if pc < wanted.pcs[r]}
            raise ProtocolError(f"deadlock: {stuck}")
        if any("aborted" in over for over in self.over):
            if not any(op[0] == "abort" for code in self.world.code for op in code):
                raise ProtocolError(f"an abort that no rank asked for: {self.over}")
            return
        begun = [len(done) for done in self.executions]
        if begun != self.executed:
            raise ProtocolError(f"deadlock in execution: begun {begun}, completed {self.executed}")
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
