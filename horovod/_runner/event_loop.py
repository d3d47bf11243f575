"""Ends a wait in a selector when a signal comes.

Python calls a signal's handler between two instructions of the main thread. A signal that comes behind the last of them
and before the system call that waits, or to another thread, does not end the wait, and its handler runs after it: Ctrl-C
would have no effect on a job whose ranks are silent. The interpreter writes the signal's number to a descriptor at once,
and the selector watches that.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import signal
import threading
from collections.abc import Callable
from typing import Any


class SignalWakeup:
    """From its creation to close(), signals end the waits of `selector`, which belongs to the calling thread. Handlers
    run in the main thread alone, so in another thread this does nothing.

    heard: is called with the numbers of the signals, a byte each. The program's own descriptor for signals (asyncio has
    one) gets them too.
    """

    def __init__(
        self, selector: selectors.BaseSelector, heard: Callable[[bytes], None] = lambda numbers: None
    ) -> None:
        self._selector, self._heard = selector, heard
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        except ValueError:  # not the main thread
            self._before = None
        else:
            selector.register(self._reader, selectors.EVENT_READ, self._pass_on)

    def _pass_on(self) -> None:
        numbers = os.read(self._reader, 4096)
        if self._before != -1:
            with contextlib.suppress(OSError):  # its reader is slow, or has gone
                os.write(self._before, numbers)
        self._heard(numbers)

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


# Calls functions that may wait, in threads of their own, and hands their results to the thread that turns a selector.


class Background:
    """All methods are for the selector's thread. Nothing waits for the threads: they are daemons, and a result that comes
    after close() is dropped."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._done: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        selector.register(self._wake, selectors.EVENT_READ, self._deliver)

    def call(self, function: Callable[[], Any], then: Callable[[Any], None]) -> bool:
        """Calls `function`, which raises nothing, and then `then` with its result on the selector's thread. Returns False
        if this machine cannot start a thread now."""

        def work() -> None:
            self._done.put((then, function()))
            with self._lock:
                if self._wake >= 0:
                    os.eventfd_write(self._wake, 1)

        try:
            threading.Thread(target=work, name="hvd-background", daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _deliver(self) -> None:
        os.eventfd_read(self._wake)
        while not self._done.empty():
            then, result = self._done.get()
            then(result)

    def close(self) -> None:
        with self._lock:
            self._selector.unregister(self._wake)
            os.close(self._wake)
            self._wake = -1
