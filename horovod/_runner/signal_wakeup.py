"""Ends a wait in a selector when a signal comes.

Python calls a signal's handler between two instructions of the main thread. A signal that comes behind the last of them
and before the system call that waits, or to another thread, does not end the wait, and its handler runs after it: Ctrl-C
would have no effect on a job whose ranks are silent. The interpreter writes the signal's number to a descriptor at once,
and the selector watches that.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Callable


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
