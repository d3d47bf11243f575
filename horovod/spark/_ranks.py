"""Ranks of a Spark job: which rank each task runs, its devices, its processes, and what the tasks report to the driver.

The places are pure functions, equal on all tasks. The ranks of a host are consecutive, and the host of task 0 comes
first, as with the original's `horovod.spark.run`.

A rank is a separate process, as Spark uses its Python workers again for other tasks and kills them without ceremony.
The supervisor of the launcher (horovod/_runner/supervisor.py) makes sure that no rank outlives this process. One thread.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from horovod._runner.environment import (
    backend_environment,
    is_this_python,
    job_environment,
    python_path,
    rank_environment,
    store_environment,
)
from horovod._runner.failures import EndedRanks, RankFailure, failure_of
from horovod._runner.functions import FunctionMemory, get, put, read_all, write_all
from horovod._runner.hosts import HostInfo, SlotInfo, get_host_assignments
from horovod._runner.job import Job, Outcome
from horovod._runner.local_ranks import LocalRanks
from horovod._runner.output import Output
from horovod._runner.site import RankSpec
from horovod.spark._channel import DESCRIPTOR, LineReader
from hvd_core._base.sockets import BootstrapError
from hvd_core._bootstrap.store import StoreClient


@dataclass(frozen=True)
class TaskFacts:
    """One task, as it describes itself to the others. `space`: differs between containers of one host. `devices`: the
    addresses of the GPUs that Spark has given to the task."""

    host: str
    space: str
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """The rank of one task. `devices`: what its process sees; None if Spark has given it none. `own_devices`: those of
    its task alone."""

    slot: SlotInfo
    devices: tuple[str, ...] | None
    own_devices: tuple[str, ...] = ()


def assign(tasks: Sequence[TaskFacts]) -> list[Place]:
    """The place of each task, in the order of the tasks."""
    groups: dict[tuple[str, str], list[int]] = {}
    for number, facts in enumerate(tasks):
        groups.setdefault((facts.host, facts.space), []).append(number)
    hosts = [HostInfo(host, len(members)) for (host, _), members in groups.items()]
    slots = iter(get_host_assignments(hosts, len(tasks)))
    places: dict[int, Place] = {}
    for members in groups.values():
        devices = _devices([tasks[number].devices for number in members])
        for number in members:
            places[number] = Place(next(slots), devices, tasks[number].devices)
    return [places[number] for number in range(len(tasks))]


def _devices(given: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The devices that all ranks of a host see. Programs choose one by their local rank, so that the first device of
    local rank n is at place n; further ones come after these."""
    if not all(given):
        return None
    firsts = [devices[0] for devices in given]
    return tuple(firsts + [device for devices in given for device in devices[1:]])


# ---- Processes

# The addresses of the GPUs that Spark has given to the rank's task.
DEVICES = "HOROVOD_TASK_DEVICES"
# A rank that makes a Spark session of its own must not take itself for an executor; and the secrets of Spark's own
# connections are not the rank's.
_OF_SPARK = re.compile(r"_?(PY)?SPARK_.*|PYTHON_(WORKER|UDF|DAEMON|PLANNER)_.*")


class RankJob(Job):
    """`on_output(rank, stream, data)`, if given, gets the ranks' output besides `output`; `on_message(rank, text)` the
    texts of log_to_driver()."""

    def __init__(
        self,
        site: LocalRanks,
        output: Output,
        ends: EndedRanks,
        on_message: Callable[[int, str], None],
        on_output: Callable[[int, int, bytes], None] | None = None,
    ) -> None:
        super().__init__([site], output, ends=ends)
        self._on_message, self._on_output = on_message, on_output
        self._readers = {rank: LineReader() for rank in site.ranks}

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """As Job.output()."""
        super().output(rank, stream, data)
        if self._on_output is not None:
            self._on_output(rank, stream, data)

    def message(self, rank: int, data: bytes) -> None:
        """Called by the site; see Listener."""
        for text in self._readers[rank].feed(data):
            self._on_message(rank, text)


class Ranks:
    """The processes of some ranks of a job. `function`: the pickled (function, args, kwargs); `variables`: of all ranks;
    `python`: their interpreter. close() when the results were read."""

    def __init__(
        self,
        places: Sequence[Place],
        function: bytes,
        variables: Mapping[str, str],
        python: str | None,
        store: str,
        secret: bytes,
    ) -> None:
        self._memory = FunctionMemory(place.slot.rank for place in places)
        write_all(self._memory.function, function)
        env = {
            **base_environment(os.environ, variables),
            **store_environment(store, secret),
        }
        if python is None or is_this_python(python):
            env["PYTHONPATH"] = python_path()
        elif "PYTHONPATH" not in variables:
            env.pop("PYTHONPATH", None)  # Spark's, for the executors' Python
        env |= backend_environment(env)
        command = [python or sys.executable, "-m", "horovod.spark._rank_main"]
        specs = []
        for place in places:
            rank = place.slot.rank
            own = rank_environment(place.slot)
            if place.devices is not None:
                own |= {"CUDA_VISIBLE_DEVICES": ",".join(place.devices), DEVICES: ",".join(place.own_devices)}
            specs.append(RankSpec(rank, command, own, self._memory, DESCRIPTOR))
        self.site = LocalRanks(specs, env)

    def result(self, rank: int) -> bytes | None:
        """What the function has returned on `rank`, pickled as (True, value); None if the process left no result."""
        data = read_all(self._memory.results[rank])
        return data or None

    def failure(self, outcome: Outcome, secondary: set[int]) -> RankFailure | None:
        """The failure of the rank that failed first; None after success."""
        if outcome.first_failed is None:
            if outcome.problem is not None:
                return RankFailure(self.site.ranks[0], 1, outcome.problem)
            silent = next((rank for rank in self.site.ranks if self.result(rank) is None), None)
            if silent is None:
                return None
            return RankFailure(silent, 0, "The process ended with status 0 before the function returned.\n")
        rank, code = outcome.first_failed
        return failure_of(rank, code, self.result(rank), rank in secondary)

    def close(self) -> None:
        """Releases the memory of the function and its results."""
        self._memory.close()


def base_environment(base: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The ranks' variables without their places: those of this process that are not Spark's own, and `variables`."""
    kept = {name: value for name, value in base.items() if _OF_SPARK.fullmatch(name) is None}
    return {**job_environment(kept), **variables}


# ---- What tasks report to the driver, in the job's store: that they have begun, and why ranks have failed
#
# Spark itself tells the driver only that some task has failed, with a message of 200 lines. The store belongs to the
# driver and admits only processes that know the job's secret, so unpickling trusts only processes of this job.

_BEGUN = "spark/begun"
_CAUSE = "spark/cause"
_FAILURES = "spark/failures"
_ENDED = "spark/ended"
_READ_S = 5.0


class RankEnds(EndedRanks):
    """EndedRanks of several tasks, which share the numbers of their notes."""

    def report(self, rank: int, code: int, host: str | None) -> None:
        """As EndedRanks.report()."""
        try:
            self._reported = self._connected().add(_ENDED, 1) - 1
        except (OSError, RuntimeError):
            return
        super().report(rank, code, host)


def secondary_failures(
    address: str, secret: bytes, ranks: Iterable[int], encrypted: bool | None = None
) -> set[int]:
    """The `ranks` that only failed because another rank did."""
    with contextlib.closing(RankEnds(address, secret, encrypted)) as ends:
        return ends.secondary_failures(ranks)


def note_begun(store: StoreClient, tasks: Sequence[TaskFacts], places: Sequence[Place]) -> None:
    """All tasks run. Called by one of them, with the facts and the places of all, in the order of the tasks."""
    put(store, _BEGUN, pickle.dumps([(facts.host, place.slot.rank) for facts, place in zip(tasks, places)]))


def reported_begin(store: StoreClient) -> list[tuple[str, int]] | None:
    """(host, rank) of each task, once all tasks run."""
    try:
        store.get(f"{_BEGUN}/parts", 0)
        found: list[tuple[str, int]] = pickle.loads(get(store, _BEGUN, _READ_S))
        return found
    except BootstrapError:
        return None


def note_failure(store: StoreClient, failure: RankFailure, host: str, python: str) -> None:
    """Keeps a rank's failure for the driver."""
    try:
        error = pickle.dumps(failure.error)
    except Exception:  # it holds a lock, a socket, ...
        error = pickle.dumps(None)
    # The exception apart: its class may be unknown to the driver.
    said = (failure.rank, failure.code, failure.text, failure.secondary, error, host, python)
    put(store, f"{_FAILURES}/{store.add(_FAILURES, 1)}", pickle.dumps(said))
    if not failure.secondary:
        store.set(_CAUSE, b"")


def await_cause(store: StoreClient, seconds: float) -> None:
    """Waits until a rank has reported a failure that is not secondary. Spark ends all tasks as soon as one fails: the
    task of a rank with a secondary failure must not be the first."""
    try:
        store.get(_CAUSE, seconds)
    except BootstrapError:
        pass


def reported_failures(store: StoreClient) -> list[tuple[RankFailure, str, str]]:
    """(failure, host, Python) of the ranks that have failed, in the order of the reports."""
    found = []
    try:
        for number in range(store.add(_FAILURES, 0)):
            rank, code, text, secondary, error, host, python = pickle.loads(
                get(store, f"{_FAILURES}/{number + 1}", _READ_S)
            )
            found.append((RankFailure(rank, code, text, _loaded(error), secondary), host, python))
    except BootstrapError:
        pass  # a task was ended while it reported its failure
    return found


def _loaded(data: bytes) -> BaseException | None:
    try:
        error = pickle.loads(data)
    except Exception:  # a class that only the ranks know
        return None
    return error if isinstance(error, BaseException) else None
