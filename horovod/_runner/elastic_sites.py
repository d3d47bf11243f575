"""The processes of an elastic job's workers. On the thread of the driver, which decides when one starts and ends.

Each worker is a site of its own (LocalRanks or RemoteRanks with one rank), so that the end of one ends no other.
"""

from __future__ import annotations

import json
import selectors
from collections.abc import Callable

from horovod._runner.local_ranks import STREAMS, Listener, LocalRanks
from horovod._runner.output import RankStream
from horovod._runner.remote_ranks import RemoteRanks

Site = LocalRanks | RemoteRanks  # with one worker


class Sites:
    """`start(number, host)` makes the site of a worker, `ended(number)` is called after its end, `stream(number, name)`
    makes the stream for its output. `sites` and `streams` belong to the Job, which turns them."""

    def __init__(
        self,
        start: Callable[[int, str], Site],
        ended: Callable[[int], None],
        stream: Callable[[int, str], RankStream],
        sites: list[Site],
        streams: dict[tuple[int, int], RankStream],
        selector: selectors.BaseSelector,
        listener: Listener,
    ) -> None:
        self._start, self._ended, self._stream = start, ended, stream
        self._sites, self._streams = sites, streams
        self._selector, self._listener = selector, listener
        self._number = 0
        self.by_number: dict[int, Site] = {}
        self.opened: dict[int, float] = {}  # when the site of a worker was opened
        self._pids: dict[int, int] = {}  # of workers of this machine
        self._leave_until: dict[int, float] = {}  # when a worker must have left
        self.stopped: set[int] = set()  # workers that were told to end

    def open(self, host: str, now: float) -> tuple[int, OSError | None]:
        """(the number of a new worker, why this machine cannot start it now)"""
        number, self._number = self._number, self._number + 1
        try:
            site = self._start(number, host)
            for index, name in enumerate(STREAMS):
                self._streams[number, index] = self._stream(number, name)
            site.open(self._selector, self._listener)
        except OSError as error:
            self._end_streams(number)
            self._ended(number)
            return number, error
        self._sites.append(site)
        self.by_number[number], self.opened[number] = site, now
        return number, None

    def remove(self, number: int) -> None:
        """The site of a worker is over."""
        site = self.by_number.pop(number)
        site.close()
        self._sites.remove(site)
        self._end_streams(number)
        self._ended(number)

    def _end_streams(self, number: int) -> None:
        for index in range(len(STREAMS)):
            if (stream := self._streams.pop((number, index), None)) is not None:
                stream.end()

    def say(self, number: int, **what) -> None:
        """Sends a message over the channel of a worker (hvd_core/_bootstrap/driver_channel.py)."""
        if (site := self.by_number.get(number)) is not None:
            site.tell(number, json.dumps(what).encode() + b"\n")

    def stop(self, number: int) -> None:
        """SIGTERM, and SIGKILL after a while. The worker is told before that this is no announcement."""
        if (site := self.by_number.get(number)) is not None:
            self.stopped.add(number)
            self.say(number, kind="end")
            site.request("stop")

    def stop_all(self) -> None:
        for number in list(self.by_number):
            self.stop(number)

    def kill(self, number: int) -> None:
        if (site := self.by_number.get(number)) is not None:
            site.request("kill")

    def leave_until(self, number: int, moment: float) -> None:
        """The worker is stopped at this moment if it has not ended by then."""
        self._leave_until[number] = min(moment, self._leave_until.get(number, moment))

    def due(self) -> list[float]:
        return list(self._leave_until.values())

    def advance(self, now: float) -> None:
        for number, moment in list(self._leave_until.items()):
            if now >= moment:
                self._leave_until.pop(number)
                self.stop(number)

    def started(self, number: int, pid: int) -> None:
        """The process of a worker on this machine runs."""
        self._pids[number] = pid

    def ended(self, number: int) -> None:
        """The process of a worker has ended."""
        self._leave_until.pop(number, None)
        self._pids.pop(number, None)

    def is_stopped(self, number: int) -> bool:
        """Whether a process of this machine is stopped by a signal. It cannot leave its world then."""
        try:
            with open(f"/proc/{self._pids[number]}/stat", "rb") as stat:
                # The name in parentheses may itself hold spaces and parentheses.
                return stat.read().rpartition(b")")[2].split()[0] == b"T"
        except (KeyError, IndexError, OSError):
            return False
