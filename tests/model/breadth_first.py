"""The walk of both models: all states that can be reached, breadth first, to the first mistake. One thread."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple


class Outcome(NamedTuple):
    """`error` is None if all outcomes are right; `trace` is the shortest list of moves that leads to the error."""

    error: str | None
    trace: list[str]
    states: int
    complete: bool  # False: the limit on states was reached first


def breadth_first(
    start: Hashable,
    moves: Callable[[Hashable], Iterable[tuple[str, Hashable]]],
    check_end: Callable[[Hashable], None],
    mistake: type[Exception],
    limit: int,
) -> Outcome:
    """`moves`: the label and the next state of each move from a state. `check_end` is called where no move is possible.

    Both raise `mistake` where something is wrong.
    """
    came_from: dict[Hashable, Hashable] = {start: None}
    queue = deque([start])
    # The collector of cycles would look again and again at a million tuples. The few cycles, between the parts of states
    # that remember each other, go after the walk.
    collects = gc.isenabled()
    gc.disable()
    try:
        while queue:
            if len(came_from) > limit:
                return Outcome(None, [], len(came_from), False)
            s = queue.popleft()
            is_end = True
            try:
                for _, after in moves(s):
                    is_end = False
                    if after not in came_from:
                        came_from[after] = s
                        queue.append(after)
                if is_end:
                    check_end(s)
            except mistake as e:
                return Outcome(str(e), _trace(came_from, s, moves), len(came_from), True)
        return Outcome(None, [], len(came_from), True)
    finally:
        if collects:
            gc.enable()


def _trace(came_from: dict, s: Hashable, moves: Callable) -> list[str]:
    """The labels on the way to a state. No label is kept in the walk: they are read off the moves once more."""
    steps = []
    while (before := came_from[s]) is not None:
        steps.append(next(label for label, after in moves(before) if after == s))
        s = before
    return steps[::-1]
