"""What ranks of an elastic job tell each other before the state is sent: agreements that earlier ranks have made.

A new rank traces its functions, where the others go on with functions that were traced in an earlier world, so it cannot
ask them anything then. A part of a front end registers under a name with share(); the ranks exchange the values of all
parts once in a world. One thread of a rank calls all of this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from horovod.common.objects import allgather_object

__all__ = ["exchange", "is_within_run", "share", "within_run"]

_parts: dict[str, tuple[Callable[[], Any], Callable[[list], None]]] = {}
# By name: values of parts that this rank has not imported yet.
_unheard: dict[str, list] = {}
_depth = 0


def share(name: str, tell: Callable[[], Any], hear: Callable[[list], None]) -> None:
    """Exchange the values of a part.

    Args:
        name: of the part, the same on all ranks.
        tell: returns this rank's value, which can be pickled.
        hear: called with the values of the ranks that have the part, in rank order.
    """
    _parts[name] = tell, hear
    if name in _unheard:
        hear(_unheard.pop(name))


def exchange() -> None:
    """Exchange the values of all parts. A collective call of all ranks. Raises HorovodInternalError: a rank is gone."""
    told = allgather_object({name: tell() for name, (tell, _) in _parts.items()}, "horovod.elastic.shared")
    _unheard.clear()
    for name in sorted({name for of_rank in told for name in of_rank}):
        values = [of_rank[name] for of_rank in told if name in of_rank]
        if name in _parts:
            _parts[name][1](values)
        else:
            _unheard[name] = values


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
