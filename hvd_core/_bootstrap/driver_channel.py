"""A worker's end of the channel to the driver of its elastic job, over which it receives its place in each world.

The launcher hands the socket down (HOROVOD_ELASTIC_FD), and gives the worker's number (HOROVOD_ELASTIC_WORKER). Messages
are lines of JSON:

    worker -> driver   {"kind": "ready", "commits": 3, "updated": false,   in no world; waits for a place
                        "stalled": [1]}                                if a stall has ended its last world
                       {"kind": "up"}                                      init() has returned
                       {"kind": "synced"}                                  the state of rank 0 is here
                       {"kind": "announced"}                               SIGTERM: this process is about to end
                       {"kind": "done"}                                    the training has ended
                       {"kind": "again"}                                   another one begins
    driver -> worker   {"kind": "enter", "env": {...}, "sync": true}       come into this world
                       {"kind": "update"}                                  better: another world. Leave at the next commit
                       {"kind": "leave"}                                   you are not needed: exit
                       {"kind": "end"}                                     SIGTERM follows, and announces nothing

There is no thread here: the channel is read in init() and at commits. If the driver ends, the supervisor ends this
process. Used on the thread that calls init() and commit(); a worker's forked child has no channel.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hvd_core._base.messages import LineBuffer, line_of

DESCRIPTOR = "HOROVOD_ELASTIC_FD"
_WORKER = "HOROVOD_ELASTIC_WORKER"
_CHUNK = 1 << 16
_END = json.dumps({"kind": "end"}).encode()


class LeftJob(SystemExit):
    """The driver has ordered this process to end: the job does not need it any more. The exit code is 0."""

    def __init__(self) -> None:
        super().__init__(0)


@dataclass(frozen=True)
class Place:
    """A place in a world. `variables`: of the launcher for init(), rank and size among them. `sync`: the members receive
    the state of rank 0 first."""

    variables: Mapping[str, str]
    sync: bool

    @property
    def world(self) -> int:
        return int(self.variables["HOROVOD_EPOCH"])


class DriverChannel:
    """`commits`: the number of commits that the state of this process has seen. `updated`: this process leaves its world
    because of an update. `stalled`: the ranks that its last world waited for in vain, if it ended that world for that
    reason. These are sent to the driver with the next ready(). `place`: in the world of the last enter().
    `worker`: the number of this process, which never changes."""

    def __init__(self, descriptor: int, worker: int = 0) -> None:
        self.worker = worker
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._lines = LineBuffer()
        self._ended = False
        self._update = False
        self._end = False
        self._finished = False
        self._commits = 0
        self._synced_world = 0
        self.updated = False
        self.stalled: list[int] | None = None
        self.place: Place | None = None

    @property
    def commits(self) -> int:
        return self._commits

    @commits.setter
    def commits(self, number: int) -> None:
        # Only the state of the present world has its number of commits.
        self._commits = number
        if self.place is not None and self._synced_world != self.place.world:
            self._synced_world = self.place.world
            self._say(kind="synced")

    def enter(self) -> Place:
        """Waits for a place in the next world. Raises LeftJob if there is none for this process."""
        stalled = {} if self.stalled is None else {"stalled": self.stalled}
        self._say(kind="ready", commits=self.commits, updated=self.updated, **stalled)
        self._update = self.updated = False
        self.stalled = None
        while True:
            said = self._next()
            if said["kind"] in ("leave", "end"):
                raise LeftJob
            if said["kind"] == "enter":
                self.place = Place(said["env"], said["sync"])
                return self.place

    def up(self) -> None:
        """init() returns."""
        self._say(kind="up")

    def done(self) -> None:
        """The training has ended: no world is formed any more."""
        self._finished = True
        self._say(kind="done")

    def begin(self) -> None:
        """A training begins. If it is not the first one of this process, worlds are formed again when all members have
        begun it."""
        if self._finished:
            self._finished = False
            self._say(kind="again")

    def update_wanted(self) -> bool:
        """Whether the driver has said that this world should be left. Does not wait."""
        while not self._update and not self._ended:
            line = self._line(socket.MSG_DONTWAIT)
            if line is None:
                break
            self._update = json.loads(line)["kind"] == "update"
        return self._update

    def announced(self) -> None:
        """This process is about to end: it leaves at its next commit. May be called from a signal handler."""
        self._say(kind="announced")

    def must_end(self) -> bool:
        """Whether the driver ends this process now. Reads nothing away, so that a signal handler may call it."""
        try:
            waiting = self._socket.recv(_CHUNK, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            waiting = None
        except OSError:
            waiting = b""
        return self._end or self._ended or waiting == b"" or _END in self._lines.rest + (waiting or b"")

    def _say(self, **what: Any) -> None:
        try:
            self._socket.sendall(line_of(what), socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionError):
            self._ended = True

    def _next(self) -> dict[str, Any]:
        line = None if self._ended else self._line(0)
        if line is None:
            # The launcher has ended, and this process is about to be.
            raise LeftJob
        message: dict[str, Any] = json.loads(line)
        return message

    def _line(self, flags: int) -> bytes | None:
        """The next message; None at the end of the channel, or if there is none now."""
        while not self._lines.has_line():
            try:
                # A signal handler may ask must_end() between any two steps, and must find each byte at every moment.
                data = self._socket.recv(_CHUNK, flags | socket.MSG_PEEK)
                self._end = self._end or _END in self._lines.rest + data
                self._socket.recv(len(data))
            except BlockingIOError:
                return None
            except ConnectionError:
                data = b""
            if not data:
                self._ended = True
                return None
            self._lines.add(data)
        return self._lines.next_line()


# SIGTERM announces the end of a rank of an elastic job, if horovodrun gives a grace (--preemption-grace).
#
# A scheduler sends it some time before it takes a host away. The handler notifies the driver, and training continues:
# the ranks leave their world at the next commit, and this one receives the order to exit there. The driver itself ends
# processes by SIGTERM too; it announces that over the channel before. A handler of the program stays as it is. For the
# main thread.

GRACE = "HOROVOD_PREEMPTION_GRACE"
_installed = False


def handle_sigterm(channel: DriverChannel) -> None:
    """Handles SIGTERM from now on, if a grace was given and the program does not handle it itself. Only the main thread
    can do that."""
    global _installed
    if not os.environ.get(GRACE) or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def handle(number: int, _frame: object) -> None:
        if channel.must_end():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        else:
            channel.announced()

    signal.signal(signal.SIGTERM, handle)
    _installed = True


_channel: DriverChannel | None = None
_opened = False


def channel() -> DriverChannel | None:
    """The channel of this process; None if its job is not elastic, and in a worker's forked child. Raises ValueError if
    the job is elastic, but the launcher has not started this very process."""
    global _channel, _opened
    if not _opened:
        text = os.environ.get(DESCRIPTOR)
        if text is not None:
            _channel = _open(text)
            handle_sigterm(_channel)
            # A process that this one starts has a copy of the variables, but not the socket.
            del os.environ[DESCRIPTOR]
        _opened = True
    return _channel


def _open(text: str) -> DriverChannel:
    try:
        descriptor = int(text)
        os.fstat(descriptor)
        return DriverChannel(descriptor, int(os.environ.get(_WORKER, "0")))
    except (ValueError, OSError):
        raise ValueError(
            f"{DESCRIPTOR}={text!r} is not the socket of an elastic job. Only processes that horovodrun starts itself "
            "can be its ranks: let the script call `exec python ...` last, and let no wrapper close descriptors."
        ) from None


def _in_forked_child() -> None:
    # The child of a worker, such as a data loader's, has no channel, even if the worker has not opened its own yet, and
    # SIGTERM ends it.
    global _channel, _opened, _installed
    _channel, _opened = None, _opened or DESCRIPTOR in os.environ
    if _installed:
        _installed = False
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_in_forked_child)
