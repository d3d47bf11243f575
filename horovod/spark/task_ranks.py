"""The slots of an elastic job on Spark, as the driver sees them: connections of tasks, and the workers at their ends.

On the thread that turns the job's selector.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Mapping

from horovod._runner.functions import FunctionMemory
from horovod._runner.protocol import Incoming, Outgoing, ProtocolError
from horovod._runner.remote_ranks import RemoteRanks
from horovod.spark.proven_listener import ProvenListener
from horovod.spark.task_frames import LONGEST_FACTS, PURPOSE, facts_of, notice_silence, veiled


class TaskPool:
    """The tasks that wait for a worker. `port`: where they connect to; `heard`: a task has connected once."""

    def __init__(self, host: str, secret: bytes) -> None:
        self._listener = ProvenListener(host, secret, PURPOSE)
        self.port = self._listener.port
        self.heard = False
        self._new: dict[socket.socket, Incoming] = {}  # have not described themselves yet
        self._idle: dict[str, list[socket.socket]] = {}
        self._spaces: dict[str, list[str]] = {}  # of a host, in the order in which they were heard of
        self._selector: selectors.BaseSelector | None = None

    def begin(self, selector: selectors.BaseSelector, note: Callable[[str], None]) -> None:
        self._selector, self._note = selector, note
        self._listener.begin(selector, self._admit, self._refused)

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

    def _admit(self, peer: socket.socket, rest: bytes) -> None:
        notice_silence(peer)
        self.heard = True
        self._new[peer] = Incoming()
        self._selector.register(peer, selectors.EVENT_READ, lambda: self._read(peer))
        if rest:
            self._learn(peer, rest)

    def _read(self, peer: socket.socket) -> None:
        try:
            data = peer.recv(LONGEST_FACTS)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data and peer in self._new:
            self._learn(peer, data)
        else:  # the task has ended; or it speaks before it is asked
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
        ranks: Mapping[int, Mapping[str, str]],
        function: FunctionMemory,
        channel: str,
        secret: bytes,
    ) -> None:
        # The task has the command, the other variables and the function.
        super().__init__(host, [], [], ranks, {}, None, function, channel)
        self._task, self._secret = task, secret

    def _connect(self) -> None:
        self._outgoing = Outgoing(os.dup(self._task.fileno()), self._introduction())
        self._readers = {"stdout": os.dup(self._task.fileno())}

    def tell(self, rank: int, data: bytes) -> None:
        """As RemoteRanks.tell()."""
        super().tell(rank, veiled(data, self._secret))

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
