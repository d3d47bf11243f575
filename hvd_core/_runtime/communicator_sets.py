"""Process sets that MPI communicators define, in init(process_sets=[...]) of a job that was itself given a communicator.

A program splits a communicator, and every rank names its part: one entry of the list may stand for several sets. All
ranks exchange the members of their communicators, and register all sets in the same order. Called by the thread that
runs init().
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_core._runtime.host_arrays import gathered_integers
from hvd_core._runtime.process_set import ProcessSet

NEEDS_COMMUNICATOR = (
    "horovod: process sets that an MPI communicator defines need a job that was given one: "
    "init(comm=<mpi4py communicator>, process_sets=[...]); or give lists of ranks."
)


def describe(process_sets: Sequence[ProcessSet], job_comm: Any) -> str:
    """A text by which the ranks compare their lists.

    Raises NotImplementedError for a communicator in a job that was not given one, ValueError for a communicator with
    processes that are not in the job.
    """
    for process_set in process_sets:
        if process_set.mpi_comm is not None:
            if job_comm is None:
                raise NotImplementedError(NEEDS_COMMUNICATOR)
            job_comm.ranks_of(process_set.mpi_comm)
    return ", ".join(map(_text_of, process_sets))


def _text_of(process_set: ProcessSet) -> str:
    over = "" if process_set.backend is None else f" over {process_set.backend}"
    if process_set._ranks_of is not None:
        return f"a function{over}"
    return ("a communicator" if process_set.mpi_comm is not None else str(process_set.ranks)) + over


def resolved(
    process_sets: Sequence[ProcessSet], job_comm: Any, size: int
) -> tuple[list[ProcessSet], list[int]]:
    """The sets to register, and for each its index in ``process_sets``. The caller's own objects know their ranks
    afterwards; sets that this rank is not in get new objects.

    A collective call of all ranks where ``process_sets`` has communicators. Raises ValueError, on all ranks, when some
    members of a communicator have named another one, or none, in the same place.
    """
    by_comm = [i for i, process_set in enumerate(process_sets) if process_set.mpi_comm is not None]
    if not by_comm:
        return list(process_sets), list(range(len(process_sets)))
    describe(process_sets, job_comm)  # a second init() has not checked them yet
    own = {i: sorted(job_comm.ranks_of(process_sets[i].mpi_comm)) for i in by_comm}
    of_all = _exchanged([own[i] for i in by_comm], size)
    made, entries = [], []
    for i, process_set in enumerate(process_sets):
        if i not in own:
            made.append(process_set)
            entries.append(i)
            continue
        members = _sets_of([lists[by_comm.index(i)] for lists in of_all], i)
        mine = own[i] or (members[0] if len(members) == 1 else None)
        process_set.ranks = mine
        for ranks in members:
            made.append(process_set if ranks == mine else ProcessSet(ranks, backend=process_set.backend))
            entries.append(i)
    return made, entries


def _sets_of(of_all: Sequence[list[int]], entry: int) -> list[list[int]]:
    """The distinct sets among the lists of all ranks for one entry, ordered by their lowest rank."""
    distinct = sorted({tuple(ranks) for ranks in of_all if ranks})
    for ranks in distinct:
        odd = next((rank for rank in ranks if tuple(of_all[rank]) != ranks), None)
        if odd is not None:
            namer = next(rank for rank, theirs in enumerate(of_all) if tuple(theirs) == ranks)
            raise ValueError(
                f"horovod: init(process_sets=...): entry {entry} is a communicator of ranks {list(ranks)} on rank "
                f"{namer}, but rank {odd} gave one of ranks {of_all[odd]} there. All members of a communicator must give "
                "it in the same place."
            )
    return [list(ranks) for ranks in distinct]


def _exchanged(own: Sequence[list[int]], size: int) -> list[list[list[int]]]:
    """The lists ``own`` of every rank, by rank: as many lists as this rank has."""
    # Each list behind its length.
    row = [number for ranks in own for number in (len(ranks), *ranks)]
    numbers = iter(gathered_integers(row, "allgather.horovod.process_sets"))
    return [[[next(numbers) for _ in range(next(numbers))] for _ in own] for _ in range(size)]
