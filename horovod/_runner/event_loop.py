"""The event loop of a job: one thread waits for descriptors, points in time, signals and background threads at the
same time.

`EventLoop.turn()` waits once and handles what has happened. What runs on the loop is a `Member`: it says when it must act
next (`due`), and acts when the time has come (`advance`). Descriptors are registered in `selector`; the `data` of each
key is a function to call.

Why not asyncio: horovod.run() blocks its thread, and is called in notebooks, where that thread is inside of a running
asyncio loop already, in which no second one can run. Members are synchronous: the requests to end a job come from signal
handlers, and a host's back-pressure must stop the reading of pipes in the same turn. And importing asyncio would cost
each start of an agent and of horovodrun more than all of the launcher's other imports.

All methods are for the loop's thread, except wake(), which signal handlers and other threads may call.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from hvd_core._base.messages import WriteQueue


class Member(Protocol):
    """Something that runs on an event loop."""

    def due(self) -> float | None:
        """When advance() must be called at the latest (time.monotonic()); None: not before an event."""

    def advance(self, now: float) -> None:
        """Takes the steps that are due. Called once in each turn; must not wait."""


class EventLoop:
    """One thread's loop.

    Args:
        members: the members that run now; called in each turn.
    """

    def __init__(self, members: Callable[[], Iterable[Member]] = tuple) -> None:
        self.selector = selectors.DefaultSelector()
        self._members = members
        self._results: queue.SimpleQueue[tuple[Callable[[Any], None], Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.selector.register(self._wake, selectors.EVENT_READ, self._woken)

    def turn(self, until: float | None = None) -> None:
        """Waits for an event, but not longer than `until` and than the first member that is due; handles the events, and
        lets all members advance."""
        due = [moment for member in self._members() if (moment := member.due()) is not None]
        due += [] if until is None else [until]
        for key, _ in self.selector.select(max(0.0, min(due) - time.monotonic()) if due else None):
            key.data()
        now = time.monotonic()
        for member in list(self._members()):
            member.advance(now)

    def wake(self) -> None:
        """Ends the wait of turn(). Any thread, and signal handlers; has no effect after close()."""
        with contextlib.suppress(OSError):
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def call_in_thread(self, function: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Calls `function`, which may wait and raises nothing, in a thread, and then `then` with its result on the loop.
        Nothing waits for the thread: it is a daemon, and a result that comes after close() is dropped."""

        def work() -> None:
            self._results.put((then, function()))
            with self._lock:  # close() must not close the descriptor, whose number would be another's then
                self.wake()

        threading.Thread(target=work, name="hvd-background", daemon=True).start()

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while not self._results.empty():
            then, result = self._results.get()
            then(result)

    def close(self) -> None:
        """Releases the selector."""
        with self._lock:
            wake, self._wake = self._wake, -1
            self.selector.close()
            os.close(wake)


class LoopWriter(WriteQueue):
    """A WriteQueue whose descriptor the loop watches while bytes wait."""

    def __init__(
        self, selector: selectors.BaseSelector, descriptor: int, first: Iterable[bytes] = ()
    ) -> None:
        super().__init__(descriptor, first)
        self._selector, self._watched = selector, False

    def write(self) -> None:
        """Writes what there is room for. To be called once in each turn. Raises OSError if the reader is gone."""
        self._watch(not self.flush())

    def _watch(self, watched: bool) -> None:
        if watched and not self._watched:
            self._selector.register(self.descriptor, selectors.EVENT_WRITE, lambda: None)
        elif self._watched and not watched:
            self._selector.unregister(self.descriptor)
        self._watched = watched

    def unwatch(self) -> None:
        """The descriptor is not watched any more."""
        self._watch(False)


class SignalWakeup:
    """Ends a wait in a selector when a signal comes.

    Python calls a signal's handler between two instructions of the main thread. A signal that comes behind the last
    of them and before the system call that waits, or to another thread, does not end the wait, and its handler runs
    after it: Ctrl-C would have no effect on a job whose ranks are silent. The interpreter writes the signal's number
    to a descriptor immediately, and the selector watches that.

    From its creation to close(), signals end the waits of `selector`, which belongs to the calling thread. Handlers run
    in the main thread alone, so in another thread this does nothing.

    Args:
        selector: the selector of the calling thread.
        received: is called with the numbers of the signals, a byte each. The program's own descriptor for signals
            (asyncio has one) gets them too.
    """

    def __init__(
        self, selector: selectors.BaseSelector, received: Callable[[bytes], None] = lambda numbers: None
    ) -> None:
        self._selector, self._received = selector, received
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before: int | None
        try:
            self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        except ValueError:  # not the main thread
            self._before = None
        else:
            selector.register(self._reader, selectors.EVENT_READ, self._pass_on)

    def _pass_on(self) -> None:
        numbers = os.read(self._reader, 4096)
        if self._before is not None and self._before != -1:
            with contextlib.suppress(OSError):  # its reader is slow, or has gone
                os.write(self._before, numbers)
        self._received(numbers)

    def close(self) -> None:
        """The program's own descriptor is the interpreter's again."""
        if self._before is not None:
            self._selector.unregister(self._reader)
            try:
                signal.set_wakeup_fd(self._before)
            except (ValueError, OSError):  # the program has closed it
                signal.set_wakeup_fd(-1)
        for descriptor in (self._reader, self._writer):
            os.close(descriptor)
