"""Changes of the process sets: which sets a job has, from init() to shutdown().

All ranks of a job change them together, with the same calls in the same order. Any thread may call; changes take turns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hvd_core._runtime import changing_ranks, current_job
from hvd_core._runtime.process_set import (
    ProcessSet,
    global_process_set,
    ids_and_ranks,
    registered,
    sorted_ranks,
)
from hvd_core._runtime.refusals import reported
from hvd_core.errors import HorovodInternalError, JobEndedError, OperationFailedError

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]

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
    with reported("add_process_set", None, None):
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
    with reported("remove_process_set", None, None):
        known = changing_ranks.is_away(process_set) or any(s is process_set for s in registered)
        if process_set.process_set_id in (None, 0) and not known:
            return False
        engine = current_job.engine()
        _require_dynamic()
    _history.extend(Change(False, ended) for ended in _remove(engine, process_set))
    return True


def _remove(engine: Any, process_set: ProcessSet) -> list[ProcessSet]:
    """Ends a process set. Returns the objects that have ended."""
    if changing_ranks.is_away(process_set):
        changing_ranks.forget_away(process_set)
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
        process_set.ranks = sorted_ranks(process_set._ranks_of(current_job.size()))
    for rank in process_set.ranks:
        if abs(rank) >= 1 << 31:
            raise ValueError(f"Rank {rank} of a new process set is not one of the ranks of this job.")
    return process_set


def _add(engine: Any, process_set: ProcessSet) -> ProcessSet | None:
    """Registers a set. Returns the set in whose place it stands now, if that was not claimed by the program yet."""
    if changing_ranks.may_be_away(process_set):
        return None
    with _changes:
        earlier = _claimed(process_set)
        if earlier is not None:
            return earlier
        equal = _equal(process_set) if changing_ranks.may_be_equal(process_set) else None
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

    with reported("add_process_set", None, None):
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
    if process_set.process_set_id is not None or changing_ranks.is_away(process_set):
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
    changing_ranks.forget()
    global_process_set.ranks = None
    global_process_set.mpi_comm = None
