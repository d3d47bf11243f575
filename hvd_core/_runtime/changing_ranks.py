"""Process sets in elastic jobs, whose ranks change: numbers of workers, and sets whose members are not there.

A worker is a process with a number that never changes; its rank belongs to a world. Called by process_sets.py
and by the front ends' elastic training, on one thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hvd_core._bootstrap import driver_channel
from hvd_core._runtime import current_job
from hvd_core._runtime.host_arrays import gathered_integers

__all__ = ["Workers", "worker_id"]

# Sets of this world that are not registered, as members are missing.
_away: list[Any] = []
# Whether a front end has put the number of a set into a function that it will not make again.
_in_functions = False


def worker_id() -> int:
    """The number of this process in its elastic job, which never changes; in another job its rank. Raises ValueError in a
    job that is not elastic before init()."""
    channel = driver_channel.channel()
    return current_job.rank() if channel is None else channel.worker


def _workers_by_rank() -> list[int]:
    """The numbers of all workers of this world. A collective call of all ranks, once in a world."""
    job = current_job.get()
    if driver_channel.channel() is None:
        return list(range(job.world.size))
    if job.workers is None:
        job.workers = gathered_integers([worker_id()], "allgather.horovod.workers")
    return job.workers


class Workers:
    """The ranks of some workers, for ``ProcessSet(Workers([0, 2]))``: as long as all of them are in the world.

    Args:
        numbers: of the workers, see worker_id(). In a job that is not elastic, ranks.

    Raises:
        ValueError: `numbers` is empty, or holds a number twice or one that no worker can have.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers = sorted(int(number) for number in numbers)
        if not self.numbers or self.numbers[0] < 0 or len(set(self.numbers)) < len(self.numbers):
            raise ValueError(
                f"Workers({self.numbers}) can be in no world: give the number of each worker once; numbers begin at 0."
            )

    def __call__(self, size: int) -> list[int]:
        by_rank = _workers_by_rank()
        found = [rank for rank, number in enumerate(by_rank) if number in self.numbers]
        return found if len(found) == len(self.numbers) else []

    def __repr__(self) -> str:
        return f"Workers({self.numbers})"


def may_be_away(process_set: Any) -> bool:
    """Whether members of a set whose ranks are known are missing in this world of an elastic job. Such a set is not
    registered; calls that use it raise ValueError."""
    if driver_channel.channel() is None:
        return False
    ranks = process_set.ranks
    away = not ranks or ranks[-1] >= current_job.size()
    if away and not is_away(process_set):
        _away.append(process_set)
    return away


def may_be_equal(process_set: Any) -> bool:
    """Whether a set may have the ranks of another set, and share its number then. With some numbers of ranks two sets of
    an elastic job have the same members, or all ranks are members."""
    return process_set._ranks_of is not None or driver_channel.channel() is not None


def is_away(process_set: Any) -> bool:
    return any(known is process_set for known in _away)


def forget_away(process_set: Any) -> None:
    """The program has removed a set whose members are missing."""
    _away[:] = [known for known in _away if known is not process_set]


def why_away(process_set: Any) -> str:
    """The text of the ValueError for a set whose members are missing."""
    asked = process_set._ranks_of
    which = f"ranks {process_set.ranks}" if asked is None else f"{asked!r}"
    return (
        f"Process set of {which}: not all of its members are in this world of the elastic job, which has "
        f"{current_job.size()} ranks. Give the set as a function of the number of ranks, such as "
        "hvd.ProcessSet(lambda size: range(size // 2)), or leave it out while members are missing: its process_set_id is "
        "None then."
    )


def note_in_function() -> None:
    """A front end puts the number of a set into a function that it will not make again."""
    global _in_functions
    _in_functions = True


def are_in_functions() -> bool:
    return _in_functions


def forget() -> None:
    """After shutdown()."""
    _away.clear()
