"""Calls functions that may wait, in threads of their own, and hands their results to the thread that turns a selector."""

from __future__ import annotations

import os
import queue
import selectors
import threading
from collections.abc import Callable
from typing import Any


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
