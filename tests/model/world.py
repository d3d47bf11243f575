"""A whole job around the protocol's machines: programs, up-links, the log, execution, abort; and its moves.

A state is a small tuple: the machines' frozen states are stored once and known by number, and their steps
are remembered, so that walking many interleavings stays cheap. `_eager` explains which moves are left out, and why
no outcome is lost. Used by checker.py, on one thread.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from coordinator import Coordinator
from participant import Participant
from programs import Program
from protocol import HOLD, SETS_KEY, Switches, askers, barrier, check, own_key


class State(NamedTuple):
    pcs: tuple[int, ...]  # next instruction of each rank
    ranks: tuple[int, ...]  # participants, by number
    root: int  # the coordinator, by number
    ups: tuple[tuple, ...]  # messages on the way to the root
    log: int  # the log, by number
    runs: tuple[int, ...]  # how many entries of the log each rank has executed
    aborted: tuple[bool, ...]  # ranks that know of an abort


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
        self._numbers: dict[Any, int] = {}
        self._things: list[Any] = []
        self._rank_steps: dict[tuple, tuple[int, tuple]] = {}
        self._root_steps: dict[tuple, tuple[int, tuple]] = {}
        self._participants: dict[tuple[int, int], Participant] = {}
        self._coordinators: dict[int, Coordinator] = {}

    def initial(self) -> State:
        n = self.size
        rank = self._number(Participant.initial())
        root = self._number(Coordinator.initial(n))
        return State((0,) * n, (rank,) * n, root, ((),) * n, self._number(()), (0,) * n, (False,) * n)

    def moves(self, s: State) -> list[Move]:
        """Every next state, each with a label; only one if a move can be made first without losing an outcome."""
        for r in range(self.size):
            move = self._eager(s, r) if self.reduced else self._completion(s, r)
            if move is not None:
                return [move]
        found: list[Move] = []
        log = self.log(s)
        for r in range(self.size):
            if s.aborted[r]:
                if self._can_step(s, r):
                    found.append(self._step_program(s, r))
                continue
            me = self.participant(s, r)
            if self._can_step(s, r):
                found.append(self._step_program(s, r))
            if me.pos < len(log) and not (self.coupled and s.runs[r] < me.pos):
                found.append(self._replay(s, r))
            if not self.switches.no_dissolve:
                found += [
                    (f"rank {r}: time is up for batch {i}", self._rank_step(s, r, ("timer", i)))
                    for i, b in me.batches.items()
                    if b.partly_held()
                ]
            if any(s.aborted[q] for q in (range(self.size) if r == 0 else (0,))):
                found.append((f"rank {r} learns of the abort", self._abort(s, r)))
        if not s.aborted[0]:
            for r in range(self.size):
                for i in range(self._may_come_next(s.ups[r])):
                    message, rest = s.ups[r][i], s.ups[r][:i] + s.ups[r][i + 1 :]
                    taken = s._replace(ups=s.ups[:r] + (rest,) + s.ups[r + 1 :])
                    found.append((f"root takes {_show(message)}", self._root_step(taken, message)))
            root = self.coordinator(s)
            if root.decided:
                found.append(("root forms batches", self._root_step(s, ("form_batches",))))
            if self.switches.root_dissolves and not root.closed:
                for batch, (_, _, arrived) in root.live.items():
                    if arrived:
                        found.append((f"root dissolves {batch}", self._root_step(s, ("dissolve", batch))))
        return found

    def unfinished(self, s: State) -> dict[int, tuple]:
        return {r: self.code[r][s.pcs[r]] for r in range(self.size) if s.pcs[r] < len(self.code[r])}

    def participant(self, s: State, r: int) -> Participant:
        """Rank r's half as it is in this state, to be read only: all states in which it is the same share it."""
        at = (r, s.ranks[r])
        if at not in self._participants:
            self._participants[at] = self._new_participant(s, r)
        return self._participants[at]

    def coordinator(self, s: State) -> Coordinator:
        """The root's half as it is in this state, to be read only."""
        if s.root not in self._coordinators:
            self._coordinators[s.root] = self._new_coordinator(s)
        return self._coordinators[s.root]

    def _new_participant(self, s: State, r: int) -> Participant:
        return Participant(r, self._things[s.ranks[r]], self.switches)

    def _new_coordinator(self, s: State) -> Coordinator:
        return Coordinator(self._things[s.root], self.switches)

    def log(self, s: State) -> tuple:
        return self._things[s.log]

    # Moves.

    def _eager(self, s: State, r: int) -> Move | None:
        """A move of rank r, if there is one, that commutes with every other move that is or becomes possible before it.

        This move may be made first without losing an outcome: no other move can prevent it, and it prevents no
        other move. These moves are: the completion of an execution; passing an instruction that only
        waits and need wait no longer; announcing a key of no known batch while nothing is held (replays
        then send nothing that could come in between); replaying an entry that frees what the rank waits for
        but changes nothing about its next submissions. The test `test_reduction_loses_nothing` compares
        with the whole space.
        """
        if s.aborted[r]:
            return self._step_program(s, r) if self._can_step(s, r) else None
        log = self.log(s)
        me = self.participant(s, r)
        done = self._completion(s, r)
        if done is not None:
            return done
        if self._can_step(s, r) and self._is_free(s, r, me, self.code[r][s.pcs[r]]):
            return self._step_program(s, r)
        if (
            me.pos < len(log)
            and not (self.coupled and s.runs[r] < me.pos)
            and not self.switches.start_on_guess
        ):
            entry = log[me.pos]
            quiet = entry[0] in ("EXEC", "RUN", "FAIL", "JOINED") or (
                entry[0] == "SETS" and entry[1][0] == "add" and r not in askers(entry[3])
            )
            if entry[0] == "DISSOLVE":
                quiet = entry[2] not in me.batches or me.batches[entry[2]].status != HOLD
            if quiet and not self.ends_early and self.last_fail[r] < s.pcs[r]:
                return self._replay(s, r)
        return None

    def _completion(self, s: State, r: int) -> Move | None:
        i, log = s.runs[r], self.log(s)
        if s.aborted[r] or i >= self.participant(s, r).pos or not self._can_complete(s, r, i, log[i]):
            return None
        return f"rank {r} has executed {_show(log[i])}", s._replace(
            runs=s.runs[:r] + (i + 1,) + s.runs[r + 1 :]
        )

    def _is_free(self, s: State, r: int, me: Participant, op: tuple) -> bool:
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

    def _can_step(self, s: State, r: int) -> bool:
        return s.pcs[r] < len(self.code[r]) and self._passable(s, r, self.code[r][s.pcs[r]])

    def _passable(self, s: State, r: int, op: tuple) -> bool:
        kind = op[0]
        if kind == "await":
            sender, at = self.signals[op[1]]
            return s.pcs[sender] > at
        if s.aborted[r]:
            return True
        me = self.participant(s, r)
        if kind == "wait":
            if op[1] in me.open:
                return False
            latest = max((n for key, n in me.results if key == op[1]), default=None)
            outcome, index = me.results.get((op[1], latest), ("", 0))
            return outcome != "exec" or s.runs[r] > index
        if kind == "joined":
            return not me.joined or me.closed
        if kind == "closed":
            return me.closed and s.runs[r] == me.pos
        return True

    def _step_program(self, s: State, r: int) -> Move:
        op = self.code[r][s.pcs[r]]
        s = s._replace(pcs=s.pcs[:r] + (s.pcs[r] + 1,) + s.pcs[r + 1 :])
        label = f"rank {r}: {_show(op)}"
        if op[0] == "abort":
            return label, self._abort(s, r)
        if s.aborted[r] or op[0] in ("wait", "await", "signal", "joined", "closed"):
            return label, s
        return label, self._rank_step(s, r, op)

    def _replay(self, s: State, r: int) -> Move:
        entry = self.log(s)[self.participant(s, r).pos]
        return f"rank {r} replays {_show(entry)}", self._rank_step(s, r, ("replay", entry))

    def _abort(self, s: State, r: int) -> State:
        """R12. All pending requests end at once, in any state."""
        return s._replace(aborted=s.aborted[:r] + (True,) + s.aborted[r + 1 :])

    def _can_complete(self, s: State, r: int, index: int, entry: tuple) -> bool:
        """An execution ends when all its ranks have begun it: have replayed it and executed all before it."""
        ranks = {"EXEC": entry[1], "RUN": entry[1], "SETS": entry[-1]}.get(entry[0], ())
        return r not in ranks or all(self._has_begun(s, q, index, entry) for q in ranks)

    def _has_begun(self, s: State, r: int, index: int, entry: tuple) -> bool:
        if s.runs[r] > index:
            return True
        me = self.participant(s, r)
        return s.runs[r] == index < me.pos and not me.blocks_execution(entry, index)

    def _rank_step(self, s: State, r: int, event: tuple) -> State:
        at = (r, s.ranks[r], event)
        if at not in self._rank_steps:
            me = self._new_participant(s, r)
            kind, *args = event
            calls = {
                "poll": me.wanted,
                "add": me.sets,
                "end": me.sets,
                "open": me.open_set,
                "shut": me.shut_set,
            }
            call = calls.get(kind) or getattr(me, kind)
            call(*([kind] if kind in ("add", "end") else []), *args)
            self._rank_steps[at] = self._number(me.freeze()), tuple(me.out)
        new, said = self._rank_steps[at]
        up = self._queue(s.ups[r], said)
        return s._replace(
            ranks=s.ranks[:r] + (new,) + s.ranks[r + 1 :], ups=s.ups[:r] + (up,) + s.ups[r + 1 :]
        )

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

    def _may_come_next(self, up: tuple) -> int:
        """The number of messages in the queue that may be the next one to reach the root."""
        if not self.switches.merge:
            return min(1, len(up))
        first = next((i for i, message in enumerate(up) if barrier(message, self.switches)), len(up))
        about = [key for message in up[:first] for key in _keys(message)]
        # If the same key were in it twice, merging nodes would have to know which comes first.
        check(
            len(set(about)) == len(about) or self.switches.overtaken,
            f"two messages about one key are on their way at once: {_show(up[:first])}",
        )
        return max(first, min(1, len(up)))

    def _root_step(self, s: State, message: tuple) -> State:
        at = (s.root, message)
        if at not in self._root_steps:
            root = self._new_coordinator(s)
            if message[0] in ("form_batches", "dissolve"):
                getattr(root, message[0])(*message[1:])
            else:
                root.receive(message)
            self._root_steps[at] = self._number(root.freeze()), tuple(root.out)
        new, entries = self._root_steps[at]
        return s._replace(root=new, log=self._number(self.log(s) + entries) if entries else s.log)

    def _number(self, thing: Any) -> int:
        n = self._numbers.setdefault(thing, len(self._things))
        if n == len(self._things):
            self._things.append(thing)
        return n


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
