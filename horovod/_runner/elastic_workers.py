"""The workers of an elastic job: which may start, when one is ended, and what counts as a host's failure.

On the thread of the driver, which gives the time (time.monotonic()).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from horovod._runner.elastic_membership import Failure, Limits, Membership, Phase, Stage, Worker
from horovod._runner.site import Site


@dataclass
class Process:
    """A worker's process that has not ended. Each has a site of its own, so that the end of one ends no other.

    Attributes:
        opened: when its site was opened.
        leave_until: it is stopped at this moment if it has not ended by then.
        stopped: it was sent a request to end.
    """

    site: Site
    opened: float
    leave_until: float = math.inf
    stopped: bool = False


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


class Cooldown:
    """When a host may be used again after a process has failed on it.

    `limits`: the shortest and the longest pause in seconds; None: a host that failed is not used again, unless it is
    the only one. The pause doubles with each failure of the host."""

    def __init__(self, limits: tuple[float, float] | None) -> None:
        self._limits = limits
        self._failures: dict[str, int] = {}
        self._usable: dict[str, float] = {}
        self._announced: dict[str, float] = {}

    def announced(self, host: str, until: float) -> None:
        """A process of a host has got SIGTERM, so the host may be about to go: it gets no new one until then."""
        self._announced[host] = until

    def failed(self, host: str, now: float) -> None:
        """A process has failed on a host."""
        low, high = self._limits or _ONLY_HOST_S
        count = self._failures.get(host, 0)
        pause = low * 2.0 ** min(count, 20) + random.random() * low
        self._failures[host] = count + 1
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

    def __init__(self, every_s: float, kill: Callable[[int], None], note: Callable[[str], None]) -> None:
        self._every_s, self._kill, self._note = every_s, kill, note
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
            self._kill(victim)


# A member that has kept the last world waiting, until a stall ended it, gets this time to leave it after the others.
_STALLED_S = 5.0
# A member that is stuck is sent SIGTERM, and SIGKILL 5 s later. Then those that waited for it get time to leave.
_NEXT_KILL_S = 15.0


class Timeouts:
    """Ends late processes, and the job, while it waits for workers. `stop(number)` ends a process; `asked_to_end`: the
    workers that came too late."""

    def __init__(
        self,
        limits: Limits,
        processes: Mapping[int, Process],
        stop: Callable[[int], None],
        note: Callable[[str], None],
    ) -> None:
        self._limits, self._processes, self._stop, self._note = limits, processes, stop, note
        self.asked_to_end: set[int] = set()
        # Since when the phase is GATHERING; at first, since the first answer of discovery.
        self._waits_since: float | None = None
        self._lacks_since = 0.0  # since when there are too few slots
        self._first_ready: float | None = None
        # The members that the last world waited for, if a stall has ended it.
        self._stalled: set[int] | None = None

    @property
    def begun(self) -> bool:
        """Whether discovery has answered."""
        return self._waits_since is not None

    def begin(self, now: float) -> None:
        """The phase is GATHERING from now on."""
        self._waits_since = self._lacks_since = now
        self._stalled = None

    def world_stalled(self, numbers: Iterable[int]) -> None:
        """The last world was ended because it waited too long for members: for these, as far as they are known."""
        self._stalled = (self._stalled or set()) | set(numbers)

    def worker_is_ready(self, now: float) -> None:
        """A worker waits for a place in a world."""
        self._first_ready = self._first_ready or now

    def check(self, now: float, membership: Membership, hosts: dict[str, int], began: bool) -> None:
        """Ends late processes, or the job, while workers are waited for. `hosts`: the slots; `began`: the job has had
        enough of them once."""
        if self._waits_since is None:
            return  # the first answer of discovery is not there yet
        late = membership.late()
        if late:
            self._check_members(membership, late, self._waits_since, now)
            self._lacks_since = now
        else:
            self._check_slots(membership, hosts, began, now)
            self._check_starts(membership, self._waits_since, now)

    def _check_members(
        self, membership: Membership, late: list[Worker], waits_since: float, now: float
    ) -> None:
        """Ends a member that does not leave its world: one that has stalled it, or one for which another member waits. A
        member may be at work outside of Horovod."""
        limits = self._limits
        if self._stalled is not None and now - waits_since > min(_STALLED_S, limits.grace_s):
            for number in (worker.number for worker in late):
                # Without a known one, all are meant: the others have left meanwhile.
                known = number in self._stalled or not self._stalled
                if known and number not in self.asked_to_end:
                    self._note(f"process {number} has kept its world waiting until it ended, and is killed")
                    self._end_late_worker(number)
        waits = any(membership.workers[number].stage is Stage.READY for number in membership.members)
        if now - waits_since <= limits.grace_s or not waits:
            return
        # The others may wait for the one of the lowest rank, as ranks learn of a death from lower ones.
        victim = late[0].number
        within = f"within {limits.grace_s:g} s (HOROVOD_ELASTIC_GRACE)"
        self._note(f"process {victim} has not left its world {within} and is killed")
        self._end_late_worker(victim)
        self._waits_since = now - limits.grace_s + _NEXT_KILL_S

    def _check_slots(self, membership: Membership, hosts: dict[str, int], began: bool, now: float) -> None:
        """Ends the job if there are too few slots for too long. The process of a slot may still start."""
        alive = membership.alive()
        if began:
            needed, have = self._limits.least, sum(not worker.leaving for worker in alive)
        else:
            needed, have = self._limits.first, sum(hosts.values())
        if have >= needed:
            self._lacks_since = now
        elif now - self._lacks_since > self._limits.timeout_s:
            ready = sum(worker.stage is Stage.READY for worker in alive)
            slots = ", ".join(f"{host}:{count}" for host, count in hosts.items()) or "none"
            membership.failure = Failure(
                f"fewer than {needed} slots for {self._limits.timeout_s:g} s (--elastic-timeout): {ready} processes are "
                f"ready; the slots that were found: {slots}"
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
            since = max(self._first_ready, waits_since, self._processes[number].opened)
            if now - since > self._limits.init_s:
                within = f"within {self._limits.init_s:g} s (--start-timeout)"
                self._note(f"process {number} has not called init() {within} and is killed")
                self._end_late_worker(number)

    def _end_late_worker(self, number: int) -> None:
        self.asked_to_end.add(number)
        self._stop(number)
