"""horovod.spark.run, and what HorovodRunner shares with it: a function on the ranks of one barrier stage, driver's side.

Spark starts and places the tasks. When all of them have connected, the driver starts a rank in each, as the launcher does
on other hosts, and holds the job's store. Any thread may call.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import re
import secrets
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from horovod._runner.event_loop import Member
from horovod._runner.failures import EndedRanks, RankFailure, failure_of
from horovod._runner.functions import checked, get, pickled, result_key
from horovod._runner.job import Job, Outcome
from horovod._runner.output import Output, Sink
from horovod._runner.site import RankSpec, Site
from horovod.spark._channel import DESCRIPTOR, MessageReader
from horovod.spark._cluster import (
    active_context,
    check_barrier,
    check_encryption,
    driver_host,
    wait_for_slots,
)
from horovod.spark._ranks import assign
from horovod.spark._stage import Stage, lost_executor, stage_failure
from horovod.spark._task_pool import TaskPool, TaskRanks
from hvd_core._base.sockets import BootstrapError, join_address
from hvd_core._bootstrap.store import StoreClient, StoreServer
from hvd_core._config.settings import positive_seconds, seconds_of

_log = logging.getLogger("horovod")

# A task answers immediately, as it waits for that.
_ANSWER_S = 60.0
# The tasks see the end of the job by themselves in this time.
STAGE_END_S = 5.0
_LOOK_S = 0.5


@dataclass(frozen=True)
class Options:
    """Of a job.

    Attributes:
        num_proc: None for all slots of the cluster.
        slots_s: how long executors may take to register.
        begin_s: how long the tasks may wait for free slots after that, None for any time.
        variables: of the ranks.
        python: the ranks' interpreter.
        output: None if the driver shows only the messages of log_to_driver().
    """

    num_proc: int | None
    slots_s: float
    begin_s: float | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    output: Output | None = None


class RankJob(Job):
    """A job whose ranks may call log_to_driver().

    Args:
        stage: whose end ends the job; None for ranks of this machine.

    Attributes:
        lost: (rank, host) of the first rank that was lost with its task.
        is_secondary: the rank that failed first only failed because another one was lost.
    """

    def __init__(
        self, sites: Sequence[Site], output: Output, ends: EndedRanks, stage: Stage | None = None
    ) -> None:
        super().__init__(sites, output, start_timeout_s=_ANSWER_S, ends=ends)
        self._stage, self._of_job = stage, ends
        self._readers: dict[int, MessageReader] = {}
        self.lost: tuple[int, str | None] | None = None
        self.is_secondary = False

    def message(self, rank: int, data: bytes) -> None:
        """See Listener."""
        for text in self._readers.setdefault(rank, MessageReader()).feed(data):
            print(text, flush=True)

    def _handle_loss(self, site: Site, text: str) -> None:
        self.lost = self.lost or (site.ranks[0], site.host)
        super()._handle_loss(site, text)

    def _decide(self) -> None:
        super()._decide()
        first = self._outcome.first_failed
        self.is_secondary = first is not None and bool(self._of_job.secondary_failures([first[0]]))

    def _members(self) -> Iterable[Member]:
        return [*super()._members(), self]

    def due(self) -> float | None:
        """See Member."""
        return None if self._stage is None else time.monotonic() + _LOOK_S

    def advance(self, now: float) -> None:
        """See Member."""
        if self._stage is not None and self._stage.has_ended and not self._stops:
            self.stop()


def rank_failure(outcome: Outcome, results: Sequence[bytes | None]) -> RankFailure | None:
    """The failure of the rank that failed first; None if all ranks have left a result, by rank in `results`."""
    if outcome.first_failed is not None:
        rank, code = outcome.first_failed
        return failure_of(rank, code, results[rank])
    if outcome.problem is None and None in results:
        text = "The process ended with status 0 before the function returned.\n"
        return RankFailure(results.index(None), 0, text)
    return None


def run_barrier_job(context: Any, function: bytes, options: Options) -> list[Any]:
    """What the pickled (function, args, kwargs) returns on each rank, in the order of the ranks.

    Raises NotEnoughSlots; RuntimeError with the traceback of the rank that failed first, its exception as the cause; and
    KeyboardInterrupt, after the job was cancelled.
    """
    check_barrier(context)
    check_encryption(context, {**os.environ, **options.variables})
    found = wait_for_slots(context, options.num_proc, options.slots_s)
    num_proc = options.num_proc or found
    listen, name = driver_host(context)
    secret = secrets.token_bytes(32)
    output = options.output or DriverOutput(num_proc)
    if options.output is None:
        output.mute()
    with StoreServer(listen, secret) as server:
        pool = TaskPool(listen, name, secret, output.stderr.note)
        plan = {
            "driver": pool.address,
            "secret": secret,
            "variables": dict(options.variables),
            "store": join_address(name, int(server.address.rpartition(":")[2])),
            "python": options.python,
            "show_output": options.output is not None,
        }
        stage, end_s = Stage(context, num_proc, plan, function, barrier=True), 0.0
        try:
            tasks = pool.gather(stage, options.begin_s)
            places = assign([task.facts for task in tasks])
            sites = []
            for task, place in zip(tasks, places):
                spec = RankSpec(place.slot.rank, [], place.variables(), channel=DESCRIPTOR)
                sites.append(TaskRanks(place.slot.hostname, task.peer, spec, secret))
            job = RankJob(sites, output, EndedRanks(server.address, secret), stage)
            outcome = job.run()
            end_s = STAGE_END_S
        finally:
            stage.finish(end_s)
        results = _results(server.address, secret, num_proc)
    failure = rank_failure(outcome, results)
    if failure is not None or outcome.problem is not None:
        if failure is None or not failure.code or (job.lost is not None and job.is_secondary):
            _raise_stage_failure(stage, job.lost)
        if failure is None:
            raise RuntimeError(f"{outcome.problem}".removeprefix("horovodrun: ").strip())
        hosts = {place.slot.rank: place.slot.hostname for place in places}
        error = failure.exception(hosts[failure.rank], options.python or "that of the executors")
        raise error from error.__cause__
    return [pickle.loads(data or b"")[1] for data in results]


def _results(address: str, secret: bytes, num_proc: int) -> list[bytes | None]:
    """What each rank has left in the store."""
    found: list[bytes | None] = []
    with contextlib.closing(StoreClient(address, secret)) as store:
        for rank in range(num_proc):
            try:
                found.append(get(store, result_key(rank), 0))
            except BootstrapError:
                found.append(None)
    return found


def _raise_stage_failure(stage: Stage, lost: tuple[int, str | None] | None) -> None:
    """Raises the exception for a job that Spark has ended, or whose connection to a task has broken."""
    error = None if stage.cancelled else stage.error
    why = lost_executor(error)
    if error is not None and why is None:
        raise stage_failure(error)  # it was cancelled, for instance
    if lost is not None:
        rank, host = lost
        why = why or "its Spark task has ended, or does not answer any more"
        raise RuntimeError(f"Rank {rank} on host {host} is lost: {why}")


def driver_variables(given: Mapping[str, str] | None) -> dict[str, str]:
    """The ranks' variables: Horovod's and NCCL's of this process (HOROVOD_TIMELINE, for instance), and `given`."""
    own = {name: value for name, value in os.environ.items() if _PASSED.match(name)}
    return {**own, **{str(name): str(value) for name, value in (given or {}).items()}}


# The place and the secret of a job that this process is a rank of are not those of the new one.
_PASSED = re.compile(
    r"(?!HOROVOD_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|HOSTNAME|STORE|SECRET_KEY|EPOCH|ELASTIC.*|RUN_.*"
    r"|GLOO_RENDEZVOUS_.*|CONTROLLER|BACKEND_SPEC|SPARK_LOG_FD)$)(HOROVOD|NCCL)_"
)


# ---- The arguments of horovod.spark.run


class _DriverSink(Sink):
    """A stream of the driver. A job does not end because its output cannot be shown (a widget of a notebook)."""

    def write(self, data: bytes) -> None:
        """As Sink.write()."""
        try:
            super().write(data)
        except Exception:
            self.closed = True
            _log.exception("horovod.spark: the output of the ranks cannot be shown")

    def note(self, text: str) -> None:
        """As Sink.note()."""
        super().note(text.replace("horovodrun: ", "horovod.spark: ", 1))


class DriverOutput(Output):
    """The ranks' output on streams of the driver. `stdout`, `stderr`: objects with write() and flush(), None for those of
    this process."""

    def __init__(
        self, num_proc: int, stdout: Any = None, stderr: Any = None, timestamp: bool = False
    ) -> None:
        super().__init__(num_proc, None, timestamp)
        is_one = stderr is stdout if stdout or stderr else self.stderr is self.stdout
        self.stdout = _DriverSink(stdout or sys.stdout)
        self.stderr = self.stdout if is_one else _DriverSink(stderr or sys.stderr)


def start_seconds(given: float | None, default: float | None = None) -> float:
    """The time for executors to register. Raises ValueError for a wrong number."""
    if given is not None:
        return positive_seconds(str(given), "start_timeout")
    return seconds_of(os.environ, "HOROVOD_SPARK_START_TIMEOUT", default)


def interface_variables(nics: Iterable[str] | None) -> dict[str, str]:
    """The ranks' variables for the network interfaces that were named."""
    names = sorted([nics] if isinstance(nics, str) else nics or ())
    return {"HOROVOD_GLOO_IFACE": names[0], "NCCL_SOCKET_IFNAME": ",".join(names)} if names else {}


def run_barrier(given: dict[str, Any]) -> list[Any]:
    """Implements horovod.spark.run. `given`: its parameters by name."""
    call = checked("horovod.spark.run", given["fn"], given["args"], given["kwargs"])
    if given["use_mpi"]:
        raise ValueError(
            "horovod.spark.run(use_mpi=True): the ranks of a Spark job are started by Spark, not by mpirun. Leave "
            "use_mpi out; the backend mpi cannot be used on Spark."
        )
    if given["extra_mpi_args"]:
        warnings.warn(
            "horovod.spark.run(extra_mpi_args=...) has no effect: no mpirun starts the ranks", stacklevel=3
        )
    context = active_context("horovod.spark.run")
    num_proc = given["num_proc"] if given["num_proc"] is not None else context.defaultParallelism
    if num_proc < 1:
        raise ValueError(f"horovod.spark.run(num_proc={num_proc}): at least 1 process is needed")
    variables = driver_variables(given["env"]) | interface_variables(given["nics"])
    seconds = start_seconds(given["start_timeout"])
    output = DriverOutput(
        num_proc, given["stdout"], given["stderr"], bool(given["prefix_output_with_timestamp"])
    )
    options = Options(num_proc, seconds, seconds, variables, given["executable"], output)
    function = pickled("horovod.spark.run", *call)
    return run_barrier_job(context, function, options)
