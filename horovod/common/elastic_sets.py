"""Process sets that the program has added come back in the next world of an elastic job.

Sets that init() names are registered by init(), on new ranks too. What the program has done with sets before the training
function is done by new ranks before theirs: the other ranks repeat it at the same moment, right after init(). A new rank
does not know what was done within the training function. Rank 0 tells it which of those sets are to be removed, and which
sets are there besides; all ranks do that before the function is called. The function asks for these sets again then,
which costs nothing. One thread of a rank calls all of this.
"""

from __future__ import annotations

import logging

from horovod.common import elastic_shared
from hvd_core._runtime import process_sets
from hvd_core._runtime.process_sets import Change, ProcessSet, registered

__all__ = ["begin_run", "note", "repeat_outer"]

_log = logging.getLogger("horovod")
_outer: list[Change] = []  # before the training function, in the order of the program
_removed: list[ProcessSet] = []  # of the sets of _outer_sets(), those that the function has removed
_inner: list[ProcessSet] = []  # those that the function has added
_told_changes = 0  # so many changes of this world are in the lists above
_worlds = 1
# Whether the sets of this world are all there.
_complete = True
_numbers: dict[int, tuple[ProcessSet, int]] = {}


def begin_run() -> None:
    """The training function is about to be called for the first time."""
    global _told_changes
    if _worlds == 1:  # later no new rank can come that would begin with this function
        _outer[:] = process_sets.history()
        _told_changes = len(_outer)
        _inner.clear()
        _removed.clear()


def note() -> None:
    """Before the end of a world: remembers the sets that shall come back."""
    global _complete, _told_changes, _worlds
    if not _complete:
        return
    for change in process_sets.history()[_told_changes:]:
        if change.added:
            _note_added(change)
        else:
            _note_removed(change.process_set)
    _numbers.clear()
    _numbers.update({id(s): (s, s.process_set_id) for s in registered if s.process_set_id is not None})
    _complete = False
    _told_changes = 0
    _worlds += 1


def _note_added(change: Change) -> None:
    process_set = change.process_set
    if _place(process_set, _removed) is not None:
        del _removed[_place(process_set, _removed)]
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
    found = process_sets.named_in_init()
    for change in _outer:
        if change.added:
            found.append(change.process_set)
        else:
            del found[_place(change.process_set, found)]
    return found


def repeat_outer() -> None:
    """After init(): does with sets what a new rank does at this moment, too. Raises HorovodInternalError."""
    for change in _outer:
        if change.added:
            _again(change.process_set, asked_again=False)
        else:
            process_sets.remove_again(change.process_set)


def _tell() -> dict[str, list]:
    if _complete:
        return {"removed": [], "added": []}
    outer = _outer_sets()
    return {
        "removed": [_place(process_set, outer) for process_set in _removed],
        # Sets that a function gives are added by the program, which has the function.
        "added": [(s.ranks, s.backend) for s in _inner if s._ranks_of is None],
    }


def _hear(told: list) -> None:
    """Does what rank 0 says, which has the newest commit."""
    global _complete
    outer = _outer_sets()
    _removed[:] = [outer[place] for place in told[0]["removed"]]
    for process_set in _removed:
        process_sets.remove_again(process_set)
    own = [s for s in _inner if s._ranks_of is None]
    _inner.clear()
    for ranks, backend in told[0]["added"]:
        found = next((s for s in own if s.ranks == ranks), None)
        if found is not None:
            del own[_place(found, own)]
        _inner.append(found or ProcessSet(ranks, backend=backend))
        _again(_inner[-1], asked_again=True)
    _complete = True


def _again(process_set: ProcessSet, asked_again: bool) -> None:
    process_sets.add_again(process_set, asked_again)
    _, before = _numbers.get(id(process_set), (None, None))
    changed = None not in (before, process_set.process_set_id) and before != process_set.process_set_id
    if changed and process_sets.are_in_functions():
        _log.warning(
            "horovod: %s had the number %d before the ranks changed. A tf.function that uses it must be made again.",
            process_set,
            before,
        )


elastic_shared.share("process_sets", _tell, _hear)
