"""The members of a job: the launcher's ranks that init(comm=[...]) lists, and the check that no other rank gave a list
that contradicts it.

Pure functions, and MemberWatch, which a waiting rank calls from time to time. Ranks in this module are the launcher's.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from hvd_core._base.sockets import BootstrapError
from hvd_core._bootstrap.launchers.identity import Identity

Members: TypeAlias = "tuple[int, ...] | None"
"""The launcher's ranks that make up a job, by rank; None for all."""

# How many other members one check reads. Checks take turns: a small job reads all of them, a large job a few.
_MEMBERS_PER_CHECK = 8


class MembersDisagree(BootstrapError, ValueError):
    """Two ranks of the launcher gave lists that name both of them and differ: neither job can ever be complete.

    ``attempts``: (members, count) of the two init() calls, if init() calls are counted; no rank waits for these any more.
    """

    def __init__(self, text: str, attempts: Sequence[tuple[Members, int]] = ()) -> None:
        super().__init__(text)
        self.attempts = attempts


def is_communicator(thing: object) -> bool:
    """Whether ``thing`` is an mpi4py communicator. Does not import mpi4py: a program with a communicator has done so."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI is not None and isinstance(thing, MPI.Comm)


def select(identity: Identity, ranks: Sequence[int] | None) -> Identity:
    """``identity`` within the job of ``ranks``: a sequence of the launcher's ranks; None or [] for all.

    The order of the list gives the ranks of the job. Raises ValueError if the list is not valid here.
    """
    if ranks is None:
        return identity
    members = checked(ranks)
    if not members:
        return identity
    shown = f"horovod: init(comm={shorten(members)})"
    size, rank = identity.size, identity.rank
    if len(set(members)) < len(members):
        twice = next(member for member in members if members.count(member) > 1)
        raise ValueError(f"{shown} names rank {twice} more than once. Name each rank once.")
    check_range(members, identity)
    if rank not in members:
        raise ValueError(
            f"{shown} was called by rank {rank}, which is not in the list. Call it on the ranks of the list only; the "
            "others may make a job of their own, with a list that has no rank in common with this one."
        )
    if members == tuple(range(size or 0)):
        return identity
    return replace(
        identity,
        rank=members.index(rank),
        size=len(members),
        local_rank=None,
        local_size=None,
        members=members,
        launched=identity,
    )


def check_range(members: tuple[int, ...], identity: Identity) -> None:
    """Raises ValueError if ``members`` holds a rank that the launcher's job does not have."""
    size = identity.size
    outside = [member for member in members if member < 0 or (size is not None and member >= size)]
    if outside:
        has = f"has ranks 0 to {size - 1}" if size is not None else "has no negative ranks"
        raise ValueError(
            f"horovod: init(comm={shorten(members)}) names rank {outside[0]}, but the job that {_starter(identity)} "
            f"{has}. The list holds ranks of that job."
        )


def checked(ranks: Sequence[int]) -> tuple[int, ...]:
    """``ranks`` as a tuple of ints. Raises ValueError if it is not a sequence of integers."""
    try:
        if isinstance(ranks, (str, bytes)):
            raise TypeError  # otherwise init(comm="world") would complain about ranks 'w', 'o', 'r'
        found = list(ranks)
    except TypeError:
        raise ValueError(
            "horovod: init(comm=...) must be None, a list of ranks or an mpi4py communicator, but is of type "
            f"{type(ranks).__name__}"
        ) from None
    try:
        members: Members = tuple(int(rank) for rank in found)
    except (TypeError, ValueError):
        members = None
    if members is None or any(
        isinstance(r, (str, bytes)) or i != r for i, r in zip(members, found, strict=True)
    ):
        raise ValueError(f"horovod: init(comm=...): the ranks must be integers, but found {found[:16]!r}")
    return members


def _starter(identity: Identity) -> str:
    return "this process is alone in" if identity.launcher == "single" else f"{identity.launcher} started"


def members_from_json(members: list[int] | None) -> Members:
    """Members as json.loads() returns them: a list, or None for all ranks. Returns a tuple or None."""
    return None if members is None else tuple(members)


def shorten(members: Members) -> str:
    """The list of members for messages; None means all ranks."""
    if members is None:
        return "all ranks"
    shown = ", ".join(str(member) for member in members[:16])
    return f"[{shown}, ... {len(members)} ranks]" if len(members) > 16 else f"[{shown}]"


def name_ranks(ranks: Sequence[int]) -> str:
    """'rank 3' or 'ranks 1, 2 and 5'; more than 16 are counted."""
    shown = [str(rank) for rank in ranks[:16]]
    if len(ranks) == 1:
        return f"rank {shown[0]}"
    if len(ranks) > 16:
        return f"ranks {', '.join(shown)} and {len(ranks) - 16} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def init_text(members: Members) -> str:
    """The call of init() for messages."""
    return "init()" if members is None else f"init(comm={shorten(members)})"


def epoch_of(members: Members, count: int) -> int:
    """The number of the ``count``-th init() with these members, different for every list of members. Below 2**62."""
    if members is None:
        return count
    digest = hashlib.sha256(",".join(map(str, members)).encode()).digest()
    return (1 << 61) | (int.from_bytes(digest[:5], "little") << 20) | (count & 0xFFFFF)


def contradict(mine: Members, me: int, theirs: Members, them: int) -> bool:
    """Whether rank ``me`` with the list ``mine`` and rank ``them`` with ``theirs``, both in init() now, wait for each
    other in different jobs, so that neither can complete. A list of None: all ranks."""
    return mine != theirs and (mine is None or them in mine) and (theirs is None or me in theirs)


def disagreement(mine: Members, me: int, theirs: Members, them: int) -> MembersDisagree:
    """The error for two ranks that contradict each other, with the same text on both."""
    (a, first), (b, second) = sorted(((me, mine), (them, theirs)), key=lambda pair: pair[0])
    return MembersDisagree(
        f"horovod: ranks do not agree on init(comm=...).  rank {a}: {shorten(first)}; rank {b}: {shorten(second)} "
        "(ranks as the launcher counts them).  fix: give all members of a list the same list, in the same order"
    )


class MemberWatch:
    """Checks whether another member waits in a different job.

    ``read(rank)``: returns (members, number of the init() call) of a rank that is in init() now, or None.
    ``report(theirs, error)``: called before a contradiction is raised, with the result of read(). One thread at a time.
    """

    def __init__(
        self,
        identity: Identity,
        read: Callable[[int], tuple[Members, int] | None],
        report: Callable[[tuple[Members, int], MembersDisagree], object] | None = None,
    ) -> None:
        self._members, self._me = identity.members, identity.launcher_rank
        self._read, self._report = read, report
        others: Sequence[int] = range(identity.size or 0) if self._members is None else self._members
        self._others = [rank for rank in others if rank != self._me]
        self._next = 0

    def look(self) -> None:
        """Raises MembersDisagree if another member waits for this rank in a different job."""
        count = min(_MEMBERS_PER_CHECK, len(self._others))
        turn = [self._others[(self._next + i) % len(self._others)] for i in range(count)]
        self._next = (self._next + count) % len(self._others)
        # The first member is read every time, because all others wait for it.
        for rank in sorted({self._others[0], *turn}):
            theirs = self._read(rank)
            if theirs is not None and contradict(self._members, self._me, theirs[0], rank):
                error = disagreement(self._members, self._me, theirs[0], rank)
                if self._report is not None:
                    self._report(theirs, error)
                raise error
