"""Process sets: which ranks take part in an operation, and which sets a job has, from init() to shutdown().

``global_process_set`` holds all ranks and has id 0. Other sets are named in ``init(process_sets=[...])``, or added and
removed later by all ranks together, with the same calls in the same order. ProcessSet objects are compared by identity,
as programs written for Horovod expect. `ProcessSets` is the registry of one job (Job.process_sets) and ends with it.

In an elastic job ranks change: a worker is a process with an id that never changes, its rank belongs to a world.
Members of a set may be missing in a world, and sets with different members in one world may be equal in the next.

Any thread may call; changes take turns.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvd_core._bootstrap import driver_channel
from hvd_core._config.settings import flag_of
from hvd_core._runtime import current_job
from hvd_core._runtime.failures import report_failure
from hvd_core.errors import JobEndedError, OperationFailedError

if TYPE_CHECKING:
    from hvd_core._bootstrap.rendezvous.mpi import JobComm

__all__ = [
    "ProcessSet",
    "Workers",
    "add_process_set",
    "global_process_set",
    "remove_process_set",
    "worker_id",
]

_NEEDS_DYNAMIC = (
    "Process sets can only be added or removed after init() when HOROVOD_DYNAMIC_PROCESS_SETS=1 is set (or with "
    'init(process_sets="dynamic")); otherwise give them all to init(process_sets=[...]).'
)
NEEDS_COMMUNICATOR = (
    "horovod: process sets that an MPI communicator defines need a job that was given one: "
    "init(comm=<mpi4py communicator>, process_sets=[...]); or give lists of ranks."
)


class ProcessSet:
    """A set of ranks.

    >>> evens = ProcessSet([0, 2, 4])
    >>> evens.ranks, evens.process_set_id
    ([0, 2, 4], None)

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
    # Objects of earlier calls of an elastic training function, which this one has replaced: they end with it.
    _earlier: weakref.WeakSet[ProcessSet] | None = None

    def __init__(self, ranks_or_comm: Iterable[int] | Any, *, backend: Any = None):
        if backend is not None:
            self.backend = backend
        if hasattr(ranks_or_comm, "Get_rank") and hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
        elif callable(ranks_or_comm):
            self._ranks_of = ranks_or_comm
        else:
            self.ranks = _sorted_ranks(ranks_or_comm)

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

    def _register(self, set_id: int | None) -> None:
        """Set the engine's id; None: forget the registration. Called when the engine has changed the set."""
        for one in (self, *(self._earlier or ())):
            one.process_set_id, one.ranks = set_id, self.ranks

    def _replace(self, earlier: ProcessSet) -> None:
        """Take the place of a set with the same ranks, which stays as valid as this one."""
        self._earlier = weakref.WeakSet((earlier, *(earlier._earlier or ())))
        earlier._earlier = None
        self._register(earlier.process_set_id)

    def _members(self) -> list[int]:
        """The ranks of a set whose ranks are known."""
        assert self.ranks is not None
        return self.ranks

    def _resolve(self) -> ProcessSet:
        """This set, with the ranks that its function gives in this job. Raises ValueError for a rank that no job has."""
        if self._ranks_of is not None:
            self.ranks = _sorted_ranks(self._ranks_of(current_job.size()))
        for rank in self._members():
            if abs(rank) >= 1 << 31:
                raise ValueError(f"Rank {rank} of a new process set is not one of the ranks of this job.")
        return self

    # The job has agreed on a set, and sets are compared by identity: the copy of an object that holds a set holds the
    # same set.

    def __copy__(self) -> ProcessSet:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessSet:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        # Ids mean nothing to another job, nor after shutdown(). The ranks last.
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


def _sorted_ranks(ranks: Iterable[int]) -> list[int]:
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
        as_ints = []
    if len(as_ints) != len(members) or any(
        isinstance(r, (str, bytes)) or i != r for i, r in zip(as_ints, members, strict=True)
    ):
        raise ValueError(f"The ranks of a ProcessSet must be integers, but found {members!r}.")
    return sorted(as_ints)


global_process_set: ProcessSet = ProcessSet([])
global_process_set.process_set_id = 0
global_process_set.ranks = None


def temporary(process_set_id: int | None) -> ProcessSet:
    """A bare object that carries `process_set_id` and nothing else."""
    bare = ProcessSet.__new__(ProcessSet)
    bare.process_set_id = process_set_id
    return bare


def _of_ranks(ranks: tuple[int, ...], backend: Any = None) -> ProcessSet:
    """The set that a pickled set becomes: the registered one of these ranks, or else a new one."""
    known = next((s for s in registered() if s.ranks == list(ranks)), None)
    return known or ProcessSet(ranks, backend=backend)


# ------------------------------------------------------------------------------------------ workers of elastic jobs


def worker_id() -> int:
    """The id of this process in its elastic job, which never changes; in another job its rank. Raises ValueError in a job
    that is not elastic before init()."""
    channel = driver_channel.channel()
    return current_job.rank() if channel is None else channel.worker


def _is_elastic() -> bool:
    return driver_channel.channel() is not None


def _workers_by_rank() -> list[int]:
    """The ids of all workers of this world. A collective call of all ranks, once in a world."""
    job = current_job.get()
    if not _is_elastic():
        return list(range(job.world.size))
    if job.workers is None:
        job.workers = _gathered_integers([worker_id()], "allgather.horovod.workers")
    return job.workers


class Workers:
    """The ranks of some workers, for ``ProcessSet(Workers([0, 2]))``: as long as all of them are in the world.

    Args:
        numbers: ids of the workers, see worker_id(). In a job that is not elastic, ranks.

    Raises:
        ValueError: `numbers` is empty, or holds an id twice or one that no worker can have.
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


# ------------------------------------------------------------------------------------------ the registry of a job


@dataclass(frozen=True)
class Change:
    """What the program has asked for. `earlier`: the set that had come back from another world, and that `process_set`
    has replaced."""

    added: bool
    process_set: ProcessSet
    earlier: ProcessSet | None = None


class ProcessSets:
    """The process sets of one job, apart from the global one.

    Attributes:
        registered: the sets that have an id.
        named_in_init: those that init() was given.
        history: what the program has asked for since init(), in its order.
    """

    def __init__(self, job: current_job.Job) -> None:
        # Not the job, which refers to this object: the engine must end with shutdown(), not with a garbage collection.
        self._world, self._engine = job.world, job.engine
        self.registered: list[ProcessSet] = []
        self.named_in_init: list[ProcessSet] = []
        self.history: list[Change] = []
        # Sets of this world that are not registered, as members are missing.
        self._absent: list[ProcessSet] = []
        # By ranks: sets that have come back in another world, until the program asks for them again.
        self._unclaimed: dict[tuple[int, ...], list[ProcessSet]] = {}
        self._changes = threading.Lock()

    def begin(self, sets: Sequence[ProcessSet], entries: Sequence[int]) -> None:
        """After init(): fill in the global set, and register the sets that were named there; ``entries`` are their places
        in the list that the caller gave.

        A set that exists already (in a second init()) gets its id again. Raises ValueError for a set that is in the list
        twice or is the global one.
        """
        global_process_set.ranks = list(range(self._world.size))
        seen: list[list[int]] = [global_process_set.ranks]
        with report_failure("add_process_set", None, None):
            sets = [process_set._resolve() for process_set in sets]
        for index, process_set in zip(entries, sets, strict=True):
            if _may_equal_another(process_set):
                continue
            if process_set.ranks in seen:
                raise ValueError(
                    f"init(process_sets=...): entry {index}, {process_set}, holds the same ranks as an earlier entry or "
                    "as the global process set."
                )
            seen.append(process_set._members())
        known = {tuple(ranks): set_id for set_id, ranks in self._engine.process_sets().items()}
        for process_set in sets:
            set_id = known.get(tuple(process_set._members()))
            before = next((s for s in self.registered if set_id and s.process_set_id == set_id), None)
            if set_id is None:
                self.add(process_set)
            elif before is not None:  # of an earlier init(): one set, which ends for both objects
                self._replace(before, process_set)
            else:
                process_set._register(set_id)
                self.registered.append(process_set)
        self.named_in_init[:] = sets

    def end(self) -> None:
        """After shutdown(): no set has an id any more."""
        self._forget(list(self.registered))
        self._absent.clear()
        global_process_set.ranks = None
        global_process_set.mpi_comm = None

    def add(self, process_set: ProcessSet) -> ProcessSet | None:
        """Registers a set whose ranks are known. Returns the set that it replaces, if the program had not claimed that
        one yet."""
        if self._note_absent(process_set):
            return None
        with self._changes:
            earlier = self._claim(process_set)
            if earlier is not None:
                return earlier
            equal = self._equal(process_set) if _may_equal_another(process_set) else None
            if equal is not None:
                process_set._register(equal.process_set_id)
            else:
                ranks, own = process_set._members(), self._own_backends(process_set)

                def is_possible(sets: dict[int, list[int]]) -> bool:
                    distinct = len(set(ranks)) == len(ranks) > 0
                    return distinct and set(ranks) <= set(sets[0]) and ranks not in sets.values()

                process_set._register(
                    self._change(lambda: self._engine.add_process_set(ranks, *own), is_possible)
                )
            if not any(s is process_set for s in self.registered):
                self.registered.append(process_set)
        return None

    def remove(self, process_set: ProcessSet) -> list[ProcessSet]:
        """Ends a process set. Returns the objects that have ended."""
        if self.is_absent(process_set):
            # The program has removed a set whose members are missing.
            self._absent[:] = [known for known in self._absent if known is not process_set]
            return [process_set]
        with self._changes:
            set_id = process_set.process_set_id
            same = [s for s in self.registered if s.process_set_id == set_id]
            if set_id == 0 or (len(same) > 1 and any(s is process_set for s in same)):
                self._forget([process_set])  # the other sets of these members stay
                return [process_set]
            assert set_id is not None
            process_set._register(None)
            self._change(lambda: self._engine.remove_process_set(set_id), lambda sets: set_id in sets)
            # Another object may be the same set; its id will be another set's.
            ended = [s for s in self.registered if s is process_set or s.process_set_id == set_id]
            self._forget(ended)
        return ended

    def add_again(self, process_set: ProcessSet, asked_again: bool) -> None:
        """Registers a set in the next world of an elastic job. All ranks of the job call it, with the same sets in the
        same order. `asked_again`: the program will ask for the set by add_process_set()."""
        self.add(process_set._resolve())
        if asked_again and process_set.process_set_id is not None:
            self._unclaimed.setdefault(tuple(process_set._members()), []).append(process_set)

    def remove_again(self, process_set: ProcessSet) -> None:
        """Removes a set that the program had removed in another world of an elastic job. As add_again()."""
        if process_set.process_set_id is not None or self.is_absent(process_set):
            self.remove(process_set)

    def forget_removed(self) -> None:
        """After join(): forgets the sets that the other ranks have removed meanwhile. Their ids may be other sets'."""
        with self._changes:
            now = self._engine.process_sets()
            # A set without an id is being removed by its caller.
            known = [s for s in self.registered if s.process_set_id is not None]
            self._forget([s for s in known if now.get(s.process_set_id or 0) != s.ranks])

    def is_known(self, process_set: ProcessSet) -> bool:
        """Whether the set was added to this job, also where members are missing."""
        return self.is_absent(process_set) or any(s is process_set for s in self.registered)

    def is_absent(self, process_set: ProcessSet) -> bool:
        """Whether the set is not registered because members are missing in this world."""
        return any(known is process_set for known in self._absent)

    def _note_absent(self, process_set: ProcessSet) -> bool:
        """Whether members of a set whose ranks are known are missing in this world of an elastic job. Such a set is not
        registered; calls that use it raise ValueError."""
        if not _is_elastic():
            return False
        ranks = process_set.ranks
        absent = not ranks or ranks[-1] >= self._world.size
        if absent and not self.is_absent(process_set):
            self._absent.append(process_set)
        return absent

    def _own_backends(self, process_set: ProcessSet) -> tuple[Any, ...]:
        """The engine's arguments for a set with backends of its own: their configuration, and the choice as a text."""
        if process_set.backend is None:
            return ()
        from hvd_core.backends._selection import job as selection

        with report_failure("add_process_set", None, None):
            members = [rank for rank in process_set.ranks or () if 0 <= rank < self._world.size]
            return selection.for_set(current_job.get(), members, process_set.backend)

    def _claim(self, process_set: ProcessSet) -> ProcessSet | None:
        """The set of these ranks and backends that waits for the program to ask for it, and that `process_set` has
        replaced now."""
        waiting = self._unclaimed.get(tuple(process_set._members()), [])
        for earlier in waiting:
            if earlier.process_set_id is not None and earlier.backend == process_set.backend:
                waiting.remove(earlier)
                self._replace(earlier, process_set)
                return earlier
        return None

    def _replace(self, earlier: ProcessSet, process_set: ProcessSet) -> None:
        if earlier is not process_set:
            process_set._replace(earlier)
            self.registered[self.registered.index(earlier)] = process_set

    def _equal(self, process_set: ProcessSet) -> ProcessSet | None:
        """A set that has the same members in this world."""
        known = (s for s in (global_process_set, *self.registered) if s.process_set_id is not None)
        return next((s for s in known if s.ranks == process_set.ranks), None)

    def _change(self, submit: Callable[[], int], is_possible: Callable[[dict[int, list[int]]], bool]) -> int:
        """Changes the sets and waits for the change. Returns the id of the set.

        A change that all ranks asked for alike, and that cannot be made, is their common mistake: a ValueError.
        ``is_possible``: whether the change is possible with these sets, so that the ranks must have asked for different
        ones.
        """
        engine, handle = self._engine, None
        try:
            handle = submit()
            engine.wait(handle)
            return engine.process_set_of(handle)
        except JobEndedError as error:
            if engine.aborted:
                raise
            raise ValueError(f"Horovod is shutting down. {error}") from None
        except OperationFailedError as error:
            if is_possible(engine.process_sets()):
                raise
            raise ValueError(str(error)) from None
        finally:
            if handle is not None:
                engine.release(handle)

    def _forget(self, ended: list[ProcessSet]) -> None:
        """Forgets the registration of sets that have ended. The caller holds _changes, or the job has ended."""
        of_these = {id(s) for s in ended}
        self.registered[:] = [s for s in self.registered if id(s) not in of_these]
        for waiting in self._unclaimed.values():
            waiting[:] = [s for s in waiting if id(s) not in of_these]
        for process_set in ended:
            process_set._register(None)


def _may_equal_another(process_set: ProcessSet) -> bool:
    """Whether a set may have the ranks of another set, and share its id then. With some numbers of ranks two sets of an
    elastic job have the same members, or all ranks are members."""
    return process_set._ranks_of is not None or _is_elastic()


def registry() -> ProcessSets:
    """The registry of the job. Raises ValueError before init()."""
    return current_job.get().process_sets


def registered() -> list[ProcessSet]:
    """The sets that have an id in the job, apart from the global one; [] before init()."""
    job = current_job.current()
    return [] if job is None else list(job.process_sets.registered)


# ------------------------------------------------------------------------------------------ calls of programs


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set of ranks. All ranks of the job call it, members or not, with the same sets in the same order.

        evens = hvd.add_process_set([0, 2])
        hvd.allreduce(array, process_set=evens)

    Args:
        process_set: the set, or its ranks.

    Returns:
        The ProcessSet with its id, when all ranks have registered it and its members can use it.

    Raises:
        ValueError: process sets are not dynamic (HOROVOD_DYNAMIC_PROCESS_SETS), a set of these ranks exists, a rank is
            not one of the job's, or the engine is shutting down.
        NotImplementedError: the set is defined by an MPI communicator; those go to init(process_sets=[...]).
        HorovodInternalError: the ranks disagree about the set, the call failed on another rank, or the job breaks.
    """
    sets = registry()  # the error of a program that has not called init() comes first
    with report_failure("add_process_set", None, None):
        _require_dynamic()
        if not isinstance(process_set, ProcessSet):
            process_set = ProcessSet(process_set)
        if process_set.mpi_comm is not None:
            raise NotImplementedError(
                "Process sets that an MPI communicator defines can only be given to init(comm=<mpi4py communicator>, "
                "process_sets=[...]); give a list of ranks."
            )
        process_set._resolve()
    earlier = sets.add(process_set)
    sets.history.append(Change(True, process_set, earlier))
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """End a process set. All ranks of the job call it. Operations that are pending in the set fail.

    If another set of an elastic job has the same members in this world, that one stays.

    Args:
        process_set: of this job.

    Returns:
        False, and does nothing, for a set that is not registered and for the global one.

    Raises:
        ValueError, HorovodInternalError: as add_process_set().
    """
    with report_failure("remove_process_set", None, None):
        job = current_job.current()
        known = job is not None and job.process_sets.is_known(process_set)
        if process_set.process_set_id in (None, 0) and not known:
            return False
        sets = registry()
        _require_dynamic()
    sets.history.extend(Change(False, ended) for ended in sets.remove(process_set))
    return True


def _require_dynamic() -> None:
    if not flag_of(os.environ, "HOROVOD_DYNAMIC_PROCESS_SETS"):
        raise ValueError(_NEEDS_DYNAMIC)


# ------------------------------------------------------------------------------------------ ids, for front ends

# Whether a front end has put the id of a set into a function that it will not make again.
_in_functions = False


def note_in_function() -> None:
    """A front end puts the id of a set into a function that it will not make again."""
    global _in_functions
    _in_functions = True


def are_in_functions() -> bool:
    return _in_functions


def number_of(process_set: ProcessSet) -> int:
    """The engine's id of a process set.

    Raises:
        ValueError: `process_set` is not a ProcessSet, or is not registered.
    """
    set_id: int | None = getattr(process_set, "process_set_id", None)
    if set_id is None:
        raise ValueError(why_no_number(process_set))
    return set_id


def is_registered(set_id: int) -> bool:
    """Whether a process set of this job has this id."""
    return set_id == 0 or any(s.process_set_id == set_id for s in registered())


def why_no_number(process_set: Any) -> str:
    """The message of the ValueError for a value that has no id of a process set."""
    if not isinstance(process_set, ProcessSet):
        return (
            f"process_set must be an hvd.ProcessSet, but found {type(process_set).__name__}: {process_set!r:.80}. "
            "Leave it out for all ranks."
        )
    job = current_job.current()
    if job is not None and job.process_sets.is_absent(process_set):
        function = process_set._ranks_of
        which = f"ranks {process_set.ranks}" if function is None else f"{function!r}"
        return (
            f"Process set of {which}: not all of its members are in this world of the elastic job, which has "
            f"{job.world.size} ranks. Give the set as a function of the number of ranks, such as "
            "hvd.ProcessSet(lambda size: range(size // 2)), or leave it out while members are missing: its "
            "process_set_id is None then."
        )
    return (
        f"Process set provided does not exist, or has not been registered: {process_set}. "
        "Give it to init(process_sets=[...]) or to add_process_set() first."
    )


# ------------------------------------------------------------------------------------------ sets of MPI communicators
# In init(process_sets=[...]) of a job that was itself given a communicator. A program splits a communicator, and every
# rank names its part: one entry of the list may be several sets. All ranks exchange the members of their communicators,
# and register all sets in the same order.


def describe_sets(process_sets: Sequence[ProcessSet], job_comm: JobComm | None) -> str:
    """A text by which the ranks compare their lists.

    Raises:
        NotImplementedError: a communicator in a job that was not given one.
        ValueError: a communicator has processes that are not in the job.
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
    process_sets: Sequence[ProcessSet], job_comm: JobComm | None, size: int
) -> tuple[list[ProcessSet], list[int]]:
    """The sets to register, and for each its index in ``process_sets``. The caller's own objects know their ranks
    afterwards; sets that this rank is not in get new objects.

    A collective call of all ranks where ``process_sets`` has communicators.

    Raises:
        ValueError: on all ranks, when some members of a communicator have named another one, or none, in the same place.
    """
    by_comm = [i for i, process_set in enumerate(process_sets) if process_set.mpi_comm is not None]
    if not by_comm:
        return list(process_sets), list(range(len(process_sets)))
    describe_sets(process_sets, job_comm)  # a second init() has not checked them yet
    assert job_comm is not None
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
    numbers: Iterator[int] = iter(_gathered_integers(row, "allgather.horovod.process_sets"))
    return [[[next(numbers) for _ in range(next(numbers))] for _ in own] for _ in range(size)]


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
