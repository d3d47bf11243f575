"""horovod.spark.run_elastic: the driver of elastic jobs (horovod/_runner/elastic_driver.py) with tasks of Spark as slots.

Spark starts and places the tasks of one stage without a barrier, and starts another task where one is lost. Blocks its
thread until the job has ended; Ctrl-C ends the job.
"""

from __future__ import annotations

import os
import pickle
import secrets
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from horovod._runner.elastic_discovery import FixedHosts
from horovod._runner.elastic_driver import ElasticJob
from horovod._runner.elastic_membership import Failure, Limits, Phase
from horovod._runner.event_loop import Member
from horovod._runner.failures import failure_of
from horovod._runner.functions import FunctionMemory, checked, pickled, read_all
from horovod._runner.job import Outcome
from horovod._runner.output import Output
from horovod._runner.site import RankSpec
from horovod.spark._barrier_job import (
    STAGE_END_S,
    DriverOutput,
    driver_variables,
    interface_variables,
    start_seconds,
)
from horovod.spark._cluster import (
    active_context,
    check_encryption,
    driver_host,
    has_dynamic_allocation,
    wait_for_slots,
)
from horovod.spark._ranks import device_variables
from horovod.spark._stage import Stage, lost_executor, stage_failure
from horovod.spark._task_pool import TaskPool, TaskRanks
from hvd_core._base.sockets import join_address
from hvd_core._bootstrap.driver_channel import DESCRIPTOR
from hvd_core._bootstrap.store import StoreServer
from hvd_core._config.settings import seconds_of

_INIT_S = 600.0
# A task answers immediately, as it waits for that.
_ANSWER_S = 60.0
# After a failure a host pauses, also if it is not the only one: the executor there may have been started anew.
_PAUSE_S = (1.0, 60.0)
_LOOK_S = 0.5


class SparkElasticJob(ElasticJob):
    """The hosts' slots are the workers and the tasks that wait for one. `begin_s`: how long the first ones may take."""

    def __init__(
        self,
        limits: Limits,
        pool: TaskPool,
        stage: Stage,
        address: tuple[str, str],
        secret: bytes,
        memory: FunctionMemory,
        begin_s: float,
        output: Output,
        verbose: bool,
    ) -> None:
        self._pool, self._stage, self._address, self._secret = pool, stage, address, secret
        self._memory, self._begin_s, self._since = memory, begin_s, time.monotonic()
        super().__init__(limits, _Slots(self.slots), None, output, verbose)
        pool.register(self._loop.selector)

    def host_of(self, number: int) -> str:
        """The host of a worker."""
        return self._membership.workers[number].host

    def slots(self) -> dict[str, int]:
        """{host: slots}. As many slots are free as tasks wait."""
        workers = [worker.host for worker in self._membership.alive() if not worker.leaving]
        return dict(Counter([*(task.host for task in self._pool.waiting), *workers]))

    def _make_site(self, number: int, host: str) -> TaskRanks:
        task = next((task for task in self._pool.waiting if task.host == host), None)
        if task is None:
            raise OSError(f"no task waits on {host}")
        self._pool.take(task)
        self._memory.add(number)
        devices = task.facts.devices
        own = {"HOROVOD_HOSTNAME": host} | device_variables(devices, devices)
        return TaskRanks(host, task.peer, RankSpec(number, [], own, self._memory, DESCRIPTOR), self._secret)

    def _site_ended(self, number: int) -> None:
        self._memory.drop_if_empty(number)

    def _open_store(self, hosts: Sequence[str], secret: bytes) -> tuple[StoreServer, Mapping[str, str], str]:
        listen, name = self._address
        server = StoreServer(host=listen, secret=secret)
        port = int(server.address.rpartition(":")[2])
        return server, dict.fromkeys(hosts, join_address(name, port)), server.address

    def _members(self) -> Iterable[Member]:
        return [*super()._members(), self._pool]

    def _soonest(self) -> float | None:
        soon, own = time.monotonic() + _LOOK_S, super()._soonest()
        return soon if own is None else min(own, soon)

    def _advance(self, now: float) -> None:
        super()._advance(now)
        if self._membership.phase is Phase.ENDING:
            return
        if self._stage.has_ended:
            why = "the Spark stage whose tasks are the slots has ended"
            if not self._pool.was_reached:
                why += (
                    f", and none of its tasks has reached the driver at {self._pool.address}. Is there a firewall, or is "
                    "spark.driver.host wrong?"
                )
            self._fail(why)
        elif not self._begun and now - self._since > self._begin_s:
            found = sum(self.slots().values())
            self._fail(
                f"{found} of {self._limits.first} tasks of the job have begun within {self._begin_s:g} s. Other jobs of "
                "this Spark application may hold the slots. More time: start_timeout, or HOROVOD_SPARK_START_TIMEOUT."
            )

    def _start_workers(self, now: float) -> None:
        self._hosts_found(self.slots())  # a slot that is free now
        super()._start_workers(now)

    def _fail(self, why: str) -> None:
        if self._membership.phase is Phase.ENDING:
            return
        self._membership.failure = Failure(why)
        self._membership.phase = Phase.ENDING
        self._end_all()

    def _note(self, text: str) -> None:
        self._output.stderr.note(f"horovod.spark: {text}")


class _Slots(FixedHosts):
    """Asked on the driver's thread."""

    def __init__(self, slots: Callable[[], dict[str, int]]) -> None:
        super().__init__({})
        self._slots = slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return self._slots()


def run_elastic(given: dict[str, Any]) -> list[Any]:
    """Implements horovod.spark.run_elastic. `given`: its parameters by name."""
    caller = "horovod.spark.run_elastic"
    call = checked(caller, given["fn"], given["args"], given["kwargs"])
    for old, new in (("min_np", "min_num_proc"), ("max_np", "max_num_proc")):
        if given[old] is not None:
            text = f"horovod.spark.run_elastic({old}=...) is deprecated, use {new}"
            warnings.warn(text, DeprecationWarning, stacklevel=4)
            given[new] = given[old]
    context = active_context("horovod.spark.run_elastic")
    limits = _limits(given, context.defaultParallelism)
    check_encryption(context, {**os.environ, **(given["env"] or {})})
    begin_s = start_seconds(given["start_timeout"])
    variables = driver_variables(given["env"]) | interface_variables(given["nics"])
    output = DriverOutput(
        limits.most or limits.first,
        given["stdout"],
        given["stderr"],
        bool(given["prefix_output_with_timestamp"]),
    )
    function = pickled(caller, *call)
    if not has_dynamic_allocation(context):
        wait_for_slots(context, limits.first, begin_s)
    return _run(context, function, limits, begin_s, variables, output, given["verbose"] > 1)


def _limits(given: Mapping[str, Any], parallelism: int) -> Limits:
    """Raises ValueError for numbers that make no sense."""

    def optional(name: str, low: int) -> int | None:
        value = given[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
            raise ValueError(
                f"horovod.spark.run_elastic({name}={value!r}): an integer of at least {low} is needed"
            )
        return value

    given_least, given_most = optional("min_num_proc", 1), optional("max_num_proc", 1)
    first = optional("num_proc", 1) or given_least or parallelism
    least, most = given_least or first, given_most or first
    if not least <= first <= most:
        raise ValueError(
            f"horovod.spark.run_elastic(num_proc={first}, min_num_proc={least}, max_num_proc={most}): they must not "
            "decrease in the order min_num_proc, num_proc, max_num_proc"
        )
    environ = os.environ
    return Limits(
        first,
        least,
        most,
        optional("elastic_timeout", 1) or seconds_of(environ, "HOROVOD_ELASTIC_TIMEOUT"),
        seconds_of(environ, "HOROVOD_ELASTIC_GRACE"),
        _ANSWER_S,
        optional("reset_limit", 0),
        _PAUSE_S,
        init_s=_INIT_S,
    )


def _run(
    context: Any,
    function: bytes,
    limits: Limits,
    begin_s: float,
    variables: Mapping[str, str],
    output: Output,
    verbose: bool,
) -> list[Any]:
    listen, name = driver_host(context)
    secret = secrets.token_bytes(32)
    memory = FunctionMemory(())  # of the results; the function travels as a broadcast value
    pool = TaskPool(listen, name, secret, output.stderr.note)
    plan = {"driver": pool.address, "secret": secret, "variables": dict(variables)}
    stage = Stage(context, limits.most or limits.first, plan, function, barrier=False)
    try:
        try:
            job = SparkElasticJob(
                limits, pool, stage, (listen, name), secret, memory, begin_s, output, verbose
            )
            outcome = job.run()
        finally:
            pool.close()
            stage.finish(STAGE_END_S)
        _raise_failure(outcome, job, memory, stage)
        return [_result(number, memory) for number in outcome.last_world]
    finally:
        memory.close()


def _raise_failure(outcome: Outcome, job: SparkElasticJob, memory: FunctionMemory, stage: Stage) -> None:
    number, code = outcome.first_failed or (None, 0)
    data = read_all(memory.results[number]) if number in memory.results else None
    failed = outcome.first_failed is not None or outcome.problem is not None
    if failed and not data and stage.error is not None and not stage.cancelled:
        lost = lost_executor(stage.error)
        if lost is None:
            raise stage_failure(stage.error)
        raise RuntimeError(
            f"Spark has ended the job, as a task was lost too often (spark.task.maxFailures). The last loss: {lost}"
        )
    if number is not None:
        error = failure_of(number, code, data or None).exception(
            job.host_of(number), "that of the executors", "process"
        )
        raise error from error.__cause__
    if outcome.problem is not None:
        text = outcome.problem.removeprefix("horovodrun: ").strip()
        raise RuntimeError(text.replace("--elastic-timeout", "elastic_timeout"))
    if not outcome.last_world:
        raise RuntimeError("The processes ended with status 0, and none of them has called hvd.init().")


def _result(number: int, memory: FunctionMemory) -> Any:
    data = read_all(memory.results[number]) if number in memory.results else b""
    if not data:
        raise RuntimeError(
            f"Process {number} ended with status 0 before the function returned, so it has no result."
        )
    return pickle.loads(data)[1]
