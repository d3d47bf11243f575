"""Which workers form the next world of an elastic job, and when: the decisions of the driver, without input or output.

A worker is a process with a number that never changes. A world is a set of workers that call init() together; worlds
are numbered from 1. The driver (elastic_driver.py) reports what it receives, and carries out the commands that each call
returns. There is no clock and no thread here, so that tests/model can walk through every order of events.

The rules:

1. Only its own message `ready` lets a worker into a world. A member sends it when it has left its world permanently.
2. The next world is formed when every member of the last world is ready or dead. So two worlds never both commit. 3.
The survivor with the most commits gets rank 0, whose state the other members receive. 4. Newcomers that still start
are not waited for, except in the first world. When they are ready, the members are notified to
   leave at their next commit.
5. After the first worker has finished, no world is formed any more, until all members have begun another training. A
   new process would begin with the first one, so from then on only members can be in the next world.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """The limits of an elastic job.

    Attributes:
        first: the slots with which it begins.
        least, most: the ranks of a world; `most` is None for as many as there are slots.
        timeout_s: how long it waits for enough slots.
        grace_s: how long for members to leave a world that has ended.
        start_s: how long for hosts to answer.
        cooldown: the shortest and the longest time for which a host is not used after a failure; None: permanently.
        spares: workers beyond `most`, which wait for a place.
        init_s: how long for workers to come to init() while others wait for them there.
        preemption_s: the time between the SIGTERM of a rank and its end; None if it ends immediately.
        chaos_s: kill a rank about so often; None: never.
    """

    first: int
    least: int
    most: int | None
    timeout_s: float
    grace_s: float
    start_s: float
    reset_limit: int | None = None
    cooldown: tuple[float, float] | None = None
    spares: int = 0
    init_s: float = 600.0
    preemption_s: float | None = None
    chaos_s: float | None = None


class Stage(enum.Enum):
    """How far a worker has come."""

    STARTING = "starting"  # the process runs, and has not called init() yet
    READY = "ready"  # in no world, waits for a place in one
    PLACED = "placed"  # a member that is in init()
    UP = "up"  # a member whose init() has returned
    FINISHED = "finished"  # the program's training has ended
    DEAD = "dead"  # the process has ended


class Phase(enum.Enum):
    """What the job does."""

    GATHERING = "gathering"  # no world runs; members of the last one come back
    STARTING = "starting"  # the members of the world are in init()
    RUNNING = "running"
    ENDING = "ending"


@dataclass
class Worker:
    """A process.

    Attributes:
        commits: how many commits its state has seen.
        updated: it has left its last world because of an update.
        wanted: its slot is still there.
        leaving: it was sent a request to leave.
        again: how often it has begun another training after its first one.
    """

    number: int
    host: str
    stage: Stage = Stage.STARTING
    commits: int = 0
    updated: bool = False
    wanted: bool = True
    leaving: bool = False
    again: int = 0

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self.stage is not Stage.DEAD


@dataclass(frozen=True)
class Enter:
    """Form a world. `members`: the workers by rank. `sync`: they receive the state of rank 0 first."""

    world: int
    members: tuple[int, ...]
    sync: bool


@dataclass(frozen=True)
class Update:
    """Notify these members that a better world can be formed, for which they leave at their next commit."""

    world: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Leave:
    """End a worker that the job does not need any more."""

    number: int


@dataclass(frozen=True)
class Failure:
    """Why the job has failed. `number`, `code`: the worker that failed first and its exit code, if that is the cause."""

    why: str
    number: int | None = None
    code: int = 1


Command = Enter | Update | Leave

RESET_LIMIT_EXCEEDED_MESSAGE = (
    "Horovod was shutdown because number of resets during elastic job exceeded limit: {}"
)


# So many worlds in a row may end in init() although no process has died.
_MOST_SILENT = 3


@dataclass
class Membership:
    """The state of a job of at least `least` and at most `most` ranks. `reset_limit`: how many worlds may be formed
    because members died or failed."""

    least: int
    most: int
    reset_limit: int | None = None
    workers: dict[int, Worker] = field(default_factory=dict)
    phase: Phase = Phase.GATHERING
    world: int = 0  # the number of the last world that was formed
    members: tuple[int, ...] = ()  # of that world, by rank
    resets: int = 0
    failure: Failure | None = None
    _notified: bool = False  # the members were notified that a better world can be formed
    _broken: bool = False  # a member of this world has died or failed
    _ran: bool = False  # all members of this world have been up
    _silent: int = 0  # how many worlds in a row have ended before that, although no process had died
    _state_exists: bool = False  # a worker may have made progress that only members know
    _newest: int = 0  # a state with so many commits has all commits on which the ranks of any world agreed
    later: bool = False  # the members are in a training that is not the first one of the program
    patient: bool = False  # replacements of members start: no smaller world until the driver calls hurry()
    # (number, exit code) since the last world began
    _deaths: list[tuple[int, int]] = field(default_factory=list)

    # ------------------------------------------------------------------------------------------------ events

    def add(self, number: int, host: str) -> None:
        """The process of a new worker is being started."""
        self.workers[number] = Worker(number, host)

    def ready(self, number: int, commits: int, updated: bool) -> list[Command]:
        """A worker is in no world, or has left its world, and waits for a place in the next one."""
        worker = self.workers[number]
        is_member = worker.stage in (Stage.PLACED, Stage.UP)
        worker.stage, worker.commits, worker.updated = Stage.READY, commits, updated
        if is_member and self.phase is Phase.ENDING:
            self._end()
        elif is_member:
            self._broken = self._broken or not updated
            self.phase = Phase.GATHERING
        return self._settle()

    def up(self, number: int) -> list[Command]:
        """A member's init() has returned."""
        self.workers[number].stage = Stage.UP
        self._state_exists = True
        if self.phase is Phase.STARTING and all(self.workers[n].stage is Stage.UP for n in self.members):
            self.phase, self._ran = Phase.RUNNING, True
        return self._settle()

    def done(self, number: int) -> list[Command]:
        """A worker has finished its training."""
        self.workers[number].stage = Stage.FINISHED
        self._end()
        return self._settle()

    def again(self, number: int) -> list[Command]:
        """A worker that has finished begins another training, in the world that it is in."""
        worker = self.workers[number]
        worker.stage, worker.again = Stage.UP, worker.again + 1
        members = [self.workers[n] for n in self.members]
        together = all(w.stage is Stage.UP and w.again == worker.again for w in members)
        if self.phase is Phase.ENDING and self.failure is None and together:
            self.phase, self.later, self._notified = Phase.RUNNING, True, False
        return self._settle()

    def died(self, number: int, code: int) -> list[Command]:
        """The process of a worker has ended. A worker that ends with exit code 0 has finished."""
        worker = self.workers[number]
        stage, worker.stage = worker.stage, Stage.DEAD
        if worker.leaving:
            return self._settle()
        if code == 0:
            self._end()
            return self._settle()
        self._deaths.append((number, code))
        if self.phase is Phase.ENDING:
            self._fail(f"process {number} failed while the others finished", number, code)
        elif stage in (Stage.PLACED, Stage.UP):
            self._broken = True
            self.phase = Phase.GATHERING
        return self._settle()

    def want(self, numbers: Iterable[int], patient: bool = False) -> list[Command]:
        """These workers are the ones that have a slot; the other workers leave as soon as the job can do without them.
        `patient`: and members not before their replacements are ready, or the driver calls hurry()."""
        numbers = set(numbers)
        self.patient = patient and self.phase is Phase.RUNNING
        for worker in self.workers.values():
            worker.wanted = worker.number in numbers
        return self._settle()

    # --------------------------------------------------------------------------------------------- questions

    def alive(self) -> list[Worker]:
        """The workers whose processes have not ended."""
        return [worker for worker in self.workers.values() if worker.alive]

    def starts(self) -> bool:
        """Whether a new worker is on its way to init()."""
        return any(w.stage is Stage.STARTING and w.wanted and not w.leaving for w in self.workers.values())

    def late(self) -> list[Worker]:
        """The members of the last world that have not left it yet, while the next one is awaited."""
        if self.phase is not Phase.GATHERING:
            return []
        members = [self.workers[number] for number in self.members]
        return [worker for worker in members if worker.stage in (Stage.PLACED, Stage.UP)]

    # --------------------------------------------------------------------------------------------- decisions

    def hurry(self) -> list[Command]:
        """Replacements are not waited for any longer."""
        self.patient = False
        return self._settle()

    def _settle(self) -> list[Command]:
        """The commands that follow from the present state."""
        if self.phase is Phase.GATHERING:
            commands = self._form_world()
        elif self.phase is Phase.RUNNING and not self._notified and self._better_world_exists():
            self._notified = True
            commands = [Update(self.world, self.members)]
        else:
            commands = []
        return commands + self._dismiss()

    def _dismiss(self) -> list[Command]:
        """Sends away the workers that the job does not need. Members leave their world by themselves first."""
        ending = self.phase is Phase.ENDING
        found: list[Command] = []
        for worker in self.workers.values():
            idle = worker.stage in (Stage.STARTING, Stage.READY)
            # A survivor may hold the only copy of the state until the next world is formed.
            free = worker.number not in self.members or self.phase in (Phase.STARTING, Phase.RUNNING)
            if idle and not worker.leaving and (ending or (not worker.wanted and free)):
                worker.leaving = True
                found.append(Leave(worker.number))
        return found

    def _form_world(self) -> list[Command]:
        if self.late():
            return []
        survivors = [w for w in map(self.workers.__getitem__, self.members) if w.stage is Stage.READY]
        lost = max((worker.commits for worker in survivors), default=-1) < self._newest
        if lost and self._state_exists:
            return self._fail_of_all("all ranks that had the state of the training have died")
        if not any(worker.alive and not worker.leaving for worker in self.workers.values()) and self._deaths:
            return self._fail_of_all("all processes have ended")
        newcomers = self._newcomers()
        if not self.world and any(w.stage is Stage.STARTING and w.wanted for w in self.workers.values()):
            return []
        chosen = self._choose(survivors, newcomers)
        if len(chosen) < self.least and self.later:
            return self._fail_of_all(
                f"fewer than {self.least} processes are left, and a new one cannot join the program's second training"
            )
        if len(chosen) < self.least:
            return []
        if self.world and self._broken:
            self.resets += 1
            if self.reset_limit is not None and self.resets > self.reset_limit:
                return self._fail_of_all(RESET_LIMIT_EXCEEDED_MESSAGE.format(self.reset_limit))
        self._silent = self._silent + 1 if self.world and not self._ran and not self._deaths else 0
        if self._silent == _MOST_SILENT:
            return self._fail_of_all(
                f"{_MOST_SILENT} worlds in a row have ended in init(), although no process has died. The ranks have "
                "said why, with the level WARNING"
            )
        ordered = self._ranks(chosen)
        first = ordered[0]
        same = all(w.updated and w.commits == first.commits for w in ordered)
        sync = not (same and all(w.number in self.members for w in ordered))
        # A commit counts when all members have it, so the state of each survivor has all of those.
        self._newest = min((w.commits for w in ordered if w.number in self.members), default=first.commits)
        self.world += 1
        self.members = tuple(worker.number for worker in ordered)
        for worker in ordered:
            worker.stage, worker.commits = Stage.PLACED, first.commits
        self.phase, self._notified, self._broken, self._ran = Phase.STARTING, False, False, False
        self.patient = False
        self._deaths.clear()
        return [Enter(self.world, self.members, sync)]

    def _newcomers(self) -> list[Worker]:
        ready = [w for w in self.workers.values() if w.stage is Stage.READY and w.wanted and not w.leaving]
        return [worker for worker in ready if worker.number not in self.members]

    def _choose(self, survivors: list[Worker], newcomers: list[Worker]) -> list[Worker]:
        """The members of the next world. A survivor without a slot is one of them only if the world would be too small
        without it, or would lose its state or a commit."""
        kept = [worker for worker in survivors if worker.wanted]
        going = [worker for worker in survivors if not worker.wanted]
        newest = max((worker.commits for worker in kept), default=-1)
        for worker in sorted(going, key=lambda worker: -worker.commits):
            if not kept or worker.commits > newest or len(kept) + len(newcomers) < self.least:
                kept.append(worker)
                newest = max(newest, worker.commits)
        return (kept + newcomers)[: self.most]

    def _ranks(self, chosen: list[Worker]) -> list[Worker]:
        """The members in the order of their ranks: the holder of the newest state first, the ranks of a host together,
        otherwise in the order of their old ranks."""
        old = {number: rank for rank, number in enumerate(self.members)}
        ordered = sorted(chosen, key=lambda worker: old.get(worker.number, len(old)))
        survivors = [worker for worker in ordered if worker.number in old]
        if survivors:
            first = max(survivors, key=lambda worker: worker.commits)
            ordered.remove(first)
            ordered.insert(0, first)
        hosts = list(dict.fromkeys(worker.host for worker in ordered))
        return sorted(ordered, key=lambda worker: hosts.index(worker.host))

    def _better_world_exists(self) -> bool:
        members = [self.workers[number] for number in self.members]
        chosen = {worker.number for worker in self._choose(members, self._newcomers())}
        return chosen != set(self.members) and not (self.patient and len(chosen) < len(members))

    def _end(self) -> None:
        """A member has finished. One that has lost the same world has not, and will not."""
        for number in self.members:
            if self.workers[number].stage is Stage.READY and not self.workers[number].leaving:
                why = f"process {number} lost its world before it had finished, although another one has finished"
                self._fail(why, number, 1)
        self.phase = Phase.ENDING

    def _fail_of_all(self, why: str) -> list[Command]:
        if self._deaths:
            self._fail(why, *self._deaths[0])
        else:
            self._fail(why, None, 1)
        return []

    def _fail(self, why: str, number: int | None, code: int) -> None:
        self.failure = self.failure or Failure(why, number, code)
        self.phase = Phase.ENDING
