"""The tasks of a job's stage as the driver sees them: connections that wait for a worker, and the workers at their ends.

A task connects, proves the job's secret, and describes itself in a line of JSON (TaskFacts). Then it waits for a job of
the launcher's agents (horovod/_runner/protocol.py), and ends when the driver closes the connection. On the thread of the
job's event loop.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from horovod._runner.event_loop import EventLoop, LoopWriter
from horovod._runner.remote_ranks import RemoteRanks
from horovod._runner.site import RankSpec
from horovod.spark._ranks import TaskFacts
from horovod.spark._stage import Stage, stage_failure
from horovod.spark._task import PURPOSE, masked, notice_silence
from hvd_core._base.auth import ServerHandshake
from hvd_core._base.listener import AuthenticatedListener, listen
from hvd_core._base.messages import LineBuffer
from hvd_core._base.sockets import join_address

_LOOK_S = 0.1


@dataclass(eq=False)
class Task:
    """A task that waits. `host`: its name for the job; containers of one host are hosts of their own."""

    peer: socket.socket
    facts: TaskFacts
    host: str


class TaskPool:
    """The tasks that wait for a worker. A member of the event loop.

    Args:
        listen_on: the address to listen on.
        name: under which executors reach the driver.
        secret: the job's.
        note: shows a line for the user.

    Attributes:
        address: where tasks connect.
        was_reached: a task has connected once.
        waiting: the tasks, in the order in which they came.
    """

    def __init__(self, listen_on: str, name: str, secret: bytes, note: Callable[[str], None]) -> None:
        listener = listen(listen_on)
        self.address = join_address(name, listener.getsockname()[1])
        self.was_reached = False
        self.waiting: list[Task] = []
        self._note = note
        self._listener = AuthenticatedListener(
            listener,
            secret,
            PURPOSE,
            self._admit,
            lambda reason: note(f"horovod.spark: the driver refused a connection: {reason}"),
        )
        self._new: dict[socket.socket, LineBuffer] = {}  # have not described themselves yet
        self._spaces: dict[str, list[str]] = {}  # of a host, in the order in which they connected
        self._selector: selectors.BaseSelector

    def register(self, selector: selectors.BaseSelector) -> None:
        """Begins to accept tasks."""
        self._selector = selector
        self._listener.register(selector)

    def due(self) -> float | None:
        """See event_loop.Member."""
        return min(self._listener.due(), default=None)

    def advance(self, now: float) -> None:
        """See event_loop.Member."""
        self._listener.advance(now)

    def take(self, task: Task) -> None:
        """A waiting task is the caller's from now on."""
        self.waiting.remove(task)
        self._selector.unregister(task.peer)

    def gather(self, stage: Stage, begin_s: float | None) -> list[Task]:
        """Waits until all tasks of a stage are here; returns them in the order of their partitions.

        Raises:
            TimeoutError: they are not within `begin_s`.
            BaseException: the stage has failed.
        """
        until = None if begin_s is None else time.monotonic() + begin_s
        loop = EventLoop(lambda: [self])
        try:
            self.register(loop.selector)
            while len(self.waiting) < stage.num_tasks:
                loop.turn(time.monotonic() + _LOOK_S)
                if stage.has_ended:
                    raise stage_failure(stage.error or RuntimeError("the Spark stage has ended"))
                if until is not None and time.monotonic() >= until and not self.was_reached:
                    raise TimeoutError(
                        f"The {stage.num_tasks} tasks of the job did not begin within {begin_s:g} s: a barrier stage "
                        "waits until as many slots are free at the same time. Other jobs of this Spark application "
                        "may hold them. More time: start_timeout, or HOROVOD_SPARK_START_TIMEOUT."
                    )
            tasks = sorted(self.waiting, key=lambda task: task.facts.number)
            for task in tasks:
                self.take(task)
            return tasks
        finally:
            self.close()
            loop.close()

    def close(self) -> None:
        """Ends the waiting tasks."""
        self._listener.close()
        for peer in [*self._new, *(task.peer for task in self.waiting)]:
            peer.close()
        self._new.clear()
        self.waiting.clear()

    def _admit(self, peer: socket.socket, handshake: ServerHandshake) -> None:
        notice_silence(peer)
        self.was_reached = True
        self._new[peer] = LineBuffer()
        self._selector.register(peer, selectors.EVENT_READ, lambda: self._read(peer))
        if handshake.rest:
            self._learn(peer, handshake.rest)

    def _read(self, peer: socket.socket) -> None:
        try:
            data = peer.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data and peer in self._new:
            self._learn(peer, data)
        else:  # the task has ended
            self._new.pop(peer, None)
            self.waiting = [task for task in self.waiting if task.peer is not peer]
            self._selector.unregister(peer)
            peer.close()

    def _learn(self, peer: socket.socket, data: bytes) -> None:
        for line in self._new[peer].feed(data):
            facts = TaskFacts(**json.loads(line))
            del self._new[peer]
            spaces = self._spaces.setdefault(facts.host, [])
            if facts.space not in spaces:
                spaces.append(facts.space)
            number = spaces.index(facts.space)
            host = facts.host if number == 0 else f"{facts.host}#{number + 1}"
            self.waiting.append(Task(peer, facts, host))


class TaskRanks(RemoteRanks):
    """A worker in a task of Spark.

    Args:
        host: the name of its host.
        task: the connection, which this object owns from now on.
        rank: its number, its own variables and its channel; the memory for its result, None if that goes to the job's
            store. The task has the command, the other variables and the function.
        secret: the job's.
    """

    def __init__(
        self,
        host: str,
        task: socket.socket,
        rank: RankSpec,
        secret: bytes,
    ) -> None:
        super().__init__(host, [], [rank], {}, None)
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
