"""The limits of time while an elastic job waits for workers. It ends late processes and jobs. On the driver's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from horovod._runner.elastic_limits import Limits
from horovod._runner.elastic_membership import Failure, Membership, Phase, Stage, Worker
from horovod._runner.elastic_sites import Sites

# A member that has kept the last world waiting, until a stall ended it, gets this time to leave it after the others.
_STALLED_S = 5.0
# A member that is stuck is sent SIGTERM, and SIGKILL 5 s later. Then those that waited for it get time to leave.
_NEXT_KILL_S = 15.0
# The driver looks at the time twice a second while it waits for workers. After a longer gap it was stopped itself.
_GAP_S = 5.0


class Watch:
    """`asked_to_end`: the workers that came too late."""

    def __init__(self, limits: Limits, sites: Sites, note: Callable[[str], None]) -> None:
        self._limits, self._sites, self._note = limits, sites, note
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
        """The last world was ended because it waited for members in vain: for these, as far as they are known."""
        self._stalled = (self._stalled or set()) | set(numbers)

    def worker_is_ready(self, now: float) -> None:
        self._first_ready = self._first_ready or now

    def look(self, now: float, membership: Membership, hosts: dict[str, int], began: bool, held: str) -> None:
        """Ends late processes, or the job, while workers are waited for. `hosts`: the slots; `began`: the job has had
        enough of them once; `held`: why no world can be formed now."""
        if self._waits_since is None:
            return  # the first answer of discovery is not there yet
        gap, self._looked = now - self._looked, now
        if gap > _GAP_S:
            self._waits_since += gap
            self._lacks_since += gap
            for number in self._sites.opened:
                self._sites.opened[number] += gap
        late = membership.late()
        if late:
            self._watch_members(membership, late, now)
            self._lacks_since = now
        else:
            self._watch_slots(membership, hosts, began, held, now)
            self._watch_starts(membership, now)

    def _watch_members(self, membership: Membership, late: list[Worker], now: float) -> None:
        """Ends a member that does not leave its world: one that is stopped, or one for which another member waits. A
        member may be at work outside of Horovod."""
        limits = self._limits
        if self._stalled is not None and now - self._waits_since > min(_STALLED_S, limits.grace_s):
            for worker in late:
                number = worker.number
                known = number in self._stalled or self._sites.is_stopped(number)
                if known and number not in self.asked_to_end:
                    self._note(f"process {number} has kept its world waiting until it ended, and is killed")
                    self._end_late_worker(number)
        if now - self._waits_since <= limits.grace_s:
            return
        waits = any(membership.workers[number].stage is Stage.READY for number in membership.members)
        # The others may wait for the one of the lowest rank, as ranks hear of a death from lower ones.
        victims = [w for w in late if self._sites.is_stopped(w.number)] or (late if waits else [])
        if not victims:
            return
        victim = victims[0].number
        within = f"within {limits.grace_s:g} s (HOROVOD_ELASTIC_GRACE)"
        self._note(f"process {victim} has not left its world {within} and is killed")
        self._end_late_worker(victim)
        self._waits_since = now - limits.grace_s + _NEXT_KILL_S

    def _watch_slots(
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

    def _watch_starts(self, membership: Membership, now: float) -> None:
        """Ends processes that do not come to init() although others wait for them there."""
        if self._first_ready is None:
            return
        for worker in membership.alive():
            number = worker.number
            if worker.stage is not Stage.STARTING or worker.leaving or number in self.asked_to_end:
                continue
            since = max(self._first_ready, self._waits_since, self._sites.opened[number])
            if now - since > self._limits.init_s:
                within = f"within {self._limits.init_s:g} s (--start-timeout)"
                self._note(f"process {number} has not called init() {within} and is killed")
                self._end_late_worker(number)

    def _end_late_worker(self, number: int) -> None:
        self.asked_to_end.add(number)
        self._sites.stop(number)
