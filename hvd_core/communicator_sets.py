"""Process sets that MPI communicators define, in init(process_sets=[...]) of a job that itself was given a communicator.

Programs split a communicator, and every rank names its part: one entry of the list may stand for several sets. All ranks
exchange whom their communicators hold, and register all sets in the same order. Called by the thread that runs init().
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_core.frontend.host_arrays import gathered_integers
from hvd_core.process_sets import ProcessSet

NEEDS_COMMUNICATOR = (
    "horovod: process sets that an MPI communicator defines need a job that was given one: "
    "init(comm=<mpi4py communicator>, process_sets=[...]); or give lists of ranks."
)


def describe(process_sets: Sequence[ProcessSet], job_comm: Any) -> str:
    """A text by which the ranks compare their lists.

    Raises NotImplementedError for a communicator where the job has none, ValueError for one that is not of the job.
    """
    for process_set in process_sets:
        if process_set.mpi_comm is not None:
            if job_comm is None:
                raise NotImplementedError(NEEDS_COMMUNICATOR)
            job_comm.ranks_of(process_set.mpi_comm)
    return ", ".join("a communicator" if s.mpi_comm is not None else str(s.ranks) for s in process_sets)


def resolved(
    process_sets: Sequence[ProcessSet], job_comm: Any, size: int
) -> tuple[list[ProcessSet], list[int]]:
    """The sets to register, and the index in ``process_sets`` that each stands for. The caller's own objects have their
    ranks afterwards; sets of other ranks get objects of their own.

    A collective call of all ranks where ``process_sets`` has communicators. Raises ValueError, on all ranks, when the
    members of a communicator did not all name it.
    """
    by_comm = [i for i, process_set in enumerate(process_sets) if process_set.mpi_comm is not None]
    if not by_comm:
        return list(process_sets), list(range(len(process_sets)))
    describe(process_sets, job_comm)  # in a second init() nobody has looked yet
    own = {i: sorted(job_comm.ranks_of(process_sets[i].mpi_comm)) for i in by_comm}
    said = _exchanged([own[i] for i in by_comm], size)
    made, entries = [], []
    for i, process_set in enumerate(process_sets):
        if i not in own:
            made.append(process_set)
            entries.append(i)
            continue
        members = _sets_of([answer[by_comm.index(i)] for answer in said], i)
        mine = own[i] or (members[0] if len(members) == 1 else None)
        process_set.ranks = mine
        for ranks in members:
            made.append(process_set if ranks == mine else ProcessSet(ranks))
            entries.append(i)
    return made, entries


def _sets_of(said: Sequence[list[int]], entry: int) -> list[list[int]]:
    """The distinct sets among what each rank said of one entry, by their lowest rank."""
    distinct = sorted({tuple(ranks) for ranks in said if ranks})
    for ranks in distinct:
        odd = next((rank for rank in ranks if tuple(said[rank]) != ranks), None)
        if odd is not None:
            namer = next(rank for rank, theirs in enumerate(said) if tuple(theirs) == ranks)
            raise ValueError(
                f"horovod: init(process_sets=...): entry {entry} is a communicator of ranks {list(ranks)} on rank "
                f"{namer}, but rank {odd} gave one of ranks {said[odd]} there. All members of a communicator must give "
                "it in the same place."
            )
    return [list(ranks) for ranks in distinct]


def _exchanged(own: Sequence[list[int]], size: int) -> list[list[list[int]]]:
    """The lists ``own`` of every rank, by rank: as many lists as this rank has."""
    # Each list behind its length.
    row = [number for ranks in own for number in (len(ranks), *ranks)]
    numbers = iter(gathered_integers(row, "allgather.horovod.process_sets"))
    return [[[next(numbers) for _ in range(next(numbers))] for _ in own] for _ in range(size)]
