"""The tasks of Spark's stages, in the Python workers of executors: a rank of a barrier job, or a slot of an elastic job.

Processes of ranks are children of this one (_ranks.py). If Spark ends this process, as it does when the job is cancelled,
the supervisor of the ranks ends them. On the main thread of the Python worker; what is below "Frames" runs on the driver
too.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from horovod._runner.agent import Agent, check_protocol
from horovod._runner.environment import SECRET, backend_environment, python_path
from horovod._runner.functions import FunctionMemory, write_all
from horovod._runner.local_ranks import LocalRanks
from horovod._runner.output import Output
from horovod._runner.protocol import Kind
from horovod._runner.site import RankSpec
from horovod.spark._logs import LogSender
from horovod.spark._ranks import (
    DEVICES,
    RankEnds,
    RankJob,
    Ranks,
    TaskFacts,
    assign,
    await_cause,
    base_environment,
    note_begun,
    note_failure,
    secondary_failures,
)
from hvd_core._base.auth import NO_RANK, client_handshake
from hvd_core._base.messages import ProtocolError, frame, line_of
from hvd_core._base.sockets import BootstrapError, Deadline, split_address
from hvd_core._bootstrap.store import StoreClient, encryption


def run(kind: str, plan: dict[str, Any], function: bytes) -> Iterator[Any]:
    """The task of a "barrier" or "elastic" job. `plan`: the fields of the job's plan; `function`: pickled."""
    if kind == "elastic":
        return run_elastic_task(ElasticPlan(**plan), function)
    return run_barrier_task(BarrierPlan(**plan), function)


# ---- A task of a barrier job: one rank

# A rank that failed because of another one reports it this much later than the other one at most.
_CAUSE_S = 10.0
# What Spark shows of a failure; the driver gets all of it.
_LONGEST_TEXT = 20_000
_SPACES = ("pid", "net", "mnt", "ipc")


@dataclass(frozen=True)
class BarrierPlan:
    """What all tasks receive. `store`, `log`: addresses on the driver. `variables`: of the ranks, besides those of the
    executor. `python`: the ranks' interpreter, None for the executor's. `show_output`: the driver shows what the ranks
    print. Holds the job's secret: keep it out of logs."""

    store: str
    log: str
    secret: bytes
    variables: Mapping[str, str]
    python: str | None
    show_output: bool

    def __repr__(self) -> str:
        return f"Plan(store={self.store!r}, log={self.log!r})"


def run_barrier_task(plan: BarrierPlan, function: bytes) -> Iterator[tuple[int, bytes]]:
    """The task: (rank, its pickled result). Raises RuntimeError with the reason if the rank fails."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    if context.attemptNumber() > 0:
        raise RuntimeError("A job of Horovod is not repeated by Spark: its ranks have begun before.")
    tasks = [TaskFacts(**_facts(text)) for text in context.allGather(json.dumps(asdict(own_facts(context))))]
    places = assign(tasks)
    place = places[context.partitionId()]
    rank = place.slot.rank
    with contextlib.ExitStack() as stack:
        encrypted = encryption.required_by({**os.environ, **plan.variables}, split_address(plan.store)[0])
        client = StoreClient(plan.store, plan.secret, rank, encrypted=encrypted)
        store = stack.enter_context(contextlib.closing(client))
        if rank == 0:
            note_begun(store, tasks, places)
        log = stack.enter_context(contextlib.closing(LogSender(plan.log, plan.secret, rank)))
        ranks = Ranks([place], function, plan.variables, plan.python, plan.store, plan.secret)
        stack.callback(ranks.close)
        ends = RankEnds(plan.store, plan.secret, encrypted)
        shown = log.output if plan.show_output else None
        outcome = RankJob(ranks.site, Output(place.slot.size), ends, log.message, shown).run()
        failure = ranks.failure(outcome, secondary_failures(plan.store, plan.secret, [rank], encrypted))
        if failure is not None:
            log.close()
            note_failure(store, failure, place.slot.hostname, plan.python or sys.executable)
            if failure.secondary:
                await_cause(store, _CAUSE_S)
            reason = failure.text[-_LONGEST_TEXT:]
            raise RuntimeError(f"rank {rank} on host {place.slot.hostname} failed: {reason}")
        yield rank, ranks.result(rank) or b""


def own_facts(context: Any) -> TaskFacts:
    """The facts of this task. `context`: its TaskContext."""
    spaces = []
    for name in _SPACES:
        try:
            spaces.append(os.readlink(f"/proc/self/ns/{name}"))
        except OSError:
            spaces.append("")
    resources = context.resources()
    devices = tuple(resources["gpu"].addresses) if "gpu" in resources else ()
    return TaskFacts(socket.gethostname(), " ".join(spaces), devices)


def _facts(text: str) -> dict[str, Any]:
    said = json.loads(text)
    return {**said, "devices": tuple(said["devices"])}


# ---- Frames: what an idle task of an elastic job and the driver send each other, before the agents' protocol
#
# A task connects, proves the job's secret, and describes itself. When the driver needs its slot it sends the job of one
# worker; when it closes the connection the task ends. The secrets of worlds are masked: the stage's function, which
# holds the key, may travel over an encrypted connection of Spark, and this connection is not encrypted.

PURPOSE = b"spark-slot"
LONGEST_FACTS = 1 << 16
# A connection that is silent for longer is dead.
_SILENCE_S = 45
_PROBE_S = 10


def notice_silence(peer: socket.socket) -> None:
    """Lets the kernel find out that the other machine is gone."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S * 1000)


def facts_frame(facts: TaskFacts) -> bytes:
    return frame(Kind.EVENT, json.dumps([facts.host, facts.space]).encode())


def facts_of(kind: int, payload: bytes) -> TaskFacts:
    """The inverse of facts_frame(). Raises ProtocolError."""
    try:
        if kind != Kind.EVENT or len(payload) > LONGEST_FACTS:
            raise ValueError(f"a frame of kind {kind} with {len(payload)} bytes")
        host, space = json.loads(payload)
        return TaskFacts(str(host), str(space))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"a task described itself wrongly: {error}") from None


def masked(message: bytes, key: bytes) -> bytes:
    """A message for a worker with the secret of its world made unreadable. Applied again, it is readable again."""
    said = json.loads(message)
    variables = said.get("env")
    if variables is None:
        return message
    secret = bytes.fromhex(variables[SECRET])
    # Each world has its own key, so that no two secrets are hidden by the same one.
    pad = hmac.new(key, b"secret of world %d" % int(variables["HOROVOD_EPOCH"]), hashlib.sha256).digest()
    said["env"] = {**variables, SECRET: bytes(a ^ b for a, b in zip(secret, pad, strict=True)).hex()}
    return line_of(said)


# ---- A task of an elastic job: a slot, in which the driver starts workers, one after the other
#
# The task is an agent of the launcher (horovod/_runner/agent.py). Between two workers it waits for the driver. It ends
# when the driver closes the connection; if Spark ends this process, or its executor is lost, the supervisor ends the
# worker.

_CONNECT_S = 30.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class ElasticPlan:
    """What all tasks receive. `driver`: where the driver listens for tasks. `variables`: of the workers, besides those
    of the executor. Holds the job's secret: keep it out of logs."""

    driver: str
    secret: bytes
    variables: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Plan(driver={self.driver!r})"


class TaskAgent(Agent):
    """One worker. `signalled`: Spark ends this process."""

    def __init__(
        self, channel: socket.socket, plan: ElasticPlan, function: bytes, devices: tuple[str, ...]
    ) -> None:
        self._copy = os.dup(channel.fileno())  # the selector has one entry for each number
        super().__init__(channel.fileno(), self._copy)
        self._plan, self._function_bytes, self._devices = plan, function, devices
        self.signalled = False

    def _prepare(self, job: dict[str, Any]) -> None:
        check_protocol(job)
        numbers = [entry["rank"] for entry in job["ranks"]]
        self._memory = FunctionMemory(numbers)
        write_all(self._memory.function, self._function_bytes)
        env = {**base_environment(os.environ, self._plan.variables), "PYTHONPATH": python_path()}
        env |= {"HOROVOD_ELASTIC": "1"}
        env |= backend_environment(env)
        if self._devices:
            env |= {"CUDA_VISIBLE_DEVICES": ",".join(self._devices), DEVICES: ",".join(self._devices)}
        command = [sys.executable, "-m", "horovod.spark._rank_main"]
        specs = []
        for entry in job["ranks"]:
            specs.append(RankSpec(entry["rank"], command, entry["env"], self._memory, job["channel"]))
        self._ranks = LocalRanks(specs, env)

    def _send(self, rank: int, data: bytes) -> None:
        super()._send(rank, masked(data, self._plan.secret))

    def _signals_received(self, numbers: bytes) -> None:
        self.signalled = True
        self._lose_launcher()

    def close(self) -> None:
        """Releases what run() has left."""
        self._loop.close()
        if self._memory is not None:
            self._memory.close()
        os.close(self._copy)


def run_elastic_task(plan: ElasticPlan, function: bytes) -> Iterator[int]:
    """The task. Raises OSError if the driver cannot be reached."""
    from pyspark import TaskContext

    context = TaskContext.get()
    facts, executor = own_facts(context), os.getppid()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    first = True
    # An executor that is gone leaves its Python workers to another parent: their slots are Spark's no more.
    while os.getppid() == executor:
        channel = _connected(plan, first)
        if channel is None:
            break
        first = False
        with channel:
            if not _wait_for_worker(channel, facts):
                break
            agent = TaskAgent(channel, plan, function, facts.devices)
            try:
                agent.run()
            except ConnectionError:
                pass  # the driver is gone, or does not need this worker any more
            finally:
                agent.close()
                for number, handler in handlers.items():
                    signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if agent.signalled:
            break
    yield context.partitionId()


def _connected(plan: ElasticPlan, first: bool) -> socket.socket | None:
    """A connection that has proved the secret; None if the job has ended."""
    deadline, channel = Deadline(_CONNECT_S), None
    try:
        channel = socket.create_connection(split_address(plan.driver), timeout=_CONNECT_S)
        client_handshake(channel, plan.secret, PURPOSE, NO_RANK, 0, deadline)
    except (BootstrapError, OSError) as error:
        if channel is not None:
            channel.close()
        # A refusal is the end of the job as a rule: a task that begins late. The driver reports it if no task has come.
        if first and not isinstance(error, ConnectionRefusedError):
            raise OSError(
                f"the executor on host {socket.gethostname()} does not reach the driver at {plan.driver} ({error}). Is "
                "there a firewall, or is spark.driver.host wrong?"
            ) from None
        return None
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    notice_silence(channel)
    channel.settimeout(None)
    return channel


def _wait_for_worker(channel: socket.socket, facts: TaskFacts) -> bool:
    """Returns False when the driver needs this slot no more."""
    with contextlib.suppress(OSError):
        channel.sendall(facts_frame(facts))
        return bool(channel.recv(1, socket.MSG_PEEK))
    return False
