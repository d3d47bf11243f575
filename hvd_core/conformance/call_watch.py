"""Watches the calls into a backend: a call that does not come back is named, and ends its case and its process.

The case itself cannot notice, because it is inside of the call. Times of calls are kept for reports.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Calls that may wait for other ranks or for a device until their deadline, which is at most 25 s away.
WAITING = frozenset(
    [
        "create",
        "create_test",
        "split",
        "finalize",
        "collective",
        "group_end",
        "req_wait",
        "stream_sync",
        "event_wait",
    ]
)
WAITING_S, PROMPT_S = 45.0, 15.0
_LOOK_S = 0.25


class Calls:
    """The calls that run now, and the longest of each slot so far. Any thread."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[str, float]] = {}
        self.longest: dict[str, float] = {}

    def running(self, slot: str) -> _Call:
        """The calling thread is in a call of ``slot`` inside of the block."""
        return _Call(self, slot)

    def stuck(self, patience: float) -> str:
        """The slot whose call has exceeded its limit, in words; "" if there is no such call."""
        now = time.monotonic()
        for slot, began in list(self._running.values()):
            limit = (WAITING_S if slot in WAITING else PROMPT_S) * patience
            if now - began > limit:
                return f"the call {slot} has not come back within {limit:g} s"
        return ""


class _Call:
    """One call, as a context. It is a class because the kit makes a hundred thousand calls, and a generator costs more
    than many of them."""

    __slots__ = ("_began", "_calls", "_slot", "_thread")

    def __init__(self, calls: Calls, slot: str) -> None:
        self._calls, self._slot = calls, slot

    def __enter__(self) -> None:
        self._thread, self._began = threading.get_native_id(), time.monotonic()
        self._calls._running[self._thread] = (self._slot, self._began)

    def __exit__(self, *_) -> None:
        self._calls._running.pop(self._thread, None)
        took, longest = time.monotonic() - self._began, self._calls.longest
        if took >= longest.get(self._slot, 0.0):
            longest[self._slot] = took


def watch(calls: Calls, patience: float, report: Callable[[str], None]) -> None:
    """Start the thread that looks at the calls. ``report`` gets the words for the first call that is stuck, on that
    thread, and must end the process."""

    def look() -> None:
        while not (words := calls.stuck(patience)):
            time.sleep(_LOOK_S)
        report(words)

    threading.Thread(target=look, name="hvd-kit-watch", daemon=True).start()
