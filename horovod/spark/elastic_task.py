"""A task of the stage of an elastic job: a slot, in which the driver starts workers, one after the other.

The task is an agent of the launcher (horovod/_runner/agent.py) in the Python worker of an executor. Between
two workers it
waits for the driver. It ends when the driver closes the connection; if Spark ends this process, or its executor is lost,
the worker's keeper ends the worker. On the main thread of the Python worker; imported on the executors only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from horovod._runner.agent import Agent, check_protocol
from horovod._runner.environment import backend_environment, python_path
from horovod._runner.functions import FunctionMemory, write_all
from horovod._runner.local_ranks import LocalRanks
from horovod._runner.protocol import decode_env
from horovod._runner.site import RankSpec
from horovod.spark.barrier_task import own_facts
from horovod.spark.rank_job import DEVICES, base_environment
from horovod.spark.task_frames import PURPOSE, facts_frame, notice_silence, veiled
from hvd_core._base.auth import NO_RANK, client_handshake
from hvd_core._base.sockets import BootstrapError, Deadline, split_address

_CONNECT_S = 30.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Plan:
    """What all tasks are told. `driver`: where the driver listens for tasks. `variables`: of the workers, besides those
    of the executor. Holds the job's secret: keep it out of logs."""

    driver: str
    secret: bytes
    variables: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Plan(driver={self.driver!r})"


class TaskAgent(Agent):
    """One worker. `signalled`: Spark ends this process."""

    def __init__(self, channel: socket.socket, plan: Plan, function: bytes, devices: tuple[str, ...]) -> None:
        self._copy = os.dup(channel.fileno())  # the selector has one entry for each number
        super().__init__(channel.fileno(), self._copy)
        self._plan, self._function_bytes, self._devices = plan, function, devices
        self.signalled = False

    def _prepare(self, job: dict) -> None:
        check_protocol(job)
        numbers = [entry["rank"] for entry in job["ranks"]]
        self._memory = FunctionMemory(numbers)
        write_all(self._memory.function, self._function_bytes)
        env = {**base_environment(os.environ, self._plan.variables), "PYTHONPATH": python_path()}
        env |= {"HOROVOD_ELASTIC": "1"}
        env |= backend_environment(env)
        if self._devices:
            env |= {"CUDA_VISIBLE_DEVICES": ",".join(self._devices), DEVICES: ",".join(self._devices)}
        command = [sys.executable, "-m", "horovod.spark.rank_main"]
        specs = []
        for entry in job["ranks"]:
            own = {**decode_env(entry["env"]), **self._memory.variables(entry["rank"])}
            keep = self._memory.descriptors(entry["rank"])
            specs.append(RankSpec(entry["rank"], command, own, keep, job["channel"]))
        self._ranks = LocalRanks(specs, env)

    def _tell(self, rank: int, data: bytes) -> None:
        super()._tell(rank, veiled(data, self._plan.secret))

    def _hear_signals(self, numbers: bytes) -> None:
        self.signalled = True
        self._lose_launcher()

    def close(self) -> None:
        """Releases what run() has left."""
        self._selector.close()
        if self._memory is not None:
            self._memory.close()
        os.close(self._copy)


def run(plan: Plan, function: bytes) -> Iterator[int]:
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


def _connected(plan: Plan, first: bool) -> socket.socket | None:
    """A connection that has proved the secret; None if the job is over."""
    deadline, channel = Deadline(_CONNECT_S), None
    try:
        channel = socket.create_connection(split_address(plan.driver), timeout=_CONNECT_S)
        client_handshake(channel, plan.secret, PURPOSE, NO_RANK, 0, deadline)
    except (BootstrapError, OSError) as error:
        if channel is not None:
            channel.close()
        # A refusal is the end of the job as a rule: a task that begins late. The driver tells if no task has come.
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


def _wait_for_worker(channel: socket.socket, facts) -> bool:
    """Returns False when the driver needs this slot no more."""
    with contextlib.suppress(OSError):
        channel.sendall(facts_frame(facts))
        return bool(channel.recv(1, socket.MSG_PEEK))
    return False
