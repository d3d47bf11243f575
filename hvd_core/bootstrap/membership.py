"""Which of the launcher's ranks make up this job: the list that init(comm=[...]) was given, and whether others gave one
that cannot be true at the same time.

Pure functions, and the Lookout that a waiting rank asks from time to time. Ranks in here are the launcher's.
"""

import hashlib
import sys
from dataclasses import replace

from .wire import BootstrapError

# So many of the other members are looked at in turn, each time: all of them in a small job, few in a large one.
_GLANCES = 8


class MembersDisagree(BootstrapError, ValueError):
    """Two ranks of the launcher gave lists that name both of them and differ: neither job can ever be complete.

    ``attempts`` are the (members, count) of the two where inits are counted; nobody is to wait for them any more.
    """

    def __init__(self, text, attempts=()):
        super().__init__(text)
        self.attempts = attempts


def is_communicator(thing):
    """Whether ``thing`` is an mpi4py communicator. mpi4py is not imported for that: who has one, has imported it."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI is not None and isinstance(thing, MPI.Comm)


def select(identity, ranks):
    """``identity`` as seen inside of the job that ``ranks`` (a sequence of the launcher's ranks, None or []) make up.

    The order of the list gives the ranks of the job. Raises ValueError for a list that makes no sense here.
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


def check_range(members, identity):
    """Raises ValueError when ``members`` holds a rank that the launcher's job cannot have."""
    size = identity.size
    outside = [member for member in members if member < 0 or (size is not None and member >= size)]
    if outside:
        has = f"has ranks 0 to {size - 1}" if size is not None else "has no negative ranks"
        raise ValueError(
            f"horovod: init(comm={shorten(members)}) names rank {outside[0]}, but the job that {_starter(identity)} "
            f"{has}. The list holds ranks of that job."
        )


def checked(ranks):
    """``ranks`` as a tuple of ints; ValueError when it is something else."""
    try:
        if isinstance(ranks, (str, bytes)):
            raise TypeError  # or else init(comm="world") would speak of 'w', 'o', 'r'
        found = list(ranks)
    except TypeError:
        raise ValueError(
            "horovod: init(comm=...) must be None, a list of ranks or an mpi4py communicator, but is of type "
            f"{type(ranks).__name__}"
        ) from None
    try:
        members = tuple(int(rank) for rank in found)
    except (TypeError, ValueError):
        members = None
    if members is None or any(
        isinstance(r, (str, bytes)) or i != r for i, r in zip(members, found, strict=True)
    ):
        raise ValueError(f"horovod: init(comm=...): the ranks must be integers, but found {found[:16]!r}")
    return members


def _starter(identity):
    return "this process is alone in" if identity.launcher == "single" else f"{identity.launcher} started"


def shorten(members):
    """The list as messages show it; None stands for all ranks."""
    if members is None:
        return "all ranks"
    shown = ", ".join(str(member) for member in members[:16])
    return f"[{shown}, ... {len(members)} ranks]" if len(members) > 16 else f"[{shown}]"


def init_text(members):
    """The call as messages show it."""
    return "init()" if members is None else f"init(comm={shorten(members)})"


def number(members, count):
    """The number of the ``count``-th init() with these members; no other list has it. Below 2**62."""
    if members is None:
        return count
    digest = hashlib.sha256(",".join(map(str, members)).encode()).digest()
    return (1 << 61) | (int.from_bytes(digest[:5], "little") << 20) | (count & 0xFFFFF)


def contradict(mine, me, theirs, them):
    """Whether two ranks that are in init() now wait for each other in different jobs, for ever. None: all ranks."""
    return mine != theirs and (mine is None or them in mine) and (theirs is None or me in theirs)


def disagreement(mine, me, theirs, them):
    """The error for two that contradict, with the same words on either side."""
    (a, first), (b, second) = sorted(((me, mine), (them, theirs)), key=lambda pair: pair[0])
    return MembersDisagree(
        f"horovod: ranks do not agree on init(comm=...).  rank {a}: {shorten(first)}; rank {b}: {shorten(second)} "
        "(ranks as the launcher counts them).  fix: give all members of a list the same list, in the same order"
    )


class Lookout:
    """Looks what the other members have called meanwhile.

    ``read(rank)``: (members, what belongs to it) of a rank that is in init() now, or None; ``told(theirs, error)`` is
    called before a contradiction is raised, with what read() gave. One thread at a time.
    """

    def __init__(self, identity, read, told=lambda theirs, error: None):
        self._members, self._me = identity.members, identity.launcher_rank
        self._read, self._told = read, told
        others = range(identity.size) if self._members is None else self._members
        self._others = [rank for rank in others if rank != self._me]
        self._next = 0

    def look(self):
        """Raises MembersDisagree when another member waits for this rank in a different job."""
        count = min(_GLANCES, len(self._others))
        # The first is the one whom the others wait for.
        glances = {
            self._others[0],
            *(self._others[(self._next + i) % len(self._others)] for i in range(count)),
        }
        self._next = (self._next + count) % len(self._others)
        for rank in sorted(glances):
            theirs = self._read(rank)
            if theirs is not None and contradict(self._members, self._me, theirs[0], rank):
                error = disagreement(self._members, self._me, theirs[0], rank)
                self._told(theirs, error)
                raise error
