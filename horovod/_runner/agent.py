"""The agent: runs the ranks of one host for a launcher on another, as `python -m horovod._runner.agent`.

It reads the job from its standard input (protocol.py), and writes the ranks' output and exit codes to its standard
output. A supervisor owns the ranks, as in the launcher. They are ended when the standard input closes, when the launcher
asks, and when the agent is killed. One thread. A derived class runs in the tasks of Spark (horovod/spark/_task.py).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from horovod._runner.environment import GRACE
from horovod._runner.event_loop import EventLoop, LoopWriter, Member, SignalWakeup
from horovod._runner.functions import FunctionMemory, write_all
from horovod._runner.local_ranks import LocalRanks
from horovod._runner.protocol import (
    MAGIC,
    PROTOCOL,
    Kind,
    channel_frame,
    memory_frames,
    output_frame,
    split_result,
)
from horovod._runner.site import Event, Listener, RankSpec, Site
from hvd_core._base.messages import FrameBuffer, ProtocolError, frame

# If the launcher has not read more than this, the agent stops reading the ranks' output.
_MOST_HELD = 1 << 20
# Regular messages, because a silent connection does not notice that it is dead.
_BEAT_S = 15.0
_STORE_CHECK_S = 10.0
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_REQUESTS: dict[int, str] = {Kind.STOP: "stop", Kind.FAIL: "fail", Kind.KILL: "kill"}
# The launcher sets these for the agent alone; the ranks get the launcher's own values.
_FOR_AGENT = ("PYTHONPATH", "PYTHONSAFEPATH")


class Refused(Exception):
    """The ranks cannot run on this host; the text is for the user."""


def _check_store(address: str, host: str) -> None:
    """Raises Refused unless the launcher's store can be reached from here."""
    name, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((name.strip("[]"), int(port)), timeout=_STORE_CHECK_S).close()
    except OSError as error:
        raise Refused(
            f"it does not reach the launcher at {address} ({error.strerror or error}). Is there a firewall, or does "
            f"another interface lead to {host}? Name it with --network-interfaces."
        ) from None


def _enter(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise Refused(
            f"the folder {directory} cannot be entered there ({error.strerror}). The ranks run in the folder that "
            "horovodrun was started in; it must exist on every host."
        ) from None


def check_protocol(job: dict[str, Any]) -> None:
    """Raises Refused if the launcher speaks another version."""
    if job["protocol"] != PROTOCOL:
        raise Refused(
            f"its horovod has version {PROTOCOL} of the agents' protocol, the launcher has version "
            f"{job['protocol']}. Install the same version on all hosts."
        )


class Agent(Listener):
    """One job. `source` and `target` are the descriptors that lead to the launcher."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._incoming = FrameBuffer()
        self._arrived: list[tuple[int, bytes]] = []
        self._loop = EventLoop(self._members)
        self._selector = self._loop.selector
        self._outgoing = LoopWriter(self._selector, target)
        self._next_beat = 0.0
        self._memory: FunctionMemory | None = None
        self._ranks: LocalRanks
        self._launcher_gone = False
        self._may_announce = False  # SIGTERM is an announcement

    def run(self) -> int:
        """The whole job; returns the agent's exit status."""
        os.write(self._target, MAGIC)
        job = self._wait_for(Kind.JOB)
        if job is None:
            print(
                "horovodrun's agent got no job: the remote shell must pass standard input on (as 'kubectl exec -i').",
                file=sys.stderr,
            )
            return 1
        description = json.loads(job)
        try:
            self._prepare(description)
        except Refused as refused:
            self._send_now(frame(Kind.REFUSED, str(refused).encode(errors="replace")))
            return 1
        answer = {"host": socket.gethostname(), "pid": os.getpid(), "python": sys.executable}
        self._send_now(frame(Kind.READY, json.dumps(answer).encode()))
        if self._wait_for(Kind.START) is None:
            self._send_now(frame(Kind.END))
            return 0
        self._follow()
        if self._launcher_gone:
            return 1
        os.set_blocking(self._target, True)
        self._outgoing.flush()
        if self._memory is not None:
            for rank, descriptor in self._memory.results.items():
                for part in memory_frames(Kind.RESULT, descriptor, rank):
                    self._send_now(part)
        self._send_now(frame(Kind.END))
        return 0

    def _prepare(self, job: dict[str, Any]) -> None:
        check_protocol(job)
        _enter(job["directory"])
        if job["store"] is not None:  # the stores of an elastic job's worlds do not exist yet
            _check_store(job["store"], job["host"])
        ranks = [entry["rank"] for entry in job["ranks"]]
        if job["function_bytes"] is not None:
            self._memory = FunctionMemory(ranks)
            missing = job["function_bytes"]
            while missing:
                part = self._wait_for(Kind.FUNCTION)
                if part is None:
                    raise Refused("the launcher did not send the whole function")
                write_all(self._memory.function, part, "ab")
                missing -= len(part)
        specs = [
            RankSpec(entry["rank"], job["command"], entry["env"], self._memory, job["channel"])
            for entry in job["ranks"]
        ]
        own = {name: value for name, value in os.environ.items() if name not in _FOR_AGENT}
        env = {**own, **job["env"], "PWD": job["directory"]}
        self._may_announce = job["channel"] is not None and bool(env.get(GRACE))
        self._ranks = LocalRanks(specs, env)

    def _wait_for(self, wanted: Kind) -> bytes | None:
        """The payload of the next frame, before the ranks start; None if the launcher ended or the frame has another
        kind."""
        while not self._arrived:
            data = os.read(self._source, 1 << 18)
            if not data:
                return None
            self._arrived += self._incoming.feed(data)
        kind, payload = self._arrived.pop(0)
        return payload if kind == wanted else None

    def _send_now(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._target, view) :]

    def _follow(self) -> None:
        """Passes on output and events until no process of the ranks is left."""
        wakeup = SignalWakeup(self._selector, self._signals_received)
        for number in _ENDING:
            signal.signal(number, lambda *_: None)
        os.set_blocking(self._source, False)
        os.set_blocking(self._target, False)
        self._selector.register(self._source, selectors.EVENT_READ, self._read)
        self._ranks.open(self._selector, self)
        self._ranks.begin()
        self._obey()
        self._next_beat = time.monotonic() + _BEAT_S
        while not self._ranks.over:
            if not self._launcher_gone:
                self._write()
            self._loop.turn()
        self._ranks.close()
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
        wakeup.close()

    def _members(self) -> Sequence[Member]:
        return (self, self._ranks)

    def due(self) -> float | None:
        return None if self._launcher_gone else self._next_beat

    def advance(self, now: float) -> None:
        """See event_loop.Member. Shows the launcher that the connection is alive."""
        if now >= self._next_beat:
            self._report(frame(Kind.BEAT))
            self._next_beat = now + _BEAT_S

    def _write(self) -> None:
        try:
            self._outgoing.write()
        except OSError:
            self._lose_launcher()
            return
        self._ranks.pause(self._outgoing.size > _MOST_HELD)

    def _read(self) -> None:
        try:
            data = os.read(self._source, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose_launcher()
            return
        try:
            self._arrived += self._incoming.feed(data)
        except ProtocolError as error:
            print(f"horovodrun's agent: {error}", file=sys.stderr)
            self._lose_launcher()
        self._obey()

    def _obey(self) -> None:
        for kind, payload in self._arrived:
            if kind == Kind.SEND:
                self._send(*split_result(payload))
            elif kind in _REQUESTS:
                self._ranks.request(_REQUESTS[kind])
        self._arrived.clear()

    def _send(self, rank: int, data: bytes) -> None:
        self._ranks.send(rank, data)

    def _signals_received(self, numbers: bytes) -> None:
        """SIGTERM announces the end of this host to an elastic job that gives a grace; otherwise it ends the job here."""
        if self._launcher_gone:
            return
        if self._may_announce and set(numbers) == {signal.SIGTERM}:
            self._ranks.request("announce")
        else:
            self._lose_launcher()

    def _lose_launcher(self) -> None:
        """The launcher is gone: ends the ranks and discards their output."""
        if self._launcher_gone:
            return
        self._launcher_gone = True
        self._outgoing.unwatch()
        self._selector.unregister(self._source)
        self._ranks.pause(False)
        self._ranks.hang_up()

    def _report(self, data: bytes) -> None:
        if not self._launcher_gone:
            self._outgoing.add(data)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self._report(output_frame(rank, stream, data))

    def message(self, rank: int, data: bytes) -> None:
        self._report(channel_frame(Kind.MESSAGE, rank, data))

    def event(self, site: Site, event: Event) -> None:
        self._report(frame(Kind.EVENT, json.dumps(event).encode()))


def main() -> int:
    """The program; returns its exit status."""
    # Other output of this process must not get between the frames.
    source, target = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    try:
        return Agent(source, target).run()
    except (BrokenPipeError, ConnectionError):
        return 1  # the launcher has gone


if __name__ == "__main__":
    sys.exit(main())
