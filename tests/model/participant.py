"""A rank's half of the protocol model: its submissions, its known batches, and the replay of the log.

Mirrors hvd_core/engine/agreement/participant.h. The words are in protocol.py, the R-numbers in
docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protocol import (
    ARRIVED,
    ASKED,
    HOLD,
    POISON,
    READY,
    SETS_KEY,
    Key,
    Switches,
    askers,
    check,
    own_key,
    pack,
)


class RankBatch:
    """A known batch as a rank sees it."""

    def __init__(
        self, gen: int, members: tuple, status: str = HOLD, held: Iterable[Key] = (), since: int = 0
    ):
        self.gen, self.members, self.status, self.held, self.since = gen, members, status, set(held), since

    def freeze(self) -> tuple:
        return (self.gen, self.members, self.status, tuple(sorted(self.held)), self.since)

    def partly_held(self) -> bool:
        return self.status == HOLD and bool(self.held)

    def reset(self, status: str) -> None:
        self.status = status
        self.held.clear()
        self.since = 0


class Participant:
    """`out` receives the messages that the rank sends to the root."""

    def __init__(self, rank: int, frozen: tuple, switches: Switches):
        self.rank, self.switches = rank, switches
        (self.pos, counts, open_, poisons, results, batches, stuck, *rest) = frozen
        (self.unborn, self.waiting, self.joins, self.joined, self.closed) = rest
        self.counts: dict[Key, int] = dict(counts)  # submissions since the last JOINED
        self.open: dict[Key, tuple] = dict(open_)  # pending requests: key -> (n, signature)
        self.poisons: dict[Key, tuple] = dict(poisons)  # failed submissions not yet consumed: key -> (n, ...)
        self.results: dict[tuple, tuple] = dict(results)  # (key, n) -> (outcome, position in the log)
        self.batches = {i: RankBatch(*b) for i, b in batches}
        self.stuck: tuple = stuck  # start_on_guess: positions since when this rank sits in a dissolved batch
        # `unborn`: sets that this rank has asked for and that are not there yet; `waiting`: messages about them (R17).
        self.out: list[tuple] = []

    @staticmethod
    def initial() -> tuple:
        return (0, (), (), (), (), (), (), (), (), 0, False, False)

    def freeze(self) -> tuple:
        batches = tuple(sorted((i, b.freeze()) for i, b in self.batches.items()))
        requests = pack(self.counts), pack(self.open), pack(self.poisons), pack(self.results)
        sets = self.unborn, self.waiting
        return (self.pos, *requests, batches, self.stuck, *sets, self.joins, self.joined, self.closed)

    # Events of the program and of the clock.

    def submit(self, key: Key, sig: Any) -> None:
        n = self._number(key)
        if self.closed:
            self.results[key, n] = ("closed", self.pos)
            return
        check(
            key not in self.open and not self.joined,
            f"{key} submitted while in flight or joined: a bad program",
        )
        self.open[key] = (n, sig)
        b = self._batch_of(key)
        if b is None or b.status == ASKED:
            self._announce(key)
        elif dict(b.members)[key] != sig:
            self._ask(b)
            self._announce(key)
        else:
            b.held.add(key)
            if len(b.held) == len(b.members):  # R4
                b.status, b.since = ARRIVED, self.pos
                ghosts = tuple((k, self.open[k][0]) for k, _ in b.members)
                self.out.append(("ARRIVE", self.rank, self._id(b), b.gen, ghosts))

    def fail(self, key: Key) -> None:
        """R8: the submission fails here, because the name is in flight or for another reason."""
        n = self._number(key)
        if self.closed:
            return
        b = self._batch_of(key)
        if b is not None and b.status == HOLD:  # R5, also when nothing is held
            self._ask(b)
        self.poisons[key] = (*self.poisons.get(key, ()), n)
        self._say(key, (POISON, self.rank, key, n))

    def wanted(self, key: Key) -> None:
        b = self._batch_of(key)
        if b is not None and b.status == HOLD and key in b.held and not self.switches.no_dissolve:
            self._ask(b)

    def timer(self, batch: int) -> None:
        self._ask(self.batches[batch])

    def join(self) -> None:
        check(not self.waiting, "joined while a message waits for its set: a bad program")
        self._ask_partly_held()
        self.joined = True
        self.out.append(("JOIN", self.rank))

    def leave(self) -> None:
        self._ask_partly_held()
        self.out.append(("LEAVE", self.rank))

    def sets(self, verb: str, name: str, ranks: tuple) -> None:
        if verb == "end":
            self._ask_partly_held(name)  # R10: earlier submissions are announced before the end
        self.submit(SETS_KEY, (verb, name, ranks))

    def open_set(self, name: str, ranks: tuple) -> None:
        """R15. The rank goes on, and R17 holds what it submits in the set."""
        self.unborn = (*self.unborn, name)
        self.submit(own_key(name, ranks), ("add", name, ranks))

    def shut_set(self, name: str, ranks: tuple) -> None:
        self._ask_partly_held(name)
        self.submit(own_key(f"end of {name}", ranks), ("end", name, ranks))

    # The log.

    def replay(self, entry: tuple) -> None:
        kind = entry[0]
        if kind == "EXEC":
            _, members, items, batch = entry
            if self.rank in members:
                for key, sig, consumed in items:
                    self._decided(key, consumed, "exec", sig)
                if batch is not None:
                    check(batch not in self.batches, f"rank {self.rank} has a batch {batch} already")
                    self.batches[batch] = RankBatch(0, tuple((key, sig) for key, sig, _ in items))
        elif kind == "RUN":
            _, members, batch, gen, items = entry
            if self.rank in members:
                b = self.batches[batch]
                check(
                    b.gen == gen and b.status == ARRIVED,
                    f"rank {self.rank} runs {batch}/{gen} but is {b.freeze()}",
                )
                for key, sig, consumed in items:
                    self._decided(key, consumed, "exec", sig)
                b.gen += 1
                b.reset(HOLD)
        elif kind == "DISSOLVE":
            _, members, batch, gen = entry
            if self.rank in members:
                b = self.batches.pop(batch)
                check(b.gen == gen, f"rank {self.rank} dissolves {batch}/{gen} but is at {b.gen}")
                if b.status == HOLD:  # R6: neither asked nor arrived
                    for key in sorted(b.held):
                        self._announce(key)
                elif b.status == ARRIVED and self.switches.start_on_guess:
                    self.stuck = (*self.stuck, b.since)
                self.out.append(("DISSOLVED", self.rank, batch, gen))
        elif kind == "FAIL":
            _, key, consumed, poisoners = entry
            if self.rank in poisoners:
                first, *rest = self.poisons.pop(key)
                check(
                    self.switches.replace_poison or first == dict(consumed)[self.rank],
                    "another poison's FAIL",
                )
                if rest:
                    self.poisons[key] = tuple(rest)
            elif self.rank in dict(consumed):
                self._decided(key, consumed, "fail")
        elif kind == "SETS":
            _, (verb, name, _), consumed, key, _ = entry
            if key == SETS_KEY or self.rank in askers(key):
                self._decided(key, consumed, "exec")
            if verb == "add" and name in self.unborn:
                self.unborn = tuple(other for other in self.unborn if other != name)
                self.out += [m for m in self.waiting if m[2][0] == name]
                self.waiting = tuple(m for m in self.waiting if m[2][0] != name)
            if (
                verb == "end"
            ):  # R10: pending requests in the set fail, and late messages about it have no effect
                for key in [k for k in self.open if k[0] == name]:
                    self.results[key, self.open.pop(key)[0]] = ("ended", self.pos)
                self.poisons = {k: v for k, v in self.poisons.items() if k[0] != name}
        elif kind == "JOINED":
            check(
                self.joined and not self.open and not self.poisons,
                f"rank {self.rank} has more data at JOINED",
            )
            self.joins, self.joined, self.counts = self.joins + 1, False, {}
        elif kind == "CLOSE":
            self.closed = True
            for key, (n, _) in self.open.items():
                self.results[key, n] = ("closed", self.pos)
            self.open, self.poisons, self.batches = {}, {}, {}
            self.unborn = self.waiting = ()
        self.pos += 1

    def blocks_execution(self, entry: tuple, index: int) -> bool:
        """start_on_guess: this rank is in a collective that it began by itself, and `entry` is another one."""
        if not self.switches.start_on_guess:
            return False
        if any(since <= index for since in self.stuck):
            return True
        inside = [(i, b) for i, b in self.batches.items() if b.status == ARRIVED and b.since <= index]
        return any(not (entry[0] == "RUN" and entry[2:4] == (i, b.gen)) for i, b in inside)

    # Helpers.

    def _number(self, key: Key) -> tuple:
        self.counts[key] = self.counts.get(key, 0) + 1
        return (self.joins, self.counts[key])

    def _batch_of(self, key: Key) -> RankBatch | None:
        return next((b for b in self.batches.values() if any(k == key for k, _ in b.members)), None)

    def _id(self, batch: RankBatch) -> int:
        return next(i for i, b in self.batches.items() if b is batch)

    def _announce(self, key: Key) -> None:
        n, sig = self.open[key]
        self._say(key, (READY, self.rank, key, n, sig))

    def _say(self, key: Key, message: tuple) -> None:
        if key[0] in self.unborn and not self.switches.no_waiting_for_a_set:
            self.waiting = (*self.waiting, message)
        else:
            self.out.append(message)

    def _ask(self, b: RankBatch) -> None:
        """R5: the request to dissolve, and directly after it the members that the rank holds."""
        self.out.append(("ASK", self.rank, self._id(b), b.gen))
        for key in sorted(b.held):
            self._announce(key)
        b.reset(ASKED)

    def _ask_partly_held(self, name: str | None = None) -> None:
        for _, b in sorted(self.batches.items()):
            if b.partly_held() and name in (None, b.members[0][0][0]):
                self._ask(b)

    def _decided(self, key: Key, consumed: tuple, outcome: str, sig: Any = None) -> None:
        n = dict(consumed).get(self.rank)
        if n is None:  # neutral data
            check(
                self.joined and key not in self.open,
                f"rank {self.rank} is not counted for {key} and has not joined",
            )
            return
        check(
            key in self.open and self.open[key][0] == n,
            f"rank {self.rank}: {key} decided for another round, {n}",
        )
        check(
            sig is None or self.open[key][1] == sig,
            f"rank {self.rank}: {key} executed with another signature",
        )
        del self.open[key]
        self.results[key, n] = (outcome, self.pos)
