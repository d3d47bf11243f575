"""The processes of an elastic job's workers: where they start, when they are ended, and what counts as a host's failure.

Each worker is a site of its own (LocalRanks or RemoteRanks with one rank), so that the end of one ends no other.
`Workers` has the sites, `Cooldown` the hosts that failed, `Chaos` kills on purpose, and `Timeouts` ends what is late.
On the thread of the driver; the caller gives the time (time.monotonic()).
"""

from __future__ import annotations

import json
import random
import selectors
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from horovod._runner.elastic_membership import Failure, Limits, Membership, Phase, Stage, Worker
from horovod._runner.output import OutputStream
from horovod._runner.site import STREAMS, Listener, Site


class Workers:
    """The sites of all workers that have not ended.

    Args:
        start: makes the site of a worker from its number and its host.
        ended: is called with a worker's number after its end.
        stream: makes a stream for a worker's output from its number and the stream's name.
        sites, streams: those of the job, whose event loop runs them.
        selector, listener: see Site.open().
    """

    def __init__(
        self,
        start: Callable[[int, str], Site],
        ended: Callable[[int], None],
        stream: Callable[[int, str], OutputStream],
        sites: list[Site],
        streams: dict[tuple[int, int], OutputStream],
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
        self.stopped: set[int] = set()  # workers that were sent a request to end

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
        """The site of a worker has ended."""
        site = self.by_number.pop(number)
        site.close()
        self._sites.remove(site)
        self._end_streams(number)
        self._ended(number)

    def _end_streams(self, number: int) -> None:
        for index in range(len(STREAMS)):
            if (stream := self._streams.pop((number, index), None)) is not None:
                stream.end()

    def send(self, number: int, **message: Any) -> None:
        """Sends a message over the channel of a worker (hvd_core/_bootstrap/driver_channel.py)."""
        if (site := self.by_number.get(number)) is not None:
            site.send(number, json.dumps(message).encode() + b"\n")

    def stop(self, number: int) -> None:
        """SIGTERM, and SIGKILL after a while. A message before that says that this is no announcement."""
        if (site := self.by_number.get(number)) is not None:
            self.stopped.add(number)
            self.send(number, kind="end")
            site.request("stop")

    def stop_all(self) -> None:
        """Calls stop() for all workers."""
        for number in list(self.by_number):
            self.stop(number)

    def kill(self, number: int) -> None:
        """SIGKILL."""
        if (site := self.by_number.get(number)) is not None:
            site.request("kill")

    def leave_until(self, number: int, moment: float) -> None:
        """The worker is stopped at this moment if it has not ended by then."""
        self._leave_until[number] = min(moment, self._leave_until.get(number, moment))

    def due(self) -> float | None:
        """See event_loop.Member."""
        return min(self._leave_until.values(), default=None)

    def advance(self, now: float) -> None:
        """See event_loop.Member."""
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
        import psutil  # late: it is needed only after a stall

        try:
            return bool(psutil.Process(self._pids[number]).status() == psutil.STATUS_STOPPED)
        except (KeyError, psutil.Error):
            return False


def with_slots(membership: Membership, hosts: Mapping[str, int], going: Collection[int]) -> list[int]:
    """A host's oldest workers keep their slots, members before spares. `hosts`: {host: slots}; `going`: workers that are
    about to end."""
    members, kept = set(membership.members), []
    for host, slots in hosts.items():
        here = [w for w in membership.alive() if w.host == host and not w.leaving and w.number not in going]
        here.sort(key=lambda worker: (worker.number not in members, worker.number))
        kept += [worker.number for worker in here[:slots]]
    return kept


def free_slots(
    membership: Membership,
    hosts: Mapping[str, int],
    most: int | None,
    usable_at: Callable[[str, bool], float | None],
    now: float,
) -> Iterator[str]:
    """A host for each worker that may start now. `most`: workers in all, None for as many as there are slots;
    `usable_at`: see Cooldown."""
    used: dict[str, int] = {}
    count = 0
    for worker in membership.alive():
        if not worker.leaving:
            used[worker.host] = used.get(worker.host, 0) + 1
            count += worker.wanted
    most = sum(hosts.values()) if most is None else most
    for host, slots in hosts.items():
        usable = usable_at(host, len(hosts) == 1)
        if usable is None or now < usable:
            continue
        for _ in range(min(slots - used.get(host, 0), most - count)):
            count += 1
            yield host


# Of the only host of a job, if the user gave no range: it is used again, or the job could not go on.
_ONLY_HOST_S = (1.0, 60.0)
# Failures that are older do not count.
_FORGOTTEN_S = 600.0


class Cooldown:
    """When a host may be used again after a process has failed on it.

    `limits`: the shortest and the longest pause in seconds; None: a host that failed is not used again, unless it is
    the only one. The pause doubles with each failure of the host."""

    def __init__(self, limits: tuple[float, float] | None) -> None:
        self._limits = limits
        self._failures: dict[str, list[float]] = {}
        self._usable: dict[str, float] = {}
        self._announced: dict[str, float] = {}

    def announced(self, host: str, until: float) -> None:
        """A process of a host has got SIGTERM, so the host may be about to go: it gets no new one until then."""
        self._announced[host] = until

    def failed(self, host: str, now: float) -> None:
        """A process has failed on a host."""
        recent = [moment for moment in self._failures.get(host, ()) if now - moment < _FORGOTTEN_S]
        low, high = self._limits or _ONLY_HOST_S
        pause = low * 2.0 ** len(recent) + random.random() * low
        self._failures[host] = [*recent, now]
        self._usable[host] = now + min(max(pause, low), high)

    def usable_at(self, host: str, is_only_one: bool) -> float | None:
        """When a process may be started on a host; None: never."""
        announced = self._announced.get(host, 0.0)
        if host not in self._usable:
            return announced
        if self._limits is None and not is_only_one:
            return None
        return max(announced, self._usable[host])


_HOLDERS = (Stage.READY, Stage.UP)


class Chaos:
    """Kills workers on purpose (--elastic-chaos), so that users can test their programs.

    Sends SIGKILL to a worker after 0.5 to 1.5 times `every_s` seconds, again and again, once the first world is up: a
    member, a spare, or one that still starts. Leaves alone the last one that is known to hold the state, without which
    the job would end. `killed`: the workers that it has killed, whose deaths are no failures of their hosts."""

    def __init__(self, every_s: float, workers: Workers, note: Callable[[str], None]) -> None:
        self._every_s, self._workers, self._note = every_s, workers, note
        self._random = random.Random()
        self._next: float | None = None
        self._have_state: set[int] = set()
        self.killed: set[int] = set()

    def due(self) -> float | None:
        """When advance() must be called at the latest."""
        return self._next

    def entered(self, members: tuple[int, ...], sync: bool) -> None:
        """A world was formed. With `sync`, its members receive the state of rank 0."""
        self._have_state = set(members[:1] if sync else members)

    def has_state(self, number: int) -> None:
        """A member has received the state."""
        self._have_state.add(number)

    def advance(self, now: float, membership: Membership) -> None:
        """Kills a worker if it is time."""
        if membership.phase is Phase.ENDING or (self._next is None and membership.phase is not Phase.RUNNING):
            return
        if self._next is not None and now >= self._next:
            self._strike(membership)
        if self._next is None or now >= self._next:
            self._next = now + self._every_s * self._random.uniform(0.5, 1.5)

    def _strike(self, membership: Membership) -> None:
        alive = [w for w in membership.alive() if not w.leaving and w.number not in self.killed]
        holders = [w.number for w in alive if w.number in self._have_state and w.stage in _HOLDERS]
        if not holders:
            return
        kept = self._random.choice(holders)
        victims = [worker.number for worker in alive if worker.number != kept]
        if victims:
            victim = self._random.choice(victims)
            self.killed.add(victim)
            self._note(f"process {victim} is killed on purpose (--elastic-chaos)")
            self._workers.kill(victim)


# A member that has kept the last world waiting, until a stall ended it, gets this time to leave it after the others.
_STALLED_S = 5.0
# A member that is stuck is sent SIGTERM, and SIGKILL 5 s later. Then those that waited for it get time to leave.
_NEXT_KILL_S = 15.0
# The driver looks at the time twice a second while it waits for workers. After a longer gap it was stopped itself.
_GAP_S = 5.0


class Timeouts:
    """Ends late processes, and the job, while it waits for workers. `asked_to_end`: the workers that came too late."""

    def __init__(self, limits: Limits, workers: Workers, note: Callable[[str], None]) -> None:
        self._limits, self._workers, self._note = limits, workers, note
        self.asked_to_end: set[int] = set()
        self._looked = 0.0  # when the times were looked at last, while the phase is GATHERING
        # Since when the phase is GATHERING; at first, since the first answer of discovery.
        self._waits_since: float | None = None
        self._lacks_since = 0.0  # since when there are too few slots
        self._first_ready: float | None = None
        self._stalled: set[int] | None = (
            None  # the members that the last world waited for, if a stall has ended it
        )

    @property
    def begun(self) -> bool:
        """Whether discovery has answered."""
        return self._waits_since is not None

    def begin(self, now: float) -> None:
        """The phase is GATHERING from now on."""
        self._looked = self._waits_since = self._lacks_since = now
        self._stalled = None

    def world_stalled(self, numbers: Iterable[int]) -> None:
        """The last world was ended because it waited too long for members: for these, as far as they are known."""
        self._stalled = (self._stalled or set()) | set(numbers)

    def worker_is_ready(self, now: float) -> None:
        """A worker waits for a place in a world."""
        self._first_ready = self._first_ready or now

    def check(
        self, now: float, membership: Membership, hosts: dict[str, int], began: bool, held: str
    ) -> None:
        """Ends late processes, or the job, while workers are waited for. `hosts`: the slots; `began`: the job has had
        enough of them once; `held`: why no world can be formed now."""
        if self._waits_since is None:
            return  # the first answer of discovery is not there yet
        gap, self._looked = now - self._looked, now
        if gap > _GAP_S:
            self._waits_since += gap
            self._lacks_since += gap
            for number in self._workers.opened:
                self._workers.opened[number] += gap
        late = membership.late()
        if late:
            self._check_members(membership, late, self._waits_since, now)
            self._lacks_since = now
        else:
            self._check_slots(membership, hosts, began, held, now)
            self._check_starts(membership, self._waits_since, now)

    def _check_members(
        self, membership: Membership, late: list[Worker], waits_since: float, now: float
    ) -> None:
        """Ends a member that does not leave its world: one that is stopped, or one for which another member waits. A
        member may be at work outside of Horovod."""
        limits = self._limits
        if self._stalled is not None and now - waits_since > min(_STALLED_S, limits.grace_s):
            for worker in late:
                number = worker.number
                known = number in self._stalled or self._workers.is_stopped(number)
                if known and number not in self.asked_to_end:
                    self._note(f"process {number} has kept its world waiting until it ended, and is killed")
                    self._end_late_worker(number)
        if now - waits_since <= limits.grace_s:
            return
        waits = any(membership.workers[number].stage is Stage.READY for number in membership.members)
        # The others may wait for the one of the lowest rank, as ranks learn of a death from lower ones.
        victims = [w for w in late if self._workers.is_stopped(w.number)] or (late if waits else [])
        if not victims:
            return
        victim = victims[0].number
        within = f"within {limits.grace_s:g} s (HOROVOD_ELASTIC_GRACE)"
        self._note(f"process {victim} has not left its world {within} and is killed")
        self._end_late_worker(victim)
        self._waits_since = now - limits.grace_s + _NEXT_KILL_S

    def _check_slots(
        self, membership: Membership, hosts: dict[str, int], began: bool, held: str, now: float
    ) -> None:
        """Ends the job if there are too few slots for too long. The process of a slot may still start."""
        limits = self._limits
        alive = membership.alive()
        if began:
            needed, have = limits.least, sum(not worker.leaving for worker in alive)
        else:
            needed, have = limits.first, sum(hosts.values())
        if have >= needed and not membership.held:
            self._lacks_since = now
        elif now - self._lacks_since > limits.timeout_s:
            within = f"for {limits.timeout_s:g} s (--elastic-timeout)"
            ready = sum(worker.stage is Stage.READY for worker in alive)
            slots = ", ".join(f"{host}:{count}" for host, count in hosts.items()) or "none"
            membership.failure = Failure(
                f"no world could be formed {within}: {held}"
                if membership.held
                else f"fewer than {needed} slots {within}: {ready} processes are ready; "
                f"the slots that were found: {slots}"
            )
            membership.phase = Phase.ENDING

    def _check_starts(self, membership: Membership, waits_since: float, now: float) -> None:
        """Ends processes that do not come to init() although others wait for them there."""
        if self._first_ready is None:
            return
        for worker in membership.alive():
            number = worker.number
            if worker.stage is not Stage.STARTING or worker.leaving or number in self.asked_to_end:
                continue
            since = max(self._first_ready, waits_since, self._workers.opened[number])
            if now - since > self._limits.init_s:
                within = f"within {self._limits.init_s:g} s (--start-timeout)"
                self._note(f"process {number} has not called init() {within} and is killed")
                self._end_late_worker(number)

    def _end_late_worker(self, number: int) -> None:
        self.asked_to_end.add(number)
        self._workers.stop(number)
