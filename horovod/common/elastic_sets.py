"""Process sets that the program has added come back in the next world of an elastic job.

Sets that init() names are registered by init(), on new ranks too. Sets that were added before the training function are
added by new ranks before theirs: the other ranks add them at the same moment, right after init(). A new rank does not
know the sets that were added within the training function; rank 0 tells it, and all ranks add them before the function is
called. It asks for them again then, which costs nothing. One thread of a rank calls all of this.
"""

from __future__ import annotations

import logging

from horovod.common import elastic_shared
from hvd_core import changing_ranks, process_sets
from hvd_core.process_sets import ProcessSet

__all__ = ["add_outer", "begin_run", "note"]

_log = logging.getLogger("horovod")
_outer: list[ProcessSet] = []
_inner: list[ProcessSet] = []
# Whether the sets of this world are all there.
_complete = True
_numbers: dict[int, tuple[ProcessSet, int]] = {}


def begin_run() -> None:
    """The training function is about to be called for the first time."""
    _outer[:] = process_sets.added_later()
    _inner.clear()


def note() -> None:
    """Before the end of a world: remembers the sets that shall come back."""
    global _complete
    if not _complete:
        return
    now = process_sets.added_later()
    present, outer = {id(s) for s in now}, {id(s) for s in _outer}
    # In the order in which the program has added them, as a new rank will add them.
    _outer[:] = [s for s in _outer if id(s) in present]
    _inner[:] = [s for s in now if id(s) not in outer]
    _numbers.clear()
    _numbers.update({id(s): (s, s.process_set_id) for s in now if s.process_set_id is not None})
    _complete = False


def add_outer() -> None:
    """After init(): adds the sets that a new rank adds at this moment, too. Raises HorovodInternalError."""
    for process_set in _outer:
        _again(process_set, asked_again=False)


def _tell() -> list[list[int]]:
    return [s.ranks for s in _inner if s._ranks_of is None] if not _complete else []


def _hear(told: list) -> None:
    """Adds the sets of rank 0, which has the newest commit."""
    global _complete
    own = {tuple(s.ranks): s for s in _inner if s._ranks_of is None}
    for ranks in told[0]:
        _again(own.get(tuple(ranks)) or ProcessSet(ranks), asked_again=True)
    _complete = True


def _again(process_set: ProcessSet, asked_again: bool) -> None:
    process_sets.add_again(process_set, asked_again)
    _, before = _numbers.get(id(process_set), (None, None))
    changed = None not in (before, process_set.process_set_id) and before != process_set.process_set_id
    if changed and changing_ranks.are_in_functions():
        _log.warning(
            "horovod: %s had the number %d before the ranks changed. A tf.function that uses it must be made again.",
            process_set,
            before,
        )


elastic_shared.share("process_sets", _tell, _hear)
