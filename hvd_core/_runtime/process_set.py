"""A process set: which ranks take part in an operation.

``global_process_set`` holds all ranks and has id 0. Other sets are named in ``init(process_sets=[...])``, or added and
removed later by all ranks together (process_sets.py). Objects are compared by identity, as programs written for
Horovod expect. Any thread may call. ``changing_ranks`` has what is special to elastic jobs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from hvd_core._runtime import changing_ranks, current_job

__all__ = ["ProcessSet", "global_process_set"]


class ProcessSet:
    """A set of ranks.

    Args:
        ranks_or_comm: the member ranks (ints, in any order), or an ``mpi4py.MPI.Comm``; or a function that is called with
            the number of ranks of the job and returns the member ranks, the same on all ranks.
        backend: the backends of this set, as in ``init(backend=...)``, which all ranks choose alike. None: those of the
            job, also for device types that the named backends do not serve.

    Attributes:
        process_set_id: int once registered with the engine, None before.
        ranks: sorted list of global ranks, None while unknown. Those of a function are known once the set is registered.
        mpi_comm: the MPI communicator that defines the set, if one does.
        backend: the argument.

    Raises:
        ValueError: `ranks_or_comm` holds a value that is not an int, or is neither iterable nor a communicator nor a
            function.
    """

    __module__ = "horovod.common.process_sets"  # where users know it, in tracebacks and for pickle

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None
    backend: Any = None
    _ranks_of: Callable[[int], Iterable[int]] | None = None
    # Objects of earlier calls of an elastic training function, in whose place this one stands: they end with it.
    _earlier: weakref.WeakSet[ProcessSet] | None = None

    def __init__(self, ranks_or_comm: Iterable[int] | Any, *, backend: Any = None):
        if backend is not None:
            self.backend = backend
        if hasattr(ranks_or_comm, "Get_rank") and hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
        elif callable(ranks_or_comm):
            self._ranks_of = ranks_or_comm
        else:
            self.ranks = sorted_ranks(ranks_or_comm)

    def size(self) -> int | None:
        """Number of ranks in the set; None while it is not registered."""
        if self.process_set_id is None:
            return None
        if self.process_set_id == 0:
            return current_job.size()
        return None if self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """Index of this process within the set; None while it is not registered.

        Raises:
            ValueError: this process is not a member, or Horovod is not initialized.
        """
        if self.process_set_id is None:
            return None
        if self.process_set_id == 0:
            return current_job.rank()
        me = current_job.rank()
        if self.ranks is None or me not in self.ranks:
            raise ValueError("Process is not part of provided process set.")
        return self.ranks.index(me)

    def included(self) -> bool | None:
        """Whether this process is a member; None while the ranks are unknown."""
        if self.process_set_id == 0:
            return True
        if self.ranks is None:
            return None
        return current_job.rank() in self.ranks

    def _register(self, number: int | None) -> None:
        """Set the engine's number; None: forget the registration. Called when the engine has changed the set."""
        for one in (self, *(self._earlier or ())):
            one.process_set_id, one.ranks = number, self.ranks

    def _stand_for(self, earlier: ProcessSet) -> None:
        """Take the place of a set with the same ranks, which stays as valid as this one."""
        self._earlier = weakref.WeakSet((earlier, *(earlier._earlier or ())))
        earlier._earlier = None
        self._register(earlier.process_set_id)

    # The job has agreed on a set, and sets are compared by identity: the copy of an object that holds a set holds the
    # same set.

    def __copy__(self) -> ProcessSet:
        return self

    def __deepcopy__(self, memo: dict) -> ProcessSet:
        return self

    def __reduce__(self) -> str | tuple:
        # Numbers mean nothing to another job, nor after shutdown(). The ranks last.
        if self is global_process_set:
            return "global_process_set"
        if self.ranks is not None:
            return _of_ranks, (tuple(self.ranks), self.backend)
        if self.mpi_comm is not None:
            raise TypeError(
                "A ProcessSet made from an MPI communicator can be pickled once init() has found out its ranks."
            )
        return temporary, (self.process_set_id,)

    def __str__(self) -> str:
        over = "" if self.backend is None else f", backend={self.backend!r}"
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm}{over})"

    __repr__ = __str__


def sorted_ranks(ranks: Iterable[int]) -> list[int]:
    try:
        members = list(ranks)
    except TypeError:
        raise ValueError(
            "A ProcessSet is made from a list of ranks, from a function that returns it, or from an mpi4py communicator, "
            f"not from {type(ranks).__name__}."
        ) from None
    try:
        as_ints = [int(rank) for rank in members]
    except (TypeError, ValueError):
        as_ints = None
    if as_ints is None or any(isinstance(r, (str, bytes)) or i != r for i, r in zip(as_ints, members)):
        raise ValueError(f"The ranks of a ProcessSet must be integers, but found {members!r}.")
    return sorted(as_ints)


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0
global_process_set.ranks = None

# The sets that have a number in this job, apart from the global one; changed by process_sets.py.
registered: list[ProcessSet] = []


def temporary(process_set_id: int | None) -> ProcessSet:
    """A bare object that carries `process_set_id` and nothing else."""
    bare = ProcessSet.__new__(ProcessSet)
    bare.process_set_id = process_set_id
    return bare


def _of_ranks(ranks: tuple[int, ...], backend: Any = None) -> ProcessSet:
    """The set that a pickled set becomes: the registered one of these ranks, or else a new one."""
    known = next((s for s in list(registered) if s.ranks == list(ranks)), None)
    return known or ProcessSet(ranks, backend=backend)


def number_of(process_set: ProcessSet) -> int:
    """The engine's number of a process set.

    Raises:
        ValueError: `process_set` is not a ProcessSet, or is not registered.
    """
    number = getattr(process_set, "process_set_id", None)
    if number is None:
        raise ValueError(why_no_number(process_set))
    return number


def is_registered(number: int) -> bool:
    """Whether a process set of this job has this number."""
    return number == 0 or any(s.process_set_id == number for s in list(registered))


def why_no_number(process_set: Any) -> str:
    """The text of the ValueError for a value that has no number of a process set."""
    if isinstance(process_set, ProcessSet):
        if changing_ranks.is_away(process_set):
            return changing_ranks.why_away(process_set)
        return (
            f"Process set provided does not exist, or has not been registered: {process_set}. "
            "Give it to init(process_sets=[...]) or to add_process_set() first."
        )
    return (
        f"process_set must be an hvd.ProcessSet, but found {type(process_set).__name__}: {process_set!r:.80}. "
        "Leave it out for all ranks."
    )


def ids_and_ranks() -> dict[int, list[int]]:
    """Ranks of all registered sets by id, the global one included. Raises ValueError before init()."""
    return current_job.engine().process_sets()
