"""A whole job around the protocol's machines: programs, up-links, the log, execution, abort; and its moves.

A state is a tuple of its parts: a Rank for each rank, the root's Machine, the Log. Equal parts are one object, so that a
state is hashed and compared by the identity of its parts, and a part remembers the moves that depend on it alone: there
are far fewer parts than states. `_eager` explains which moves are left out, and why no outcome is lost. Used by
checker.py, on one thread.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from coordinator import Coordinator
from machines import Coordinators, Machine, Participants
from participant import Participant
from programs import Program
from protocol import HOLD, SETS_KEY, Switches, askers, barrier, check, own_key


class Rank:
    """A rank's part of a state; only World._rank makes one. The second half is remembered when it is first asked for."""

    __slots__ = ("aborted", "at", "looks", "machine", "me", "pc", "runs", "step", "taken", "up")

    def __init__(self, at: int, pc: int, machine: Machine, up: tuple, runs: int, aborted: bool):
        self.at = at  # the rank's number
        self.pc = pc  # its next instruction
        self.machine, self.me = machine, machine.now
        self.up = up  # messages on the way to the root
        self.runs = runs  # how many entries of the log it has executed
        self.aborted = aborted  # it knows of an abort

        self.looks: dict[Log, Look] = {}
        self.step: tuple[str, Rank] | None = None  # of the program
        self.taken: list[tuple[str, tuple, Rank]] | None = None  # the messages that the root can take


class Log:
    """The log as it is in a state."""

    __slots__ = ("entries",)

    def __init__(self, entries: tuple):
        self.entries = entries


class Look:
    """How a rank stands to the log: what the rank can do, as far as this does not depend on others."""

    __slots__ = (
        *("awaits", "begun", "completion", "steps", "replays"),
        *("is_free", "is_quiet", "may_be_eager", "eager", "moves"),
    )

    begun: int  # how many entries the rank has at least begun to execute
    # Of the entry that it executes: index, the ranks that must have begun it, label, Rank after.
    completion: tuple | None
    steps: bool  # its program can go on, apart from `awaits`
    awaits: tuple | None  # a rank, and the instruction that this rank must have passed
    replays: bool  # it can replay an entry
    is_free: bool  # a step of the program is eager
    is_quiet: bool  # the replay is eager
    may_be_eager: bool  # one of these, or the completion if the others have come so far
    eager: tuple[str, Rank] | None  # the eager move, when first asked for, if it depends on no other rank
    moves: list[tuple[str, Rank]] | None  # all its moves that depend on no other rank, when first asked for


State = tuple  # (Rank 0, Rank 1, ..., Machine of the root, Log)
Move = tuple[str, State]


class World:
    """One program under one set of switches.

    `coupled`: a rank replays an entry only after it has executed all before it. Otherwise replay runs ahead.
    `reduced`: leave out interleavings that differ only in the order of moves that commute (see `_eager`).
    """

    def __init__(
        self, program: Program, switches: Switches = Switches(), coupled: bool = False, reduced: bool = True
    ):
        self.switches, self.coupled, self.reduced = switches, coupled, reduced
        self.size = len(program)
        self.code = [list(_micro(ops)) for ops in program]
        ops = {op[0] for rank in program for op in rank}
        self.ends_early = bool(ops & {"leave", "abort"})
        self.signals = {
            op[1]: (r, i)
            for r, rank in enumerate(self.code)
            for i, op in enumerate(rank)
            if op[0] == "signal"
        }
        self.last_fail = [
            max((i for i, op in enumerate(c) if op[0] == "fail"), default=-1) for c in self.code
        ]
        self.aborts = "abort" in ops
        self._machines = [Participants(r, switches) for r in range(self.size)]
        self._roots = Coordinators(switches)
        self._ranks: dict[tuple, Rank] = {}
        self._logs: dict[tuple, Log] = {}
        self._root_steps: dict[tuple, tuple[Machine, Log]] = {}

    def initial(self) -> State:
        machines = [family.first(Participant.initial()) for family in self._machines]
        ranks = [self._rank(r, 0, machine, (), 0, False) for r, machine in enumerate(machines)]
        return (*ranks, self._roots.first(Coordinator.initial(self.size)), self._log(()))

    def moves(self, s: State) -> list[Move]:
        """Every next state, each with a label; only one if a move can be made first without losing an outcome."""
        ranks, log = s[:-2], s[-1]
        looks = [rank.looks.get(log) or self._look(rank, log) for rank in ranks]
        for r, look in enumerate(looks):
            if look.may_be_eager:
                eager = look.eager or self._eager(s, looks, r)
                if eager is not None:
                    label, after = eager
                    return [(label, s[:r] + (after,) + s[r + 1 :])]
        found: list[Move] = []
        for r, look in enumerate(looks):
            before, rank, rest = s[:r], s[r], s[r + 1 :]
            if look.awaits is not None and _has_come(s, look.awaits):
                label, after = self._step_program(rank)
                found.append((label, before + (after,) + rest))
            for label, after in self._own_moves(rank, look, log) if look.moves is None else look.moves:
                found.append((label, before + (after,) + rest))
            if self.aborts and not rank.aborted and any(q.aborted for q in (ranks if r == 0 else ranks[:1])):
                found.append((f"rank {r} learns of the abort", before + (self._abort(rank),) + rest))
        if not s[0].aborted:
            self._root_moves(s, found)
        return found

    def unfinished(self, s: State) -> dict[int, tuple]:
        return {r: self.code[r][rank.pc] for r, rank in enumerate(s[:-2]) if rank.pc < len(self.code[r])}

    # What a rank can do, by itself.

    def _look(self, rank: Rank, log: Log) -> Look:
        look = rank.looks[log] = Look()
        me, code, entries = rank.me, self.code[rank.at], log.entries
        op = code[rank.pc] if rank.pc < len(code) else None
        look.steps = op is not None and self._passable(rank, op)
        look.awaits = self.signals[op[1]] if op is not None and op[0] == "await" else None
        index = rank.runs
        executes = index < me.pos
        begins = executes and not me.blocks_execution(entries[index], index)
        look.begun = index + 1 if begins else index
        look.completion = self._completion(rank, entries[index]) if executes and not rank.aborted else None
        look.replays = not rank.aborted and me.pos < len(entries) and not (self.coupled and executes)
        look.is_free = self.reduced and look.steps and (rank.aborted or self._is_free(me, op))
        look.is_quiet = self.reduced and look.replays and self._is_quiet(rank, entries[me.pos])
        look.may_be_eager = look.is_free or look.is_quiet or look.completion is not None
        look.eager = look.moves = None
        return look

    def _eager(self, s: State, looks: list[Look], r: int) -> tuple[str, Rank] | None:
        """A move of rank r, if there is one, that commutes with every other move that is or becomes possible before it.

        This move may be made first without losing an outcome: no other move can prevent it, and it prevents no
        other move. These moves are: the completion of an execution; passing an instruction that only
        waits and need wait no longer; announcing a key of no known batch while nothing is held (replays
        then send nothing that could come in between); replaying an entry that frees what the rank waits for
        but changes nothing about its next submissions. The test `test_reduction_loses_nothing` compares
        with the whole space. Only a completion is eager when the space is not reduced.
        """
        look = looks[r]
        if look.completion is not None:
            # An execution ends when all its ranks have begun it: have replayed it and executed all before it.
            index, others, label, after = look.completion
            if all(looks[q].begun > index for q in others):
                return label, after
        found = None
        if look.is_free and (look.awaits is None or _has_come(s, look.awaits)):
            found = self._step_program(s[r])
        elif look.is_quiet:
            found = self._replay(s[r], s[-1])
        if look.completion is None and look.awaits is None:
            look.eager = found
        return found

    def _completion(self, rank: Rank, entry: tuple) -> tuple:
        ranks = {"EXEC": entry[1], "RUN": entry[1], "SETS": entry[-1]}.get(entry[0], ())
        after = self._rank(rank.at, rank.pc, rank.machine, rank.up, rank.runs + 1, rank.aborted)
        label = f"rank {rank.at} has executed {_show(entry)}"
        return rank.runs, ranks if rank.at in ranks else (), label, after

    def _is_free(self, me: Participant, op: tuple) -> bool:
        kind = op[0]
        if kind in ("wait", "await", "signal", "joined", "closed"):
            return True
        if kind == "poll":
            return not any(b.status == HOLD and op[1] in b.held for b in me.batches.values())
        if self.ends_early or me.unborn or any(b.partly_held() for b in me.batches.values()):
            return False
        if kind == "submit" or (kind == "fail" and op[1] not in me.open):
            return not any(op[1] == key for b in me.batches.values() for key, _ in b.members)
        return False

    def _is_quiet(self, rank: Rank, entry: tuple) -> bool:
        if self.switches.start_on_guess or self.ends_early or self.last_fail[rank.at] >= rank.pc:
            return False
        if entry[0] == "DISSOLVE":
            batch = rank.me.batches.get(entry[2])
            return batch is None or batch.status != HOLD
        return entry[0] in ("EXEC", "RUN", "FAIL", "JOINED") or (
            entry[0] == "SETS" and entry[1][0] == "add" and rank.at not in askers(entry[3])
        )

    def _passable(self, rank: Rank, op: tuple) -> bool:
        kind, me = op[0], rank.me
        if rank.aborted or kind == "await":
            return True
        if kind == "wait":
            if op[1] in me.open:
                return False
            latest = max((n for key, n in me.results if key == op[1]), default=None)
            outcome, index = me.results.get((op[1], latest), ("", 0))
            return outcome != "exec" or rank.runs > index
        if kind == "joined":
            return not me.joined or me.closed
        if kind == "closed":
            return me.closed and rank.runs == me.pos
        return True

    # Moves of a rank.

    def _own_moves(self, rank: Rank, look: Look, log: Log) -> list[tuple[str, Rank]]:
        found = []
        if look.steps and look.awaits is None:
            found.append(self._step_program(rank))
        if look.replays:
            found.append(self._replay(rank, log))
        if not rank.aborted and not self.switches.no_dissolve:
            found += [
                (f"rank {rank.at}: time is up for batch {i}", self._tell(rank, ("timer", i), rank.pc))
                for i, b in rank.me.batches.items()
                if b.partly_held()
            ]
        look.moves = found
        return found

    def _step_program(self, rank: Rank) -> tuple[str, Rank]:
        if rank.step is None:
            op = self.code[rank.at][rank.pc]
            label = f"rank {rank.at}: {_show(op)}"
            if rank.aborted or op[0] in ("wait", "await", "signal", "joined", "closed", "abort"):
                over = rank.aborted or op[0] == "abort"
                after = self._rank(rank.at, rank.pc + 1, rank.machine, rank.up, rank.runs, over)
            else:
                after = self._tell(rank, op, rank.pc + 1)
            rank.step = label, after
        return rank.step

    def _replay(self, rank: Rank, log: Log) -> tuple[str, Rank]:
        entry = log.entries[rank.me.pos]
        return f"rank {rank.at} replays {_show(entry)}", self._tell(rank, ("replay", entry), rank.pc)

    def _abort(self, rank: Rank) -> Rank:
        """R12. All pending requests end at once, in any state."""
        return self._rank(rank.at, rank.pc, rank.machine, rank.up, rank.runs, True)

    def _tell(self, rank: Rank, event: tuple, pc: int) -> Rank:
        machine, said = self._machines[rank.at].step(rank.machine, event)
        return self._rank(rank.at, pc, machine, self._queue(rank.up, said), rank.runs, rank.aborted)

    def _queue(self, up: tuple, said: tuple) -> tuple:
        """Sends a message of a rank. Messages that may come in any order are kept sorted, for fewer states."""
        if not self.switches.merge or not said:
            return up + said
        queue = list(up)
        for message in said:
            queue.append(message)
            i = len(queue) - 1
            while (
                i > 0
                and not barrier(message, self.switches)
                and not barrier(queue[i - 1], self.switches)
                and repr(queue[i - 1]) > repr(message)
            ):
                queue[i - 1], queue[i] = queue[i], queue[i - 1]
                i -= 1
        return tuple(queue)

    # Moves of the root.

    def _root_moves(self, s: State, found: list[Move]) -> None:
        ends = s[-2:]
        root = ends[0].now
        for r, rank in enumerate(s[:-2]):
            if rank.up:
                for label, message, after in self._take(rank) if rank.taken is None else rank.taken:
                    if self.reduced and message[0] == "DISSOLVED":
                        # First, without losing an outcome: when it comes decides nothing but the number of the next
                        # known batch, and the earlier a number is free, the more can go wrong.
                        found[:] = [
                            (label, s[:r] + (after,) + s[r + 1 : -2] + self._root_step(ends, message))
                        ]
                        return
                    found.append((label, s[:r] + (after,) + s[r + 1 : -2] + self._root_step(ends, message)))
        if root.decided:
            found.append(("root forms batches", s[:-2] + self._root_step(ends, ("form_batches",))))
        if self.switches.root_dissolves and not root.closed:
            for batch, (_, _, arrived) in root.live.items():
                if arrived:
                    after = s[:-2] + self._root_step(ends, ("dissolve", batch))
                    found.append((f"root dissolves {batch}", after))

    def _take(self, rank: Rank) -> list[tuple[str, tuple, Rank]]:
        """Each message in the rank's queue that may come next: a label, the message, the rank without it."""
        found = []
        for i in self._may_come_next(rank.up):
            left = rank.up[:i] + rank.up[i + 1 :]
            after = self._rank(rank.at, rank.pc, rank.machine, left, rank.runs, rank.aborted)
            found.append((f"root takes {_show(rank.up[i])}", rank.up[i], after))
        rank.taken = found
        return found

    def _may_come_next(self, up: tuple) -> list[int]:
        """The places in the queue of the messages that may be the next one to reach the root."""
        if not self.switches.merge:
            return [0]
        # A node waits with DISSOLVED for the other ranks, while everything else goes on. It never overtakes a message
        # about its batch.
        free = [
            i
            for i, message in enumerate(up)
            if message[0] == "DISSOLVED"
            and all(m[2] != message[2] for m in up[:i] if m[0] in ("ARRIVE", "ASK"))
        ]
        rest = [i for i, message in enumerate(up) if message[0] != "DISSOLVED"]
        first = next((n for n, i in enumerate(rest) if barrier(up[i], self.switches)), len(rest))
        about = [key for i in rest[:first] for key in _keys(up[i])]
        # If the same key were in it twice, merging nodes would have to know which comes first.
        check(
            len(set(about)) == len(about) or self.switches.overtaken,
            f"two messages about one key are on their way at once: {_show(tuple(up[i] for i in rest[:first]))}",
        )
        return free + rest[: max(first, 1)]

    def _root_step(self, ends: tuple[Machine, Log], message: tuple) -> tuple[Machine, Log]:
        step = self._root_steps.get((ends, message))
        if step is None:
            root, log = ends
            after, entries = self._roots.step(root, message)
            step = after, self._log(log.entries + entries) if entries else log
            self._root_steps[ends, message] = step
        return step

    # Parts of states.

    def _rank(self, *parts: Any) -> Rank:
        rank = self._ranks.get(parts)
        if rank is None:
            rank = self._ranks[parts] = Rank(*parts)
        return rank

    def _log(self, entries: tuple) -> Log:
        log = self._logs.get(entries)
        if log is None:
            log = self._logs[entries] = Log(entries)
        return log


def _has_come(s: State, awaited: tuple[int, int]) -> bool:
    sender, at = awaited
    return s[sender].pc > at


def _keys(message: tuple) -> list[tuple]:
    """The keys that a READY or an ARRIVE is about."""
    if message[0] == "ARRIVE":
        return [key for key, _ in message[4]]
    return [message[2]] if message[0] == "READY" else []


def _micro(ops: list[tuple]) -> Iterator[tuple]:
    """A rank's program in the machines' terms: keys instead of (set, name), blocking calls in two halves."""
    for op in ops:
        kind = op[0]
        if kind in ("submit", "fail", "poll"):
            yield (kind, (op[1], op[2]), *op[3:])
        elif kind == "wait":  # waiting asks for dissolution (R5) like polling, and then blocks
            yield ("poll", (op[1], op[2]))
            yield ("wait", (op[1], op[2]))
        elif kind == "add":
            yield ("add", op[1], tuple(op[2]))
            yield ("wait", SETS_KEY)
        elif kind == "end":
            yield ("end", op[1], ())
            yield ("wait", SETS_KEY)
        elif kind == "open":
            yield ("open", op[1], tuple(op[2]))
        elif kind == "shut":
            yield ("shut", op[1], tuple(op[2]))
            yield ("wait", own_key(f"end of {op[1]}", tuple(op[2])))
        elif kind == "join":
            yield op
            yield ("joined",)
        elif kind == "leave":
            yield op
            yield ("closed",)
        else:
            yield op


@functools.lru_cache(maxsize=100_000)
def _show(thing: Any) -> str:
    """Tuples as short text: (READY 1 w/A f32)."""
    if isinstance(thing, tuple):
        if len(thing) == 2 and isinstance(thing[0], str) and isinstance(thing[1], str) and thing[0].islower():
            return f"{thing[0]}/{thing[1]}"
        return "(" + " ".join(_show(t) for t in thing) + ")"
    return str(thing)
