"""Which member is the last to submit an operation: found from what each member knows of it.

The submissions of all members precede the entry of their batch on each of them. So two members speak of the same batch if
each one's submission precedes the other's entry. Members are the ranks of a host, or the hosts of a job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from hvd_core._observe.watch.rank_figures import Request

_MOST_NAMES, _MOST_ROUNDS = 20_000, 512
_KEPT_LATE = 1_000


@dataclass(frozen=True, slots=True)
class Part:
    """What a member knows of a batch: its last submission and the rank that made it, the submission before that if there
    are several, the entry. Times of one clock in nanoseconds."""

    submitted: int
    rank: int
    before: int | None
    entered: int


@dataclass
class Straggler:
    """How often a rank was the last one, and how long behind the one before."""

    last: int = 0
    behind: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT_LATE))


class Stragglers:
    """All stragglers by their ranks."""

    def __init__(self) -> None:
        self._found: dict[int, Straggler] = {}

    def note(self, part: Part) -> None:
        """A batch of which all parts are known."""
        if part.before is not None:
            straggler = self._found.setdefault(part.rank, Straggler())
            straggler.last += 1
            straggler.behind.append(part.submitted - part.before)

    def shown(self) -> list[list]:
        """[rank, how often, median microseconds behind], the most frequent one first."""
        found = sorted(self._found.items(), key=lambda item: -item[1].last)
        return [[rank, s.last, median(s.behind) / 1000] for rank, s in found]


class Rounds:
    """The batches of which some parts are known.

    Args:
        members: how many members there are now.
        closed: called with the request and what all members together know, for each batch that is whole or will never be.
    """

    def __init__(self, members: Callable[[], int], closed: Callable[[Request, Part], None]) -> None:
        self._members, self._closed = members, closed
        self._rounds: dict[Request, deque[dict[int, Part]]] = {}

    def entered(self, member: int, request: Request, part: Part, since: int) -> None:
        """A member has got the entry of a batch. Batches whose entries are older than ``since`` never become whole."""
        if request not in self._rounds and len(self._rounds) >= _MOST_NAMES:
            self._rounds.clear()
        rounds = self._rounds.setdefault(request, deque(maxlen=_MOST_ROUNDS))
        while rounds and all(known.entered < since for known in rounds[0].values()):
            self._close(request, rounds.popleft())
        batch = None
        for other in reversed(rounds):
            if member in other:
                break  # all earlier ones precede this batch
            if all(p.submitted <= part.entered and part.submitted <= p.entered for p in other.values()):
                batch = other
        if batch is None:
            batch = {}
            rounds.append(batch)
        batch[member] = part
        if len(batch) == self._members():
            # Earlier ones lack a member, which is not in the process set or has lost events.
            while rounds:
                first = rounds.popleft()
                self._close(request, first)
                if first is batch:
                    break

    def _close(self, request: Request, batch: dict[int, Part]) -> None:
        parts = sorted(batch.values(), key=lambda part: (part.submitted, part.rank))
        last = parts[-1]
        before = [part.submitted for part in parts[:-1]] + ([] if last.before is None else [last.before])
        entered = min(part.entered for part in parts)
        self._closed(request, Part(last.submitted, last.rank, max(before, default=None), entered))
