"""SIGTERM announces the end of a rank of an elastic job, if horovodrun gives a grace (--preemption-grace).

A scheduler sends it some time before it takes a host away. The handler tells the driver, and training goes on: the ranks
leave their world at the next commit, and this one is told to exit there. The driver itself ends processes by SIGTERM too;
it says so over the channel before. A handler of the program stays as it is. For the main thread.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Protocol

GRACE = "HOROVOD_PREEMPTION_GRACE"


class Channel(Protocol):
    """The part of DriverChannel that is used here. Both may be called from a signal handler."""

    def announced(self) -> None: ...

    def must_end(self) -> bool: ...


_installed = False


def listen(channel: Channel) -> None:
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


def forget() -> None:
    """In a forked child, such as a data loader's worker: SIGTERM ends it."""
    global _installed
    if _installed:
        _installed = False
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
