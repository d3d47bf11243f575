"""Executes a shell command and ends all of its processes with it. Blocks its thread; any thread."""

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from horovod._runner.event_loop import EventLoop
from horovod._runner.failures import shell_code
from horovod._runner.local_ranks import LocalRanks
from horovod._runner.site import STREAMS, Event, Listener, RankSpec, Site
from hvd_core._base.messages import LineBuffer

__all__ = ["GRACEFUL_TERMINATION_TIME_S", "execute"]

GRACEFUL_TERMINATION_TIME_S = 5  # of the supervisor
_LOOK_S = 0.05


def execute(
    command: str,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    index: int | None = None,
    events: Sequence[threading.Event] | None = None,
    prefix_output_with_timestamp: bool = False,
) -> int:
    """The exit code of a shell command; 128 + N if the signal N ended it.

    Args:
        command: for /bin/sh.
        env: the whole environment; None for that of this process.
        stdout, stderr: objects with a method write() that takes text; None for the streams of this process.
        index: a number; each line begins with "[index]<stdout>:" then.
        events: when one of them is set, the command and its children get SIGTERM, and SIGKILL after
            GRACEFUL_TERMINATION_TIME_S seconds.
        prefix_output_with_timestamp: write the time before that number.

    Raises:
        RuntimeError: the supervisor of the command was killed.
    """
    listener = _Output((stdout, stderr), index, prefix_output_with_timestamp)
    spec = RankSpec(0, ["/bin/sh", "-c", command], {}, notes_calls=False)
    site = LocalRanks([spec], os.environ if env is None else env)
    loop = EventLoop(lambda: [site])
    try:
        site.open(loop.selector, listener)
        site.begin()
        stopped = False
        while not site.over:
            loop.turn(time.monotonic() + _LOOK_S if events else None)
            if not stopped and any(event.is_set() for event in events or ()):
                stopped = True
                site.request("stop")
    finally:
        site.hang_up()
        site.close()
        loop.close()
    return listener.code


class _Output(Listener):
    """Writes the lines of the command, and has its exit code."""

    def __init__(self, sinks: tuple[Any, Any], index: int | None, timestamp: bool) -> None:
        self._sinks, self._index, self._timestamp = sinks, index, timestamp
        self._lines = [LineBuffer(longest=0) for _ in STREAMS]
        self.code = 1

    def output(self, rank: int, stream: int, data: bytes) -> None:
        lines = [line + b"\n" for line in self._lines[stream].feed(data)]
        if not data:
            lines = list(filter(None, [self._lines[stream].take_rest()]))
        sink = self._sinks[stream] or getattr(sys, STREAMS[stream])
        for line in lines:
            time_ = time.asctime() if self._timestamp else ""
            prefix = "" if self._index is None else f"{time_}[{self._index}]<{STREAMS[stream]}>:"
            sink.write(prefix + line.decode(errors="replace"))
            getattr(sink, "flush", lambda: None)()

    def event(self, site: Site, event: Event) -> None:
        if event["event"] == "exit":
            self.code = shell_code(event["code"])
        elif event["event"] == "lost":
            raise RuntimeError(event["text"])
