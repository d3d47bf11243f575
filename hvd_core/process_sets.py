"""Process sets: which ranks take part in an operation.

``global_process_set`` holds all ranks and has id 0. Other sets are named in ``init(process_sets=[...])``, or added and
removed later by all ranks together. Objects are compared by identity, as programs written for Horovod expect. Any
thread may call; changes of sets take turns. ``changing_ranks`` has what is special to elastic jobs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from hvd_core import changing_ranks, current_job
from hvd_core.errors import HorovodInternalError, JobEndedError, OperationFailedError
from hvd_core.frontend.refusals import reported

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]

_NEEDS_DYNAMIC = (
    "Process sets can only be added or removed after init() when HOROVOD_DYNAMIC_PROCESS_SETS=1 is set (or with "
    'init(process_sets="dynamic")); otherwise give them all to init(process_sets=[...]).'
)


class ProcessSet:
    """A set of ranks.

    Args:
        ranks_or_comm: the member ranks (ints, in any order), or an ``mpi4py.MPI.Comm``; or a function that is called with
            the number of ranks of the job and returns the member ranks, the same on all ranks.

    Attributes:
        process_set_id: int once registered with the engine, None before.
        ranks: sorted list of global ranks, None while unknown. Those of a function are known once the set is registered.
        mpi_comm: the MPI communicator that defines the set, if one does.

    Raises:
        ValueError: `ranks_or_comm` holds a value that is not an int, or is neither iterable nor a communicator nor a
            function.
    """

    __module__ = "horovod.common.process_sets"  # where users know it, in tracebacks and for pickle

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None
    _ranks_of: Callable[[int], Iterable[int]] | None = None

    def __init__(self, ranks_or_comm: Iterable[int] | Any):
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

    def _invalidate(self) -> None:
        """Forget the registration. Called when the engine has removed the set."""
        self.process_set_id = None

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
            return _of_ranks, (tuple(self.ranks),)
        if self.mpi_comm is not None:
            raise TypeError(
                "A ProcessSet made from an MPI communicator can be pickled once init() has found out its ranks."
            )
        return temporary, (self.process_set_id,)

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"
        )

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
        as_ints = None
    if as_ints is None or any(isinstance(r, (str, bytes)) or i != r for i, r in zip(as_ints, members)):
        raise ValueError(f"The ranks of a ProcessSet must be integers, but found {members!r}.")
    return sorted(as_ints)


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0
global_process_set.ranks = None

_changes = threading.Lock()
# (engine, question, handle, set) of a change that is under way, and whose caller was interrupted; the set is None for a
# removal.
_left: tuple[Any, tuple[str, Any], int, ProcessSet | None] | None = None
# By ranks: sets whose addition was interrupted and then ended by another change, or that have come back in another world,
# until the program asks for them again.
_added_meanwhile: dict[tuple[int, ...], ProcessSet] = {}
_registered: list[ProcessSet] = []
_named_in_init: list[ProcessSet] = []


def temporary(process_set_id: int | None) -> ProcessSet:
    """A bare object that carries `process_set_id` and nothing else."""
    bare = ProcessSet.__new__(ProcessSet)
    bare.process_set_id = process_set_id
    return bare


def _of_ranks(ranks: tuple[int, ...]) -> ProcessSet:
    """The set that a pickled set becomes: the registered one of these ranks, or else a new one."""
    return next((s for s in list(_registered) if s.ranks == list(ranks)), None) or ProcessSet(ranks)


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
    return number == 0 or any(s.process_set_id == number for s in list(_registered))


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
    with reported("add_process_set", None, None):
        _require_dynamic()
        process_set = _ready(process_set)
    return _add(engine, process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """End a process set. All ranks of the job call it. Operations that are pending in the set fail.

    Returns False, and does nothing, for a set that is not registered and for the global one. Raises as
    add_process_set() does.
    """
    with reported("remove_process_set", None, None):
        number = process_set.process_set_id
        if number in (None, 0):
            return False
        engine = current_job.engine()
        _require_dynamic()
    process_set._invalidate()
    with _changes:
        try:
            _change(engine, ("remove", number), lambda: engine.remove_process_set(number))
        except BaseException:
            if _left is not None:  # interrupted: the program may ask again
                process_set.process_set_id = number
            raise
        # Other objects may stand for the same set; its number will be another set's.
        for ended in [s for s in _registered if s is process_set or s.process_set_id == number]:
            ended._invalidate()
            _registered.remove(ended)
    return True


def _require_dynamic() -> None:
    text = os.environ.get("HOROVOD_DYNAMIC_PROCESS_SETS", "").strip().lower()
    if text in ("", "0", "false", "no", "off"):
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
        process_set.ranks = _sorted_ranks(process_set._ranks_of(current_job.size()))
    for rank in process_set.ranks:
        if abs(rank) >= 1 << 31:
            raise ValueError(f"Rank {rank} of a new process set is not one of the ranks of this job.")
    return process_set


def _add(engine: Any, process_set: ProcessSet) -> ProcessSet:
    if changing_ranks.may_be_away(process_set):
        return process_set
    with _changes:
        equal = _registered_with(process_set.ranks) if changing_ranks.may_be_equal(process_set) else None
        if equal is not None:
            process_set.process_set_id = equal.process_set_id
            _registered.append(process_set)
            return process_set
        earlier = _added_meanwhile.pop(tuple(process_set.ranks), None)
        if earlier is not None and earlier.process_set_id is not None:
            process_set.process_set_id = earlier.process_set_id
            if process_set is not earlier:
                _registered.append(process_set)
            return process_set
        question = ("add", process_set.ranks)
        process_set.process_set_id = _change(
            engine, question, lambda: engine.add_process_set(process_set.ranks), process_set
        )
        _registered.append(process_set)
    return process_set


def _registered_with(ranks: list[int]) -> ProcessSet | None:
    known = (s for s in (global_process_set, *_registered) if s.process_set_id is not None)
    return next((s for s in known if s.ranks == ranks), None)


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
                added.process_set_id = engine.process_set_of(handle)
                _registered.append(added)
                _added_meanwhile[tuple(added.ranks)] = added
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
    ranks = sorted(subject)
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
    with reported("add_process_set", None, None):
        sets = [_checked(process_set) for process_set in sets]
    for index, process_set in zip(entries, sets, strict=True):
        if changing_ranks.may_be_equal(process_set):
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
        if number is None:
            _add(current_job.engine(), process_set)
        else:
            process_set.process_set_id = number
            _registered.append(process_set)
    _named_in_init[:] = sets


def added_later() -> list[ProcessSet]:
    """The sets that are registered, or would be if their members were there, in the order in which they were added.
    Without those that init() has named."""
    first = {id(s) for s in _named_in_init}
    return [s for s in (*_registered, *changing_ranks.away_sets()) if id(s) not in first]


def add_again(process_set: ProcessSet, asked_again: bool) -> None:
    """Register a set in the next world of an elastic job. All ranks of the job call it, with the same sets in the same
    order. `asked_again`: the program will ask for the set by add_process_set()."""
    _add(current_job.engine(), _checked(process_set))
    if asked_again and process_set.process_set_id is not None:
        _added_meanwhile[tuple(process_set.ranks)] = process_set


def forget_removed() -> None:
    """After join(): forget the sets that the other ranks have removed meanwhile."""
    engine = current_job.engine()
    with _changes:
        _forget_removed(engine)


def _forget_removed(engine: Any) -> None:
    """Forget the sets that have been removed. Their numbers may be other sets'. The caller holds _changes."""
    now = engine.process_sets()
    # A set without a number is being removed by its caller.
    known = [s for s in _registered if s.process_set_id is not None]
    for removed in [s for s in known if now.get(s.process_set_id) != s.ranks]:
        removed._invalidate()
        _registered.remove(removed)


def end() -> None:
    """After shutdown(): forget all sets."""
    global _left
    _left = None
    _added_meanwhile.clear()
    for process_set in _registered:
        process_set._invalidate()
    _registered.clear()
    _named_in_init.clear()
    changing_ranks.forget()
    global_process_set.ranks = None
    global_process_set.mpi_comm = None
