"""Small programs for two or three ranks, as plain data: for the model here, and for real engines.

A program is a list with one list of operations per rank. An operation is a tuple:

    ("submit", set, name, sig)  submit a request; its (set, name) is not in flight on this rank. `sig` is a
                                word: equal words are equal signatures, and only those are batched together
    ("fail", set, name)         a submission that fails here: a duplicate if the name is in flight, else bad
    ("wait", set, name)         until this rank's latest request of that name, if any, is complete or failed
    ("poll", set, name)         ask whether that request is complete, and go on
    ("join",)                   until all ranks have joined
    ("leave",)                  shut down; the last operation
    ("abort",)                  break down; the last operation
    ("signal", tag)             let the ranks that await the tag go on, without the engine; each tag once
    ("await", tag)
    ("add", set, ranks)         all ranks of the job: begin a process set, and wait for that
    ("end", set)                all ranks of the job: end it, and wait for that
    ("open", set, ranks)        its members alone: begin a process set, and go on; what is submitted in it waits for it
    ("shut", set, ranks)        its members alone: end it, and wait for that

The set "w" is all ranks. A set's name is never used again after its end. A program may be one that stalls
by its own fault (a rank never submits what another waits for): checker.ideal() says where each rank ends.
"""

from __future__ import annotations

import random

Op = tuple
Program = list[list[Op]]


def random_program(seed: int) -> Program:
    """A program of about ten operations per rank at most; the same for the same seed. Every fifth mixes kinds."""
    rng = random.Random(seed)
    if seed % 5 == 4:
        return _mixed(rng)
    size = 2 if rng.random() < 0.75 else 3
    names = ["A", "B", "C"][: rng.choice([1, 2, 2, 2, 3]) if size == 2 else rng.choice([1, 2, 2])]
    kind = rng.choice(
        ["plain", "plain", "plain", "signal", "poison", "mismatch", "join", "sets", "leave", "abort"]
    )
    steps = rng.choice([1, 2, 2, 3] if size == 2 else [1, 2])
    program: Program = [[] for _ in range(size)]
    if kind == "sets":
        members = tuple(sorted(rng.sample(range(size), max(1, size - rng.choice([0, 0, 1])))))
        for ops in program:
            ops.append(("add", "s", members))
    for step in range(steps):
        sets = {name: "s" if kind == "sets" and rng.random() < 0.6 else "w" for name in names}
        for r, ops in enumerate(program):
            mine = [n for n in names if sets[n] == "w" or r in members]
            _step(rng, ops, kind, sets, mine, step == steps - 1)
    if kind == "sets":
        for ops in program:
            if rng.random() < 0.95:
                ops.append(("end", "s"))
    elif kind == "signal":
        _signal(rng, program)
    elif kind == "join":
        for ops in program:  # some ranks have less data than others
            if rng.random() < 0.6:
                _cut_short(rng, ops)
            ops.append(("join",))
        if rng.random() < 0.3:
            for ops in program:
                ops += [("wait", "w", "A"), ("submit", "w", "A", "f32"), ("wait", "w", "A")]
    elif kind == "leave":
        for ops in rng.sample(program, rng.choice([1, size])):
            _cut_short(rng, ops)
            ops.append(("leave",))
    elif kind == "abort":
        ops = rng.choice(program)
        _cut_short(rng, ops)
        ops.append(("abort",))
    return program


def _step(rng: random.Random, ops: list[Op], kind: str, sets: dict, names: list[str], last: bool) -> None:
    """One training step of a rank: every name once, in its own order, waited for before it comes again."""
    names = rng.sample(names, len(names))
    if rng.random() < (0.08 if last else 0.02):
        names = names[:-1]  # only a part of the batch
    waiting: list[str] = []
    for name in names:
        if kind == "poison" and rng.random() < 0.2:
            ops.append(("fail", sets[name], name))
            if rng.random() < 0.5:
                continue
        sig = "i64" if kind == "mismatch" and rng.random() < 0.25 else "f32"
        ops.append(("submit", sets[name], name, sig))
        waiting.append(name)
        if kind == "poison" and rng.random() < 0.15:
            ops.append(("fail", sets[name], name))
        if rng.random() < 0.1:
            ops.append(("poll", sets[name], rng.choice(waiting)))
        if rng.random() < 0.2:
            chosen = rng.choice(waiting)
            waiting.remove(chosen)
            ops.append(("wait", sets[chosen], chosen))
    for name in rng.sample(waiting, len(waiting)):
        ops.append(("wait", sets[name], name))


def _mixed(rng: random.Random) -> Program:
    """Two overlapping sets, failures, polls and a join in one program; it need not wait for its submissions."""
    size = rng.choice([2, 2, 3])
    members = {"w": tuple(range(size)), "s": tuple(sorted(rng.sample(range(size), rng.randint(1, size))))}
    poison, join, end = rng.random() < 0.4, rng.random() < 0.4, rng.random() < 0.7
    rounds = rng.choice([1, 1, 2]) if size == 2 else 1
    calls = rng.sample([(s, n) for s in members for n in ("A", "B")], rng.choice([2, 3]))
    program: Program = []
    for r in range(size):
        ops: list[Op] = [("add", "s", members["s"])]
        for i in range(rounds):
            mine = [c for c in calls if r in members[c[0]]]
            for name in rng.sample(mine, len(mine)):
                if poison and rng.random() < 0.15:
                    ops.append(("fail", *name))
                    if rng.random() < 0.5:
                        continue
                ops.append(("submit", *name, "f32"))
                if rng.random() < 0.2:
                    ops.append((rng.choice(["poll", "wait"]), *name))
            # Without a wait a name must not come again.
            ops += [("wait", *name) for name in mine if i < rounds - 1 or rng.random() < 0.5]
        if end:
            ops.append(("end", "s"))
        if join:
            ops.append(("join",))
        program.append(ops)
    return program


def random_messages(seed: int) -> Program:
    """Three ranks, of which two at a time exchange messages in sets of their own; the same for the same seed."""
    rng = random.Random(seed)
    pairs = rng.sample([(0, 1), (0, 2), (1, 2)], rng.choice([1, 2, 2, 3]))
    program: Program = [[] for _ in range(3)]
    ends = rng.random() < 0.3
    for r, ops in enumerate(program):
        mine = rng.sample(pairs, len(pairs))
        waiting = []
        for pair in mine:
            if r not in pair or (not ends and rng.random() < 0.05):
                continue
            in_set = "".join(map(str, pair))
            ops.append(("open", in_set, pair))
            for name in rng.sample(["M", "N"], rng.choice([1, 1, 2]) if len(pairs) == 1 else 1):
                ops.append(("submit", in_set, name, "f32"))
                waiting.append((in_set, name))
            if rng.random() < 0.3:
                ops.append(("poll", *waiting[-1]))
            if rng.random() < 0.2:
                ops.append(("wait", *waiting.pop()))
        if rng.random() < 0.5:
            ops.insert(rng.randint(0, len(ops)), ("submit", "w", "A", "f32"))
            waiting.append(("w", "A"))
        ops += [("wait", *key) for key in rng.sample(waiting, len(waiting))]
        if ends:
            ops += [("shut", "".join(map(str, pair)), pair) for pair in pairs if r in pair]
    return program


def _signal(rng: random.Random, program: Program) -> None:
    for tag in range(rng.choice([1, 1, 2])):
        sender, receiver = rng.sample(range(len(program)), 2)
        program[sender].insert(rng.randint(0, len(program[sender])), ("signal", tag))
        program[receiver].insert(rng.randint(0, len(program[receiver])), ("await", tag))


def _cut_short(rng: random.Random, ops: list[Op]) -> None:
    del ops[rng.randint(0, len(ops)) :]
