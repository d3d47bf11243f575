"""horovod.spark.run_elastic: the driver of elastic jobs (horovod/_runner/elastic_driver.py) with tasks of Spark as slots.

Spark starts and places the tasks of one stage without a barrier, and starts another task where one is lost. Blocks its
thread until the job has ended; Ctrl-C ends the job.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import selectors
import socket
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod._runner.elastic_discovery import FixedHosts
from horovod._runner.elastic_driver import ElasticJob
from horovod._runner.elastic_membership import Failure, Limits, Phase
from horovod._runner.event_loop import LoopWriter
from horovod._runner.failures import failure_of
from horovod._runner.functions import FunctionMemory, checked, pickled, read_all
from horovod._runner.job import Outcome
from horovod._runner.output import Output
from horovod._runner.remote_ranks import RemoteRanks
from horovod._runner.site import RankSpec
from horovod.spark._barrier_job import DriverOutput, driver_variables, interface_variables, start_seconds
from horovod.spark._cluster import (
    active_context,
    check_encryption,
    driver_host,
    has_dynamic_allocation,
    wait_for_slots,
)
from horovod.spark._logs import no_descriptor
from horovod.spark._stage import Stage, forget, lost_executor, shortened, task_function
from horovod.spark._task import LONGEST_FACTS, PURPOSE, facts_of, masked, notice_silence
from hvd_core._base.auth import ServerHandshake
from hvd_core._base.listener import AuthenticatedListener, listen
from hvd_core._base.messages import FrameBuffer, ProtocolError
from hvd_core._bootstrap.store import StoreServer
from hvd_core._config.settings import seconds_of

# ---- The slots as the driver sees them: connections of tasks, and the workers at their ends. On the selector's thread


class TaskPool:
    """The tasks that wait for a worker. `port`: where they connect to; `was_reached`: a task has connected once."""

    def __init__(self, host: str, secret: bytes) -> None:
        listener = listen(host)
        self.port: int = listener.getsockname()[1]
        self._listener = AuthenticatedListener(
            listener,
            secret,
            PURPOSE,
            self._admit,
            self._refused,
            lambda error: self._refused(no_descriptor(error)),
        )
        self.was_reached = False
        self._new: dict[socket.socket, FrameBuffer] = {}  # have not described themselves yet
        self._idle: dict[str, list[socket.socket]] = {}
        self._spaces: dict[str, list[str]] = {}  # of a host, in the order in which they connected
        self._selector: selectors.BaseSelector

    def begin(self, selector: selectors.BaseSelector, note: Callable[[str], None]) -> None:
        self._selector, self._note = selector, note
        self._listener.register(selector)

    def due(self) -> list[float]:
        return self._listener.due()

    def advance(self, now: float) -> None:
        self._listener.advance(now)

    def idle(self) -> dict[str, int]:
        """The number of waiting tasks of each host."""
        return {host: len(tasks) for host, tasks in self._idle.items() if tasks}

    def take(self, host: str) -> socket.socket | None:
        """A waiting task of a host, which is the caller's from now on."""
        if not self._idle.get(host):
            return None
        peer = self._idle[host].pop(0)
        self._selector.unregister(peer)
        return peer

    def close(self) -> None:
        """Ends the waiting tasks."""
        self._listener.close()
        for peer in [*self._new, *(peer for tasks in self._idle.values() for peer in tasks)]:
            peer.close()
        self._new.clear()
        self._idle.clear()

    def _refused(self, reason: str) -> None:
        self._note(f"the driver refused a connection: {reason}")

    def _admit(self, peer: socket.socket, handshake: ServerHandshake) -> None:
        notice_silence(peer)
        self.was_reached = True
        self._new[peer] = FrameBuffer()
        self._selector.register(peer, selectors.EVENT_READ, lambda: self._read(peer))
        if handshake.rest:
            self._learn(peer, handshake.rest)

    def _read(self, peer: socket.socket) -> None:
        try:
            data = peer.recv(LONGEST_FACTS)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data and peer in self._new:
            self._learn(peer, data)
        else:  # the task has ended; or it sends something unexpected
            self._drop(peer)

    def _learn(self, peer: socket.socket, data: bytes) -> None:
        try:
            frames = self._new[peer].feed(data)
            if not frames:
                return
            facts = facts_of(*frames[0])
        except ProtocolError as error:
            self._refused(str(error))
            self._drop(peer)
            return
        del self._new[peer]
        self._idle.setdefault(self._name(facts.host, facts.space), []).append(peer)

    def _name(self, host: str, space: str) -> str:
        """The host's name; containers of one host are hosts of their own."""
        spaces = self._spaces.setdefault(host, [])
        if space not in spaces:
            spaces.append(space)
        number = spaces.index(space)
        return host if number == 0 else f"{host}#{number + 1}"

    def _drop(self, peer: socket.socket) -> None:
        self._new.pop(peer, None)
        for tasks in self._idle.values():
            if peer in tasks:
                tasks.remove(peer)
        self._selector.unregister(peer)
        peer.close()


class TaskRanks(RemoteRanks):
    """A worker in a task of Spark. `task`: the connection, which this object owns from now on; `secret`: the job's."""

    def __init__(
        self,
        host: str,
        task: socket.socket,
        ranks: Sequence[RankSpec],
        secret: bytes,
    ) -> None:
        # The task has the command, the other variables and the function.
        super().__init__(host, [], ranks, {}, None)
        self._task, self._secret = task, secret

    def _connect(self) -> None:
        self._outgoing = LoopWriter(self._selector, os.dup(self._task.fileno()), self._introduction())
        self._readers = {"stdout": os.dup(self._task.fileno())}

    def send(self, rank: int, data: bytes) -> None:
        """As RemoteRanks.send()."""
        super().send(rank, masked(data, self._secret))

    def hang_up(self) -> None:
        """As RemoteRanks.hang_up(). Other descriptors of the connection are open still."""
        if self._outgoing is not None:
            try:
                self._task.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the task is gone
        super().hang_up()

    def close(self) -> None:
        """As RemoteRanks.close()."""
        super().close()
        self._task.close()

    def _describe_end(self) -> str:
        return "the Spark task of the slot has ended, or its executor is lost"


# ---- The job

_INIT_S = 600.0
# A task answers immediately, as it waits for that.
_ANSWER_S = 60.0
# After a failure a host pauses, also if it is not the only one: the executor there may have been started anew.
_PAUSE_S = (1.0, 60.0)
# The tasks see the end of the job by themselves in this time, except those that have not begun because no slot is free.
_STAGE_END_S = 5.0


class SparkElasticJob(ElasticJob):
    """The hosts' slots are the workers and the tasks that wait for one. `begin_s`: how long the first ones may take."""

    def __init__(
        self,
        limits: Limits,
        pool: TaskPool,
        listen: str,
        name: str,
        secret: bytes,
        memory: FunctionMemory,
        begin_s: float,
        output: Output,
        verbose: bool,
    ) -> None:
        self._pool, self._listen, self._name, self._secret = pool, listen, name, secret
        self._memory, self._begin_s, self._since = memory, begin_s, time.monotonic()
        self._stage_ended: Callable[[], bool] = lambda: False
        super().__init__(limits, _Slots(self.slots), None, output, verbose)
        pool.begin(self._loop.selector, self._note)

    def watch(self, stage_ended: Callable[[], bool]) -> None:
        """Lets the job end with Spark's stage."""
        self._stage_ended = stage_ended

    def wake(self) -> None:
        """Any thread: the stage has ended."""
        self._loop.wake()

    def host_of(self, number: int) -> str:
        """The host of a worker."""
        return self._membership.workers[number].host

    def slots(self) -> dict[str, int]:
        """{host: slots}. As many slots are free as tasks wait."""
        found = self._pool.idle()
        for worker in self._membership.alive():
            if not worker.leaving:
                found[worker.host] = found.get(worker.host, 0) + 1
        return found

    def _make_site(self, number: int, host: str) -> TaskRanks:
        from hvd_core._bootstrap.driver_channel import DESCRIPTOR

        task = self._pool.take(host)
        if task is None:
            raise OSError(f"no task waits on {host}")
        self._memory.add(number)
        ranks = [RankSpec(number, [], {"HOROVOD_HOSTNAME": host}, self._memory, DESCRIPTOR)]
        return TaskRanks(host, task, ranks, self._secret)

    def _site_ended(self, number: int) -> None:
        self._memory.drop_if_empty(number)

    def _open_store(self, hosts: Sequence[str], secret: bytes) -> tuple[StoreServer, Mapping[str, str], str]:
        from hvd_core._base.sockets import join_address

        server = StoreServer(host=self._listen, secret=secret)
        port = int(server.address.rpartition(":")[2])
        return server, dict.fromkeys(hosts, join_address(self._name, port)), server.address

    def _soonest(self) -> float | None:
        own = [moment for moment in (super()._soonest(), *self._pool.due()) if moment is not None]
        return max(time.monotonic(), min(own)) if own else None

    def _advance(self, now: float) -> None:
        self._pool.advance(now)
        super()._advance(now)
        if self._membership.phase is Phase.ENDING:
            return
        if self._stage_ended():
            why = "the Spark stage whose tasks are the slots has ended"
            if not self._pool.was_reached:
                why += (
                    f", and none of its tasks has reached the driver at {self._name}, port {self._pool.port}. Is there a "
                    "firewall, or is spark.driver.host wrong?"
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
    from hvd_core._base.sockets import join_address

    listen, name = driver_host(context)
    secret = secrets.token_bytes(32)
    with contextlib.ExitStack() as stack:
        memory = FunctionMemory(())  # of the results; the function travels as a broadcast value
        stack.callback(memory.close)
        sent = context.broadcast(function)
        stack.callback(forget, sent)
        pool = TaskPool(listen, secret)
        stack.callback(pool.close)
        job = SparkElasticJob(limits, pool, listen, name, secret, memory, begin_s, output, verbose)
        plan = {"driver": join_address(name, pool.port), "secret": secret, "variables": dict(variables)}
        stage = Stage(
            context, limits.most or limits.first, task_function("elastic", plan, sent), False, job.wake
        )
        job.watch(lambda: stage.has_ended)
        try:
            outcome = job.run()
        finally:
            pool.close()
            stage.finish(_STAGE_END_S)
        _raise_failure(outcome, job, memory, stage)
        return [_result(number, memory) for number in outcome.last_world]


def _raise_failure(outcome: Outcome, job: SparkElasticJob, memory: FunctionMemory, stage: Stage) -> None:
    number, code = outcome.first_failed or (None, 0)
    data = read_all(memory.results[number]) if number in memory.results else None
    failed = outcome.first_failed is not None or outcome.problem is not None
    if failed and not data and stage.error is not None and not stage.cancelled:
        raise _stage_failure(stage.error)
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


def _stage_failure(error: BaseException) -> BaseException:
    """The exception for a stage that Spark has ended."""
    lost = lost_executor(error)
    if lost is None:
        return shortened(error)
    return RuntimeError(
        f"Spark has ended the job, as a task was lost too often (spark.task.maxFailures). The last loss: {lost}"
    )


def _result(number: int, memory: FunctionMemory) -> Any:
    data = read_all(memory.results[number]) if number in memory.results else b""
    if not data:
        raise RuntimeError(
            f"Process {number} ended with status 0 before the function returned, so it has no result."
        )
    return pickle.loads(data)[1]
