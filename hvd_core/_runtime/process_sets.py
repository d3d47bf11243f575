"""Changes of the process sets: which sets a job has, from init() to shutdown().

All ranks of a job change them together, with the same calls in the same order. Any thread may call; changes take turns.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hvd_core._bootstrap import driver_channel
from hvd_core._config.settings import flag_of
from hvd_core._runtime import current_job
from hvd_core._runtime.failures import report_failure
from hvd_core.errors import HorovodInternalError, JobEndedError, OperationFailedError

__all__ = [
    "ProcessSet",
    "Workers",
    "add_process_set",
    "global_process_set",
    "remove_process_set",
    "worker_id",
]


# Process sets in elastic jobs, whose ranks change: numbers of workers, and sets whose members are not there.
#
# A worker is a process with a number that never changes; its rank belongs to a world. Called by process_sets.py
# and by the front ends' elastic training, on one thread.

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
        job.workers = _gathered_integers([worker_id()], "allgather.horovod.workers")
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


def forget_changing() -> None:
    """After shutdown()."""
    _away.clear()


# A process set: which ranks take part in an operation.
#
# ``global_process_set`` holds all ranks and has id 0. Other sets are named in ``init(process_sets=[...])``, or added and
# removed later by all ranks together (process_sets.py). Objects are compared by identity, as programs written for
# Horovod expect. Any thread may call. ``changing_ranks`` has what is special to elastic jobs.


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
        if is_away(process_set):
            return why_away(process_set)
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


# Process sets that MPI communicators define, in init(process_sets=[...]) of a job that was itself given a communicator.
#
# A program splits a communicator, and every rank names its part: one entry of the list may stand for several sets. All
# ranks exchange the members of their communicators, and register all sets in the same order. Called by the thread that
# runs init().

NEEDS_COMMUNICATOR = (
    "horovod: process sets that an MPI communicator defines need a job that was given one: "
    "init(comm=<mpi4py communicator>, process_sets=[...]); or give lists of ranks."
)


def describe_sets(process_sets: Sequence[ProcessSet], job_comm: Any) -> str:
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


def resolve_sets(
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
    describe_sets(process_sets, job_comm)  # a second init() has not checked them yet
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
    numbers = iter(_gathered_integers(row, "allgather.horovod.process_sets"))
    return [[[next(numbers) for _ in range(next(numbers))] for _ in own] for _ in range(size)]


_NEEDS_DYNAMIC = (
    "Process sets can only be added or removed after init() when HOROVOD_DYNAMIC_PROCESS_SETS=1 is set (or with "
    'init(process_sets="dynamic")); otherwise give them all to init(process_sets=[...]).'
)


@dataclass(frozen=True)
class Change:
    """What the program has asked for. `earlier`: the set that had come back from another world, for which `process_set`
    stands now."""

    added: bool
    process_set: ProcessSet
    earlier: ProcessSet | None = None


_changes = threading.Lock()
# (engine, question, handle, set) of a change that is under way, and whose caller was interrupted; the set is None for a
# removal.
_left: tuple[Any, tuple[str, Any], int, ProcessSet | None] | None = None
# By ranks: sets whose addition was interrupted and then ended by another change, or that have come back in another world,
# until the program asks for them again.
_unclaimed: dict[tuple[int, ...], list[ProcessSet]] = {}
_named_in_init: list[ProcessSet] = []
_history: list[Change] = []


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set of ranks. All ranks of the job call it, members or not, with the same sets in the same order.

    Returns the ProcessSet with its id, when all ranks have registered it and its members can use it.

    Raises:
        ValueError: process sets are not dynamic (HOROVOD_DYNAMIC_PROCESS_SETS), a set of these ranks exists, a rank is
            not one of the job's, or the engine is shutting down.
        NotImplementedError: the set is defined by an MPI communicator; those go to init(process_sets=[...]).
        HorovodInternalError: the ranks disagree about the set, the call failed on another rank, or the job breaks.
    """
    engine = current_job.engine()  # the error of a program that has not called init() comes first
    with report_failure("add_process_set", None, None):
        _require_dynamic()
        process_set = _ready(process_set)
    earlier = _add(engine, process_set)
    _history.append(Change(True, process_set, earlier))
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """End a process set. All ranks of the job call it. Operations that are pending in the set fail.

    If another set of an elastic job has the same members in this world, that one stays.

    Returns False, and does nothing, for a set that is not registered and for the global one. Raises as
    add_process_set() does.
    """
    with report_failure("remove_process_set", None, None):
        known = is_away(process_set) or any(s is process_set for s in registered)
        if process_set.process_set_id in (None, 0) and not known:
            return False
        engine = current_job.engine()
        _require_dynamic()
    _history.extend(Change(False, ended) for ended in _remove(engine, process_set))
    return True


def _remove(engine: Any, process_set: ProcessSet) -> list[ProcessSet]:
    """Ends a process set. Returns the objects that have ended."""
    if is_away(process_set):
        forget_away(process_set)
        return [process_set]
    with _changes:
        number = process_set.process_set_id
        same = [s for s in registered if s.process_set_id == number]
        if number == 0 or (len(same) > 1 and any(s is process_set for s in same)):
            _forget([process_set])  # the other sets of these members go on
            return [process_set]
        process_set._register(None)
        try:
            _change(engine, ("remove", number), lambda: engine.remove_process_set(number))
        except BaseException:
            if _left is not None:  # interrupted: the program may ask again
                process_set._register(number)
            raise
        # Another object may stand for the same set; its number will be another set's.
        ended = [s for s in registered if s is process_set or s.process_set_id == number]
        _forget(ended)
    return ended


def _forget(ended: list[ProcessSet]) -> None:
    """Forgets the registration of sets that have ended. The caller holds _changes."""
    of_these = {id(s) for s in ended}
    registered[:] = [s for s in registered if id(s) not in of_these]
    for waiting in _unclaimed.values():
        waiting[:] = [s for s in waiting if id(s) not in of_these]
    for process_set in ended:
        process_set._register(None)


def _require_dynamic() -> None:
    if not flag_of(os.environ, "HOROVOD_DYNAMIC_PROCESS_SETS"):
        raise ValueError(_NEEDS_DYNAMIC)


def _ready(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """The set as a ProcessSet of ranks. Raises NotImplementedError for one that a communicator defines."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.mpi_comm is not None:
        raise NotImplementedError(
            "Process sets that an MPI communicator defines can only be given to init(comm=<mpi4py communicator>, "
            "process_sets=[...]); give a list of ranks."
        )
    return _checked(process_set)


def _checked(process_set: ProcessSet) -> ProcessSet:
    if process_set._ranks_of is not None:
        process_set.ranks = sorted_ranks(process_set._ranks_of(current_job.size()))
    for rank in process_set.ranks:
        if abs(rank) >= 1 << 31:
            raise ValueError(f"Rank {rank} of a new process set is not one of the ranks of this job.")
    return process_set


def _add(engine: Any, process_set: ProcessSet) -> ProcessSet | None:
    """Registers a set. Returns the set in whose place it stands now, if that was not claimed by the program yet."""
    if may_be_away(process_set):
        return None
    with _changes:
        earlier = _claimed(process_set)
        if earlier is not None:
            return earlier
        equal = _equal(process_set) if may_be_equal(process_set) else None
        if equal is not None:
            process_set._register(equal.process_set_id)
        else:
            own = _own_backends(process_set)
            question = ("add", (tuple(process_set.ranks), process_set.backend))
            process_set._register(
                _change(
                    engine, question, lambda: engine.add_process_set(process_set.ranks, *own), process_set
                )
            )
        if not any(s is process_set for s in registered):
            registered.append(process_set)
    return None


def _own_backends(process_set: ProcessSet) -> tuple[Any, ...]:
    """The engine's arguments for a set with backends of its own: their configuration, and the choice as a text."""
    job = current_job.current()
    if process_set.backend is None or job is None:
        return ()
    from hvd_core.backends._selection import job as at_init

    with report_failure("add_process_set", None, None):
        members = [rank for rank in process_set.ranks or () if 0 <= rank < job.world.size]
        return at_init.for_set(job, members, process_set.backend)


def _claimed(process_set: ProcessSet) -> ProcessSet | None:
    """The set of these ranks and backends that waits for the program to ask for it, in whose place `process_set` stands
    now."""
    waiting = _unclaimed.get(tuple(process_set.ranks), ())
    for earlier in [s for s in waiting if s.process_set_id is not None and s.backend == process_set.backend]:
        waiting.remove(earlier)
        _replace(earlier, process_set)
        return earlier
    return None


def _replace(earlier: ProcessSet, process_set: ProcessSet) -> None:
    if earlier is not process_set:
        process_set._stand_for(earlier)
        registered[registered.index(earlier)] = process_set


def _equal(process_set: ProcessSet) -> ProcessSet | None:
    """A set that has the same members in this world."""
    known = (s for s in (global_process_set, *registered) if s.process_set_id is not None)
    return next((s for s in known if s.ranks == process_set.ranks), None)


def _change(
    engine: Any, question: tuple[str, Any], submit: Callable[[], int], added: ProcessSet | None = None
) -> int:
    """Change the sets and wait for the change. ``question``: "add" and the ranks, or "remove" and the number.

    A change that all ranks asked for alike, and that cannot be made, is their common mistake: a ValueError. When an
    exception of a signal handler ends the wait, the change is still under way, and this rank has asked for it in the
    other ranks' eyes: the next call with the same question waits for it again, and another one waits for its end first.
    ``added``: the set that the change is to add.
    """
    global _left
    handle = _asked_before(engine, question)
    try:
        if handle is None:
            handle = submit()
        engine.wait(handle)
        return engine.process_set_of(handle)
    except JobEndedError as error:
        if engine.aborted:
            raise
        raise ValueError(f"Horovod is shutting down. {error}") from None
    except OperationFailedError as error:
        if _can_be_made(engine, question):
            raise
        raise ValueError(str(error)) from None
    finally:
        if handle is not None:
            if engine.poll(handle):
                engine.release(handle)
            else:
                _left = (engine, question, handle, added)


def _asked_before(engine: Any, question: tuple[str, Any]) -> int | None:
    """The handle of this change, if a call was interrupted that asked for it. Waits for another one that was."""
    global _left
    if _left is None or _left[0] is not engine:
        return None
    _, asked, handle, added = _left
    if asked != question:
        with suppress(HorovodInternalError):
            engine.wait(handle)
            if added is not None:
                # The program has not been told its number. It may ask again, when no other rank does.
                added._register(engine.process_set_of(handle))
                registered.append(added)
                _unclaimed.setdefault(tuple(added.ranks), []).append(added)
        engine.release(handle)
        handle = None
        _forget_removed(engine)
    _left = None
    return handle


def _can_be_made(engine: Any, question: tuple[str, Any]) -> bool:
    """Whether a change is possible as things stand, so that the ranks must have asked for different ones."""
    what, subject = question
    sets = engine.process_sets()
    if what == "remove":
        return subject in sets
    ranks = sorted(subject[0])
    distinct = len(set(ranks)) == len(ranks) > 0
    return distinct and set(ranks) <= set(sets[0]) and ranks not in sets.values()


def begin(size: int, sets: Sequence[ProcessSet], entries: Sequence[int]) -> None:
    """After init(): fill in the global set, and register the sets that were named there; ``entries`` are their places in
    the list that the caller gave.

    A set that exists already (in a second init()) gets its id again. Raises ValueError for a set that stands twice in
    the list or is the global one.
    """
    global_process_set.ranks = list(range(size))
    seen: list[list[int]] = [global_process_set.ranks]
    with report_failure("add_process_set", None, None):
        sets = [_checked(process_set) for process_set in sets]
    for index, process_set in zip(entries, sets, strict=True):
        if may_be_equal(process_set):
            continue
        if process_set.ranks in seen:
            raise ValueError(
                f"init(process_sets=...): entry {index}, {process_set}, holds the same ranks as an earlier entry or "
                "as the global process set."
            )
        seen.append(process_set.ranks)
    known = {tuple(ranks): number for number, ranks in ids_and_ranks().items()}
    for process_set in sets:
        number = known.get(tuple(process_set.ranks))
        before = next((s for s in registered if number and s.process_set_id == number), None)
        if number is None:
            _add(current_job.engine(), process_set)
        elif before is not None:  # of an earlier init(): one set, which ends for both objects
            _replace(before, process_set)
        else:
            process_set._register(number)
            registered.append(process_set)
    _named_in_init[:] = sets


def named_in_init() -> list[ProcessSet]:
    return list(_named_in_init)


def history() -> list[Change]:
    """What the program has asked for since init(), in its order."""
    return list(_history)


def add_again(process_set: ProcessSet, asked_again: bool) -> None:
    """Register a set in the next world of an elastic job. All ranks of the job call it, with the same sets in the same
    order. `asked_again`: the program will ask for the set by add_process_set()."""
    _add(current_job.engine(), _checked(process_set))
    if asked_again and process_set.process_set_id is not None:
        _unclaimed.setdefault(tuple(process_set.ranks), []).append(process_set)


def remove_again(process_set: ProcessSet) -> None:
    """Remove a set that the program had removed in another world of an elastic job. As add_again()."""
    if process_set.process_set_id is not None or is_away(process_set):
        _remove(current_job.engine(), process_set)


def forget_removed() -> None:
    """After join(): forget the sets that the other ranks have removed meanwhile."""
    engine = current_job.engine()
    with _changes:
        _forget_removed(engine)


def _forget_removed(engine: Any) -> None:
    """Forget the sets that have been removed. Their numbers may be other sets'. The caller holds _changes."""
    now = engine.process_sets()
    # A set without a number is being removed by its caller.
    known = [s for s in registered if s.process_set_id is not None]
    _forget([s for s in known if now.get(s.process_set_id) != s.ranks])


def end() -> None:
    """After shutdown(): forget all sets."""
    global _left
    _left = None
    _forget(list(registered))
    _unclaimed.clear()
    _named_in_init.clear()
    _history.clear()
    forget_changing()
    global_process_set.ranks = None
    global_process_set.mpi_comm = None


def _gathered_integers(own: Sequence[int], name: str) -> list[int]:
    """The integers of all ranks of the job, in rank order. A collective call of all ranks.

    Args:
        own: this rank's integers, of 64 bits; their number may differ from rank to rank.
        name: of the request.
    """
    import numpy as np

    core = current_job.engine()
    handle = core.allgather([np.array(own, dtype=np.int64)], name)
    try:
        core.wait(handle)
        return [int(n) for n in core.output_array(handle, 0)]
    finally:
        core.release(handle)
