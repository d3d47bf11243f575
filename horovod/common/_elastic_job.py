"""An elastic job outside of its training function: its launcher, agreements sent to new ranks, process sets.

Imports no framework, and no part of a state. One thread of a rank calls all of this.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from horovod.common.objects import allgather_object
from hvd_core._bootstrap import launchers
from hvd_core._bootstrap.launchers.identity import identify
from hvd_core._bootstrap.launchers.launcher import Launcher
from hvd_core._runtime import current_job, process_sets
from hvd_core._runtime.process_sets import Change, ProcessSet

_log = logging.getLogger("horovod")

_warned = False


def explanation(environ: Mapping[str, str]) -> str:
    """Why this job does not continue without a rank that has died, and what to do."""
    try:
        launcher = launchers.named(identify(environ).launcher) or Launcher()
    except ValueError:
        launcher = Launcher()  # init() reports it
    return f"horovod: this job is not elastic: {launcher.not_elastic}.\n  fix: {launcher.elastic_remedy}"


def ranks_may_change() -> bool:
    """Whether ranks may come and go under an optimizer, a tape or a graph that exists already. Launchers of elastic jobs
    set HOROVOD_ELASTIC."""
    return os.environ.get("HOROVOD_ELASTIC", "0") not in ("", "0")


def warn_once() -> None:
    """Logs on rank 0 of a job of several ranks, once, that hvd.elastic.run only calls the function."""
    global _warned
    if _warned or not current_job.is_initialized() or current_job.size() == 1:
        return
    _warned = True
    if current_job.rank() == 0:
        _log.warning(
            "%s\n  hvd.elastic.run calls the function once. States, commits and samplers work. If a rank dies, the job "
            "ends.",
            explanation(os.environ),
        )


# ---- Agreements that earlier ranks have made, exchanged before the state is sent
#
# A new rank traces its functions, where the others continue with functions that were traced in an earlier world, so it
# cannot exchange anything with them then. A part of a front end registers under a name with share(); the ranks exchange
# the values of all parts once in a world.

_parts: dict[str, tuple[Callable[[], Any], Callable[[list[Any]], None]]] = {}
# By name: values of parts that this rank has not imported yet.
_early: dict[str, list[Any]] = {}
_depth = 0


def share(name: str, value_of: Callable[[], Any], receive: Callable[[list[Any]], None]) -> None:
    """Exchange the values of a part.

    Args:
        name: of the part, the same on all ranks.
        value_of: returns this rank's value, which can be pickled.
        receive: called with the values of the ranks that have the part, in rank order.
    """
    _parts[name] = value_of, receive
    if name in _early:
        receive(_early.pop(name))


def exchange() -> None:
    """Exchange the values of all parts. A collective call of all ranks. Raises HorovodInternalError: a rank is gone."""
    own = {name: value_of() for name, (value_of, _) in _parts.items()}
    of_ranks = allgather_object(own, "horovod.elastic.shared")
    _early.clear()
    for name in sorted({name for of_rank in of_ranks for name in of_rank}):
        values = [of_rank[name] for of_rank in of_ranks if name in of_rank]
        if name in _parts:
            _parts[name][1](values)
        else:
            _early[name] = values


@contextlib.contextmanager
def within_run() -> Iterator[None]:
    """A context in which the training function is called."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def is_within_run() -> bool:
    """Whether a training function is being executed. Graphs and optimizers that it makes are made again in each world."""
    return _depth > 0


# ---- Process sets that the program has added come back in the next world
#
# Sets that init() names are registered by init(), on new ranks too. What the program has done with sets before the
# training function is done by new ranks before theirs: the other ranks repeat it at the same moment, right after
# init(). A new rank does not know what was done within the training function. Rank 0 sends it which of those sets are
# to be removed, and which sets are there besides; all ranks do that before the function is called. The function asks
# for these sets again then, which costs nothing.

_outer: list[Change] = []  # before the training function, in the order of the program
_removed: list[ProcessSet] = []  # of the sets of _outer_sets(), those that the function has removed
_inner: list[ProcessSet] = []  # those that the function has added
_noted_changes = 0  # so many changes of this world are in the lists above
_worlds = 1
# Whether the sets of this world are all there.
_complete = True
_numbers: dict[int, tuple[ProcessSet, int]] = {}


def begin_run() -> None:
    """The training function is about to be called for the first time."""
    global _noted_changes
    if _worlds == 1:  # later no new rank can come that would begin with this function
        _outer[:] = process_sets.registry().history
        _noted_changes = len(_outer)
        _inner.clear()
        _removed.clear()


def remember_sets() -> None:
    """Before the end of a world: remembers the sets that shall come back."""
    global _complete, _noted_changes, _worlds
    if not _complete:
        return
    for change in process_sets.registry().history[_noted_changes:]:
        if change.added:
            _note_added(change)
        else:
            _note_removed(change.process_set)
    _numbers.clear()
    _numbers.update(
        {id(s): (s, s.process_set_id) for s in process_sets.registered() if s.process_set_id is not None}
    )
    _complete = False
    _noted_changes = 0
    _worlds += 1


def _note_added(change: Change) -> None:
    process_set = change.process_set
    removed = _place(process_set, _removed)
    if removed is not None:
        del _removed[removed]
    elif _place(process_set, _outer_sets()) is None:
        place = _place(change.earlier, _inner)
        if place is not None:
            _inner[place] = process_set
        elif _place(process_set, _inner) is None:
            _inner.append(process_set)


def _note_removed(process_set: ProcessSet) -> None:
    place = _place(process_set, _inner)
    if place is not None:
        del _inner[place]
    elif _place(process_set, _outer_sets()) is not None and _place(process_set, _removed) is None:
        _removed.append(process_set)


def _place(process_set: ProcessSet | None, sets: list[ProcessSet]) -> int | None:
    return next((place for place, known in enumerate(sets) if known is process_set), None)


def _outer_sets() -> list[ProcessSet]:
    """The sets that are there before the training function. Equal on all ranks, which have executed the same lines."""
    found = list(process_sets.registry().named_in_init)
    for change in _outer:
        if change.added:
            found.append(change.process_set)
        else:
            found = [known for known in found if known is not change.process_set]
    return found


def repeat_outer_sets() -> None:
    """After init(): does with sets what a new rank does at this moment, too. Raises HorovodInternalError."""
    for change in _outer:
        if change.added:
            _again(change.process_set, asked_again=False)
        else:
            process_sets.registry().remove_again(change.process_set)


def _changed_sets() -> dict[str, list[Any]]:
    if _complete:
        return {"removed": [], "added": []}
    outer = _outer_sets()
    return {
        "removed": [_place(process_set, outer) for process_set in _removed],
        # Sets that a function gives are added by the program, which has the function.
        "added": [(s.ranks, s.backend) for s in _inner if s._ranks_of is None],
    }


def _receive_sets(of_ranks: list[Any]) -> None:
    """Does what rank 0 has sent, which has the newest commit."""
    global _complete
    outer = _outer_sets()
    _removed[:] = [outer[place] for place in of_ranks[0]["removed"]]
    for process_set in _removed:
        process_sets.registry().remove_again(process_set)
    own = [s for s in _inner if s._ranks_of is None]
    _inner.clear()
    for ranks, backend in of_ranks[0]["added"]:
        found = next((s for s in own if s.ranks == ranks), None)
        if found is not None:
            own = [known for known in own if known is not found]
        _inner.append(found or ProcessSet(ranks, backend=backend))
        _again(_inner[-1], asked_again=True)
    _complete = True


def _again(process_set: ProcessSet, asked_again: bool) -> None:
    process_sets.registry().add_again(process_set, asked_again)
    _, before = _numbers.get(id(process_set), (None, None))
    changed = None not in (before, process_set.process_set_id) and before != process_set.process_set_id
    if changed and process_sets.are_in_functions():
        _log.warning(
            "horovod: %s had the number %d before the ranks changed. A tf.function that uses it must be made again.",
            process_set,
            before,
        )


share("process_sets", _changed_sets, _receive_sets)
