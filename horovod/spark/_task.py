"""The tasks of Spark's stages, in the Python workers of executors: each is a slot in which the driver starts ranks.

A task is an agent of the launcher (horovod/_runner/agent.py), over a connection to the driver's TaskPool. In a barrier
job it runs one rank; in an elastic job it waits for the driver between two workers. It ends when the driver closes the
connection. Processes of ranks are children of this one: if Spark ends it, as it does when the job is cancelled, or if its
executor is lost, the supervisor of the ranks ends them. On the main thread of the Python worker.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from horovod._runner.agent import Agent, check_protocol
from horovod._runner.environment import SECRET, store_environment
from horovod._runner.failures import failure_of
from horovod._runner.functions import FunctionMemory, put, read_all, result_key, write_all
from horovod._runner.local_ranks import LocalRanks
from horovod._runner.output import Output, OutputClosedError, RankStream
from horovod._runner.site import STREAMS, Event, RankSpec, Site
from horovod.spark._ranks import TaskFacts, base_environment, rank_command
from hvd_core._base.auth import NO_RANK, client_handshake
from hvd_core._base.messages import line_of
from hvd_core._base.sockets import BootstrapError, Deadline, split_address
from hvd_core._bootstrap.store import StoreClient, encryption

PURPOSE = b"spark-slot"
_CONNECT_S = 30.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SPACES = ("pid", "net", "mnt", "ipc")
# What Spark shows of a failure; the driver gets all of it.
_LONGEST_TEXT = 20_000
# A connection that is silent for longer is dead.
_SILENCE_S = 45
_PROBE_S = 10
# Messages of log_to_driver() beyond this are dropped, as a rank must not wait for a terminal.
_MOST_HELD = 4 << 20


@dataclass(frozen=True)
class Plan:
    """What all tasks of a job receive.

    Attributes:
        driver: where the driver listens for tasks.
        secret: the job's; keep it out of logs.
        variables: of the ranks, besides those of the executor.
        store: the job's store on the driver; None in an elastic job, whose worlds have stores of their own.
        python: the ranks' interpreter; None for the executor's.
        show_output: whether the driver shows what the ranks print.
    """

    driver: str
    secret: bytes = field(repr=False)
    variables: Mapping[str, str] = field(repr=False)
    store: str | None = None
    python: str | None = None
    show_output: bool = True


def run(fields: dict[str, Any], function: bytes) -> Iterator[int]:
    """A task.

    Args:
        fields: of the job's Plan.
        function: the pickled (function, args, kwargs).

    Raises:
        OSError: the driver cannot be reached.
        RuntimeError: the rank of a barrier job has failed.
    """
    from pyspark import BarrierTaskContext, TaskContext

    plan = Plan(**fields)
    context = (TaskContext if plan.store is None else BarrierTaskContext).get()
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
            agent = TaskAgent(channel, plan, function)
            try:
                agent.run()
            except ConnectionError:
                pass  # the driver is gone, or does not need this worker any more
            finally:
                agent.close()
                for number, handler in handlers.items():
                    signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            if plan.store is not None:
                # Spark ends all tasks as soon as one fails, and the driver wants to see the ends of all ranks.
                _wait_for_end(channel)
                if agent.failure is not None:
                    raise RuntimeError(agent.failure)
                break
        if agent.signalled:
            break
    yield context.partitionId()


def own_facts(context: Any) -> TaskFacts:
    """The facts of this task. `context`: its TaskContext."""
    spaces = []
    for name in _SPACES:
        with contextlib.suppress(OSError):
            spaces.append(os.readlink(f"/proc/self/ns/{name}"))
    resources = context.resources()
    devices = tuple(resources["gpu"].addresses) if "gpu" in resources else ()
    return TaskFacts(socket.gethostname(), " ".join(spaces), devices, context.partitionId())


def _connected(plan: Plan, first: bool) -> socket.socket | None:
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


def notice_silence(peer: socket.socket) -> None:
    """Lets the kernel find out that the other machine is gone."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S * 1000)


def _wait_for_worker(channel: socket.socket, facts: TaskFacts) -> bool:
    """Returns False when the driver needs this slot no more."""
    with contextlib.suppress(OSError):
        channel.sendall(line_of(asdict(facts)))
        return bool(channel.recv(1, socket.MSG_PEEK))
    return False


def _wait_for_end(channel: socket.socket) -> None:
    """Reports that this task has sent everything, and returns when the job has ended."""
    channel.setblocking(True)
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_WR)
        while channel.recv(1 << 16):
            pass


class TaskAgent(Agent):
    """One worker, or the rank of a barrier job.

    Attributes:
        signalled: Spark ends this process.
        failure: why the rank has failed.
    """

    def __init__(self, channel: socket.socket, plan: Plan, function: bytes) -> None:
        self._copy = os.dup(channel.fileno())  # the selector has one entry for each number
        super().__init__(channel.fileno(), self._copy)
        self._plan, self._function = plan, function
        self._shown: dict[tuple[int, int], RankStream] = {}
        self._held: FunctionMemory | None = None
        self._codes: dict[int, int] = {}
        self.signalled = False
        self.failure: str | None = None

    def _prepare(self, job: dict[str, Any]) -> None:
        check_protocol(job)
        plan, output = self._plan, Output(1)
        self._memory = self._held = memory = FunctionMemory(entry["rank"] for entry in job["ranks"])
        write_all(memory.function, self._function)
        env = base_environment(os.environ, plan.variables, plan.python)
        env |= {"HOROVOD_ELASTIC": "1"} if plan.store is None else store_environment(plan.store, plan.secret)
        command, specs = rank_command(plan.python), []
        for entry in job["ranks"]:
            specs.append(RankSpec(entry["rank"], command, entry["env"], memory, job["channel"]))
            for index, name in enumerate(STREAMS):
                self._shown[entry["rank"], index] = output.stream(entry["rank"], name)
        self._ranks = LocalRanks(specs, env)

    def _follow(self) -> None:
        super()._follow()
        if self._plan.store is None or self._launcher_gone:
            return
        assert self._memory is not None
        for rank, descriptor in self._memory.results.items():
            self._put_result(rank, read_all(descriptor))
        self._memory = None  # so that run() sends no results

    def _put_result(self, rank: int, data: bytes) -> None:
        """Leaves the result of a rank, or its exception, in the job's store, whose connections may be encrypted."""
        plan, code = self._plan, self._codes.get(rank, 0)
        assert plan.store is not None
        if code:
            text = failure_of(rank, code, data).text[-_LONGEST_TEXT:]
            self.failure = f"rank {rank} on host {socket.gethostname()} failed: {text}"
        if data:
            encrypted = encryption.required_by({**os.environ, **plan.variables}, split_address(plan.store)[0])
            client = StoreClient(plan.store, plan.secret, encrypted=encrypted)
            with contextlib.closing(client):
                put(client, result_key(rank), data)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """See Listener. The executor's log has the output, too."""
        shown = self._shown[rank, stream]
        with contextlib.suppress(OutputClosedError):
            shown.feed(data) if data else shown.end()
        if self._plan.show_output or not data:
            super().output(rank, stream, data)

    def message(self, rank: int, data: bytes) -> None:
        """See Listener."""
        if self._plan.store is None or self._outgoing.size < _MOST_HELD:
            super().message(rank, data)

    def event(self, site: Site, event: Event) -> None:
        """See Listener."""
        if event["event"] == "exit":
            self._codes[event["rank"]] = event["code"]
        super().event(site, event)

    def _send(self, rank: int, data: bytes) -> None:
        super()._send(rank, masked(data, self._plan.secret))

    def _signals_received(self, numbers: bytes) -> None:
        self.signalled = True
        self._lose_launcher()

    def close(self) -> None:
        """Releases what run() has left."""
        self._loop.close()
        if self._held is not None:
            self._held.close()
        os.close(self._copy)


def masked(message: bytes, key: bytes) -> bytes:
    """A message for a worker with the secret of its world masked. Applied again, it is readable again.

    The key is the job's secret, which is in the tasks' closure: Spark may have encrypted that, while a task's connection
    to the driver is not encrypted."""
    said = json.loads(message)
    variables = said.get("env")
    if variables is None:
        return message
    secret = bytes.fromhex(variables[SECRET])
    # Each world has its own pad, so that no two secrets are hidden by the same one.
    pad = hmac.new(key, b"secret of world %d" % int(variables["HOROVOD_EPOCH"]), hashlib.sha256).digest()
    said["env"] = {**variables, SECRET: bytes(a ^ b for a, b in zip(secret, pad, strict=True)).hex()}
    return line_of(said)
