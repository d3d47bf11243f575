"""The agreement protocol of docs/protocol.md as an explicit-state model: the terms that its two machines share.

participant.py is a rank's half and coordinator.py the root's half. Each is a deterministic machine: thawed
from a frozen state (nested tuples, so that it can be hashed), given one event, frozen again. world.py joins
them with links, a log and programs; checker.py walks every interleaving. R-numbers are the rules of
docs/protocol.md. The links are a star. A tree adds nodes that merge READY and ARRIVE of their subtree and hold
them for a while: for the root this is a link that reorders those two kinds (`merge`), and nothing else. Used by
the tests only, on one thread.

Messages up:
    (READY, rank, key, n, sig) (POISON, rank, key, n) (ARRIVE, rank, batch, gen, ((key, n), ...))
    (ASK, rank, batch, gen) (DISSOLVED, rank, batch, gen) (JOIN, rank) (LEAVE, rank)
Entries down, where items are ((key, sig, consumed), ...) and consumed is ((rank, n), ...):
    (EXEC, members, items, batch or None) (RUN, members, batch, gen, items) (DISSOLVE, members, batch, gen)
    (FAIL, key, consumed, poisoners) (SETS, change, consumed, key, ranks that make or end its communicators)
    (JOINED, last) (CLOSE, rank)

`n` is a ghost: (joins so far, how many submissions of this key this rank has made since). The real protocol
has no such number; it is here so that "counted for the wrong round" can be seen and reported.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Key = tuple[str, str]  # (process set, name)
WORLD = "w"
SETS_KEY: Key = (WORLD, "#sets")  # R10: the key under which process sets are added and ended

HOLD, ASKED, ARRIVED = "hold", "asked", "arrived"  # the state of a known batch on a rank
READY, POISON = "READY", "POISON"


class ProtocolError(AssertionError):
    """A machine saw an event that the rules exclude."""


class Switches(NamedTuple):
    """Changes of the protocol (the first nine break it; the others are its parameters)."""

    start_on_guess: bool = False  # against R7: a rank that holds all members of a batch starts it at once
    no_dissolve: bool = False  # against R5: waiting and time never dissolve a batch
    replace_poison: bool = (
        False  # against R8: a READY takes the place of the rank's POISON that is not decided yet
    )
    define_over_poison: bool = (
        False  # against R4: a batch is defined though a next round of a member has begun
    )
    keep_on_poison: bool = False  # against R8: a POISON does not dissolve the batch of its key at the root
    all_ranks_ask: bool = False  # against R15: a set that its members add needs all ranks
    no_waiting_for_a_set: bool = False  # against R17: a message is announced before its set is there
    reuse_early: bool = False  # against R4: a batch takes the number of one whose end not all ranks know of
    overtaken: tuple = ()  # other messages that READY and ARRIVE may overtake: kinds, "SETS" for READY of a set's change
    merge: bool = True  # nodes on the way merge and delay: READY and ARRIVE overtake one another
    root_dissolves: bool = (
        False  # the root may dissolve an arrived batch at any time, as it does for a stall report
    )
    repeats: int = 1  # R4: how often in a row a batch must have been formed
    smallest_known: int = 1  # fewest members of a known batch


def own_key(label: str, ranks: tuple) -> Key:
    """R15: the key under which the members of a set add or end it."""
    return (WORLD, f"#set/{','.join(map(str, ranks))}/{label}")


def askers(key: Key) -> tuple:
    """R15: the ranks that have to submit a key; () for all ranks of its set."""
    if not key[1].startswith("#set/"):
        return ()
    return tuple(int(rank) for rank in key[1].split("/")[1].split(","))


def check(ok: Any, text: str) -> None:
    if not ok:
        raise ProtocolError(text)


def pack(mapping: dict) -> tuple:
    return tuple(sorted(mapping.items())) if mapping else ()


def barrier(message: tuple, switches: Switches) -> bool:
    """Whether nothing overtakes this message on its way to the root, nor it anything: nodes flush before it."""
    kind = message[0]
    # R10: after all announcements of the rank in the set
    if kind == READY and (message[2] == SETS_KEY or askers(message[2])):
        kind = "SETS"
    return kind not in (READY, "ARRIVE", "DISSOLVED") and kind not in switches.overtaken
