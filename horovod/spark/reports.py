"""What the tasks of a Spark job leave in the job's store for the driver: that they have begun, and why ranks have failed.

Spark itself tells the driver only that some task has failed, with a text of 200 lines. The store belongs to the driver
and admits only processes that know the job's secret, so unpickling trusts only processes of this job. Any thread.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable, Sequence

from horovod._runner.failures import EndedRanks, RankFailure
from horovod._runner.functions import get, put
from horovod.spark.placement import Place, TaskFacts
from hvd_core._base.sockets import BootstrapError
from hvd_core._bootstrap.store import StoreClient

_BEGUN = "spark/begun"
_CAUSE = "spark/cause"
_FAILURES = "spark/failures"
_ENDED = "spark/ended"
_READ_S = 5.0


class RankEnds(EndedRanks):
    """EndedRanks of several tasks, which share the numbers of their notes."""

    def tell(self, rank: int, code: int, host: str | None) -> None:
        """As EndedRanks.tell()."""
        try:
            self._told = self._connected().add(_ENDED, 1) - 1
        except (OSError, RuntimeError):
            return
        super().tell(rank, code, host)


def bereaved(address: str, secret: bytes, ranks: Iterable[int], encrypted: bool | None = None) -> set[int]:
    """Those of `ranks` that reported another rank's failure before their own."""
    with contextlib.closing(RankEnds(address, secret, encrypted)) as ends:
        return ends.bereaved(ranks)


def note_begun(store: StoreClient, tasks: Sequence[TaskFacts], places: Sequence[Place]) -> None:
    """All tasks run. Called by one of them, with the facts and the places of all, in the order of the tasks."""
    put(store, _BEGUN, pickle.dumps([(facts.host, place.slot.rank) for facts, place in zip(tasks, places)]))


def begun(store: StoreClient) -> list[tuple[str, int]] | None:
    """(host, rank) of each task, once all tasks run."""
    try:
        store.get(f"{_BEGUN}/parts", 0)
        return pickle.loads(get(store, _BEGUN, _READ_S))
    except BootstrapError:
        return None


def note_failure(store: StoreClient, failure: RankFailure, host: str, python: str) -> None:
    """Keeps a rank's failure for the driver."""
    try:
        error = pickle.dumps(failure.error)
    except Exception:  # it holds a lock, a socket, ...
        error = pickle.dumps(None)
    # The exception apart: its class may be unknown to the driver.
    said = (failure.rank, failure.code, failure.text, failure.bereaved, error, host, python)
    put(store, f"{_FAILURES}/{store.add(_FAILURES, 1)}", pickle.dumps(said))
    if not failure.bereaved:
        store.set(_CAUSE, b"")


def await_cause(store: StoreClient, seconds: float) -> None:
    """Waits until a rank has told a failure of its own. Spark ends all tasks as soon as one fails: the task of a bereaved
    rank must not be the first."""
    try:
        store.get(_CAUSE, seconds)
    except BootstrapError:
        pass


def failures(store: StoreClient) -> list[tuple[RankFailure, str, str]]:
    """(failure, host, Python) of the ranks that have failed, in the order in which they told it."""
    found = []
    try:
        for number in range(store.add(_FAILURES, 0)):
            rank, code, text, bereaved, error, host, python = pickle.loads(
                get(store, f"{_FAILURES}/{number + 1}", _READ_S)
            )
            found.append((RankFailure(rank, code, text, _loaded(error), bereaved), host, python))
    except BootstrapError:
        pass  # a task was ended while it told its failure
    return found


def _loaded(data: bytes) -> BaseException | None:
    try:
        return pickle.loads(data)
    except Exception:  # a class that only the ranks know
        return None
