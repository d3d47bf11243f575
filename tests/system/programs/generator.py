"""Makes whole-job programs from a seed: what every rank of a job of 2-4 submits, waits for, polls and breaks.

A program is in the language of tests/model/programs.py, in which a signature is a word; here the words say what
to call, so that the same program runs on control nodes alone (sim_jobs.py) and on real processes (real_rank.py):

    "allreduce Sum float32 17"  "broadcast 1 float64 5"  "allgather int32 3"  "alltoall float32 2"
    "reducescatter Average float32 9"  "grouped_allreduce Sum float32:17 int32:3"  "barrier"

The kind of operation belongs to the name: "allreduce.a"; "allreduce?3" is the third unnamed one. Numbers of rows
that differ from rank to rank (allgather, alltoall) are no part of a signature; values.py makes them up.
Plain data, no engine; any thread.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from ideal import ideal
from programs import Op, Program
from protocol import Switches
from world import World

REDUCTIONS = ("Sum", "Average", "Min", "Max", "Product")
DTYPES = ("float32", "float64", "int32", "int64", "float16", "uint8")
COUNTS = (0, 1, 3, 17, 64, 1000, 5000)


class Style(NamedTuple):
    """The events that may occur. `stalls`: a rank may wait for a request that others never submit (only a simulation
    survives that)."""

    stalls: bool = True
    endings: bool = True  # leave, abort, signals between ranks
    phases: int = 6
    steps: int = 8  # most repetitions of one step


class Job(NamedTuple):
    seed: int
    program: Program
    complete: bool  # every rank gets to its end, nothing stays pending


def generate(seed: int, style: Style = Style(), ranks: int | None = None) -> Job:
    """The same for the same arguments."""
    rng = random.Random(f"{seed} {style}")
    size = ranks or rng.choice([2, 2, 3, 3, 4])
    program = _Maker(rng, style, size).make()
    job = judge(seed, program)
    if job.complete or style.stalls:
        return job
    # Waits in the middle of a step can block each other through the program's own fault: poll there instead.
    return judge(seed, [[_tamed(op) for op in ops] for ops in program])


def judge(seed: int, program: Program) -> Job:
    world = World([[_known(op) for op in ops] for ops in program], Switches())
    meaning = ideal(world)
    ends = tuple(len(code) for code in world.code)
    return Job(
        seed, [[_known(op) for op in ops] for ops in program], meaning.pcs == ends and not meaning.pending
    )


def _tamed(op: Op) -> Op:
    return ("poll", *op[1:]) if op[0] == "early" else op


def _known(op: Op) -> Op:
    return ("wait", *op[1:]) if op[0] == "early" else op


class _Maker:
    def __init__(self, rng: random.Random, style: Style, size: int):
        self.rng, self.style, self.size = rng, style, size
        self.program: Program = [[] for _ in range(size)]
        self.sets: dict[str, tuple[int, ...]] = {"w": tuple(range(size))}
        self.sets_made = self.unnamed = self.tags = 0
        self.in_flight: list[set] = [set() for _ in range(size)]  # submitted, not surely waited for
        self.signatures: dict[tuple, str] = {}
        self.recent: dict[str, list] = {}  # what was last repeated in each set
        # What goes wrong, and how often, is a matter of the program.
        self.deviates = rng.choice([0, 0, 0.01, 0.05])
        self.fails = rng.choice([0, 0, 0.01, 0.05])
        self.waits_early = rng.choice([0, 0.05, 0.3])
        self.polls = rng.choice([0, 0.05, 0.3])
        self.skips = rng.choice([0, 0, 0, 0.02]) if style.stalls else 0
        self.doubles = rng.choice([0, 0, 0.2])
        self.pool = rng.choice([2, 4, 8, 12])

    def make(self) -> Program:
        for _ in range(self.rng.randint(1, self.style.phases)):
            phase = self.rng.choice(
                [
                    self.repeated,
                    self.repeated,
                    self.repeated,
                    self.once,
                    self.once,
                    self.add_set,
                    self.end_set,
                ]
                + [self.join, self.unnamed_ones, self.barrier]
            )
            phase()
        if self.style.endings and self.rng.random() < 0.3:
            self.rng.choice([self.leave, self.abort, self.signal])()
        for r in range(self.size):
            self.settle(r, self.in_flight[r])
        return self.program

    # Phases.

    def repeated(self) -> None:
        """The same operations step after step, each rank in its own order: known batches come about, and apart."""
        calls = self.choose_calls()
        own_order = self.rng.random() < 0.7
        for name in self.sets:
            self.recent[name] = [call for call in calls if call[0][0] == name]
        for _ in range(self.rng.randint(2, self.style.steps)):
            self.step(calls, own_order)

    def once(self) -> None:
        self.step(self.choose_calls(), own_order=True)

    def barrier(self) -> None:
        name = self.rng.choice(list(self.sets))
        for r in self.sets[name]:
            key = (name, "barrier")
            self.submit(r, key, "barrier")
            self.settle(r, {key})

    def unnamed_ones(self) -> None:
        """Unnamed operations are told apart by their number, so all ranks call them in the same order."""
        for _ in range(self.rng.randint(1, 4)):
            self.unnamed += 1
            key = ("w", f"allreduce?{self.unnamed}")
            sig = f"allreduce Sum float32 {self.rng.choice(COUNTS)}"
            for r in range(self.size):
                self.submit(r, key, self.deviation(sig) if self.rng.random() < self.deviates else sig)
                if self.rng.random() < 0.3:
                    self.settle(r, {key})

    def add_set(self) -> None:
        if len(self.sets) > 3:
            return self.end_set()
        free = [
            members
            for members in self.all_subsets()
            if members not in self.sets.values() and (len(members) > 1 or self.rng.random() < 0.3)
        ]
        if not free:
            return
        self.sets_made += 1
        name = f"s{self.sets_made}"
        self.sets[name] = self.rng.choice(free)
        for ops in self.program:
            ops.append(("add", name, self.sets[name]))

    def end_set(self) -> None:
        if len(self.sets) == 1:
            return
        name = self.rng.choice([s for s in self.sets if s != "w"])
        pending = self.choose_calls(name) if self.rng.random() < 0.3 else []
        known = self.recent.get(name, [])
        if known and self.rng.random() < 0.7:  # a part of a possible known batch
            pending = self.rng.sample(known, self.rng.randint(1, len(known)))
        if self.rng.random() < 0.5:
            self.step(pending, own_order=True, waits=False)
        else:  # only some of the members submit: the end of the set fails these requests
            for r in self.sets[name]:
                if pending and self.rng.random() < 0.5:
                    self.submit_all(r, pending)
        for r, ops in enumerate(self.program):
            # A request that may still be in flight elsewhere must not be mixed up with a name's reuse.
            ops.append(("end", name))
            for key in [k for k in self.in_flight[r] if k[0] == name]:
                if self.rng.random() < 0.7:
                    ops.append(("wait", *key))
                self.in_flight[r].discard(key)
        del self.sets[name]

    def join(self) -> None:
        """Uneven data: each rank does the first of the steps, then joins."""
        calls = self.choose_calls()
        steps = self.rng.randint(1, 5)
        lengths = [self.rng.randint(0, steps) for _ in range(self.size)]
        for r in range(self.size):
            for _ in range(lengths[r]):
                self.step_of(r, [call for call in calls if r in self.sets[call[0][0]]], True)
            if self.rng.random() < 0.5 or not self.style.stalls:
                self.settle(r, self.in_flight[r])
            self.program[r].append(("join",))
            self.in_flight[r].clear()

    def leave(self) -> None:
        for r in self.rng.sample(range(self.size), self.rng.choice([1, self.size])):
            self.cut_short(r)
            self.program[r].append(("leave",))
            self.in_flight[r].clear()

    def abort(self) -> None:
        r = self.rng.randrange(self.size)
        self.cut_short(r)
        self.program[r].append(("abort",))
        self.in_flight[r].clear()

    def signal(self) -> None:
        """One rank goes on when another, by other means than the engine, says so."""
        sender, receiver = self.rng.sample(range(self.size), 2)
        for r, op in ((sender, ("signal", self.tags)), (receiver, ("await", self.tags))):
            self.program[r].insert(self.rng.randint(len(self.program[r]) * 3 // 4, len(self.program[r])), op)
        self.tags += 1

    # Their parts.

    def step(self, calls: list, own_order: bool, waits: bool = True) -> None:
        order = self.rng.sample(calls, len(calls))
        # A name is submitted once more on every rank, and that fails: before or after the proper submission.
        doubled = self.rng.choice(order) if order and self.rng.random() < self.doubles else None
        for r in range(self.size):
            mine = [c for c in order if r in self.sets[c[0][0]]]
            self.step_of(r, mine, own_order, waits, doubled)

    def step_of(
        self, r: int, calls: list, own_order: bool, waits: bool = True, doubled: tuple | None = None
    ) -> None:
        mine = self.rng.sample(calls, len(calls)) if own_order else calls
        at = self.rng.choice([0, len(mine), len(mine), self.rng.randint(0, len(mine))])
        self.submit_all(r, mine[:at])
        if doubled in mine:
            self.program[r].append(("fail", *doubled[0]))
        self.submit_all(r, mine[at:])
        if waits and self.rng.random() < 0.8:
            keys = {key for key, _ in calls} & self.in_flight[r]
            if self.rng.random() < 0.3:  # some are waited for later, or before their name comes again
                keys = {key for key in sorted(keys) if self.rng.random() < 0.7}
            self.settle(r, keys)

    def submit_all(self, r: int, calls: list) -> None:
        for key, sig in calls:
            if self.rng.random() < self.skips:
                continue
            if self.rng.random() < self.fails:
                self.program[r].append(("fail", *key))
                if not self.style.stalls or self.rng.random() < 0.5:
                    continue  # the failure is this step's submission
            self.submit(r, key, self.deviation(sig) if self.rng.random() < self.deviates else sig)
            if self.rng.random() < self.polls:
                self.program[r].append(("poll", *self.rng.choice(sorted(self.in_flight[r]))))
            if self.rng.random() < self.waits_early:
                # Not taken off what is in flight: it may become a poll.
                self.program[r].append(("early", *self.rng.choice(sorted(self.in_flight[r]))))

    def submit(self, r: int, key: tuple, sig: str) -> None:
        if key in self.in_flight[r]:
            self.settle(r, {key})
        self.program[r].append(("submit", *key, sig))
        self.in_flight[r].add(key)

    def settle(self, r: int, keys: set) -> None:
        """Waits for them, in any order."""
        keys = sorted(keys)
        for key in self.rng.sample(keys, len(keys)):
            self.program[r].append(("wait", *key))
            self.in_flight[r].discard(key)

    def choose_calls(self, only: str | None = None) -> list[tuple[tuple, str]]:
        """Some (key, signature). A key keeps its signature for the rest of the program, most of the time."""
        chosen: dict[tuple, str] = {}
        for _ in range(self.rng.randint(1, self.pool)):
            name = only or self.rng.choice(list(self.sets))
            sig = self.signature(name)
            key = (name, f"{sig.split(' ')[0]}.{self.rng.choice('abcdefghijkl'[: self.pool])}")
            if key not in self.signatures or self.rng.random() < 0.1:
                self.signatures[key] = sig
            chosen[key] = self.signatures[key]
        return list(chosen.items())

    def signature(self, set_name: str) -> str:
        rng = self.rng
        kind = rng.choice(
            ["allreduce"] * 6 + ["grouped_allreduce", "allgather", "broadcast", "alltoall", "reducescatter"]
        )
        dtype, count = rng.choice(DTYPES), rng.choice(COUNTS)
        if kind == "grouped_allreduce":
            members = [f"{rng.choice(DTYPES)}:{rng.choice(COUNTS)}" for _ in range(rng.randint(1, 4))]
            return f"{kind} Sum {' '.join(members)}"
        if kind == "broadcast":
            return f"{kind} {rng.choice(self.sets[set_name])} {dtype} {count}"
        if kind in ("allgather", "alltoall"):
            return f"{kind} {dtype} {rng.choice([1, 2, 5])}"
        # Most gradients are of one kind: they go together.
        op, dtype = ("Sum", "float32") if rng.random() < 0.6 else (rng.choice(REDUCTIONS), dtype)
        if kind == "reducescatter":
            op = rng.choice(["Sum", "Average"])
        return f"{kind} {op} {dtype} {count}"

    def deviation(self, sig: str) -> str:
        """Another signature of the same kind."""
        kind, *rest = sig.split(" ")
        if kind == "barrier":
            return sig
        if kind == "grouped_allreduce" and self.rng.random() < 0.5:
            return f"{sig} float32:2"
        head, _, last = sig.rpartition(":" if ":" in rest[-1] else " ")
        if self.rng.random() < 0.5 and kind in ("allreduce", "broadcast", "reducescatter"):
            words = sig.split(" ")
            words[2] = next(d for d in DTYPES if d != words[2])
            return " ".join(words)
        return f"{head}{':' if ':' in rest[-1] else ' '}{int(last) + 1}"

    def cut_short(self, r: int) -> None:
        del self.program[r][self.rng.randint(len(self.program[r]) // 2, len(self.program[r])) :]

    def all_subsets(self) -> list[tuple[int, ...]]:
        return [
            tuple(r for r in range(self.size) if bits & (1 << r)) for bits in range(1, (1 << self.size) - 1)
        ]
