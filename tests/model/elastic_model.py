"""A small model of an elastic job: the driver's real decisions (horovod/_runner/elastic_membership.py), abstract workers.

Each worker has a queue to the driver and one from it. A move is one step of one worker, one event that the driver takes
from a queue, or a deed of the environment: a process is killed, a new one starts, a slot is taken away. Every order of
moves is walked (explore). The worker's steps are those of horovod/common/elastic.py and hvd_core/elastic: see Process.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

from breadth_first import Outcome, breadth_first
from horovod._runner.elastic_membership import Enter, Leave, Membership, Phase, Stage, Update

START, WAIT, INIT, UP, SYNCED, SAVED, OVER = "start", "wait", "init", "up", "synced", "saved", "over"
BETWEEN = "between"  # two trainings
IN_WORLD = (INIT, UP, SYNCED, SAVED)


class Wrong(Exception):
    """An invariant does not hold."""


class Process(NamedTuple):
    """A worker's process. `at`: START (not in init() yet), WAIT (for a place), INIT, UP (init() has returned), SYNCED
    (has the state of rank 0, trains), SAVED (within a commit: the state is saved, the ranks compare whether to leave),
    OVER.

    `told`: an update has been read. `voted`: what this worker said in the commit that it is in."""

    at: str
    world: int = 0
    commits: int = 0
    told: bool = False
    voted: bool = False
    trainings: int = 0  # that it has finished
    inbox: tuple = ()  # from the driver
    outbox: tuple = ()  # to the driver


def copied(now: Membership) -> Membership:
    """A copy that shares no state."""
    made = copy.copy(now)
    made.workers = {number: copy.copy(worker) for number, worker in now.workers.items()}
    made._deaths = list(now._deaths)
    return made


class Driver:
    """The driver in one state. `now` is to be read only. Equal states are one object, which remembers each step."""

    def __init__(self, now: Membership, known: dict[str, Driver]):
        self.now, self._known = now, known
        self._steps: dict[tuple, tuple[list, Driver]] = {}

    def step(self, event: tuple) -> tuple[list, Driver]:
        """The commands and the driver after a call: the name of the function and its arguments."""
        step = self._steps.get(event)
        if step is None:
            after = copied(self.now)
            commands = getattr(after, event[0])(*event[1:]) or []
            step = self._steps[event] = commands, Driver.of(after, self._known)
        return step

    @staticmethod
    def of(now: Membership, known: dict[str, Driver]) -> Driver:
        return known.setdefault(repr(now), Driver(now, known))


class State(NamedTuple):
    processes: tuple[Process, ...]
    driver: Driver
    kills: int
    starts: int
    removals: int
    # Of the current world: the members that have come into init(), those that have the state, the votes of each commit.
    came: frozenset
    votes: frozenset  # (commits, worker, vote)
    agreed: int  # the greatest commit that was compared completely


class ElasticModel:
    """`size` workers at first, at least `least` and at most `most` in a world; a training ends after `goal` commits. Each
    program has so many `trainings`. `patient`: replacements are waited for before a slot is left."""

    def __init__(
        self,
        size,
        least,
        most,
        goal=2,
        kills=2,
        starts=1,
        removals=0,
        trainings=1,
        patient=False,
        make=Membership,
    ):
        self.size, self.goal, self.trainings, self.patient = size, goal, trainings, patient
        self._limits = (kills, starts, removals)
        driver = make(least, most)
        for number in range(size):
            driver.add(number, "h0" if number < 2 else "h1")
        self._first = Driver.of(driver, {})

    def initial(self) -> State:
        return State((Process(START),) * self.size, self._first, *self._limits, frozenset(), frozenset(), -1)

    # ----------------------------------------------------------------------------------------------- moves

    def moves(self, s: State):
        driver = s.driver.now
        for number, p in enumerate(s.processes):
            if p.outbox:
                yield f"driver hears {p.outbox[0]} of {number}", self._hear(s, number)
            if p.at != OVER:
                yield from self._steps(s, driver, number, p)
                if s.kills:
                    yield (
                        f"kill {number}",
                        self._put(s, number, p._replace(at=OVER), ("died", 137), kills=s.kills - 1),
                    )
        if driver.patient:
            yield "replacements take too long", self._command(s, ("hurry",))
        if s.starts and driver.phase is not Phase.ENDING and not driver.later:
            after = self._command(s, ("add", len(s.processes), "h1"))
            yield (
                "a worker starts",
                after._replace(processes=(*s.processes, Process(START)), starts=s.starts - 1),
            )
        if s.removals and driver.phase is not Phase.ENDING:
            for number in driver.workers:
                left = tuple(w.number for w in driver.workers.values() if w.number != number)
                after = self._command(s, ("want", left, self.patient))
                yield f"the slot of {number} goes", after._replace(removals=s.removals - 1)

    def _steps(self, s, driver, number, p):
        if p.at == START:
            yield f"{number} calls init()", self._put(s, number, p._replace(at=WAIT), ("ready", 0, False))
        if p.at == BETWEEN:
            yield f"{number} begins another training", self._put(s, number, p._replace(at=UP), ("again",))
        if p.at == WAIT and p.inbox:
            yield f"{number} reads {p.inbox[0][0]}", self._read(s, number, p)
        if p.at not in IN_WORLD:
            return
        if p.at != WAIT and p.inbox and p.inbox[0][0] == "update":
            yield f"{number} reads update", self._set(s, number, p._replace(told=True, inbox=p.inbox[1:]))
        members, _ = self._world(s, number, p)
        others = [s.processes[n] for n in members if n != number]
        # A collective operation completes when all members take part. It fails when one has died or left; some ranks
        # may have completed it by then.
        if any(o.at == OVER or (o.world == p.world and o.at == WAIT) for o in others):
            yield (
                f"{number} loses its world",
                self._put(s, number, p._replace(at=WAIT, told=False), ("ready", p.commits, False)),
            )
        if p.at == INIT and s.came >= {(p.world, n) for n in members}:
            yield f"{number} is up", self._put(s, number, p._replace(at=UP), ("up",))
        if p.at == UP:
            after = self._sync(s, number, p, members)
            if after is not None:
                yield f"{number} has the state", after
        goal = self.goal * (p.trainings + 1)
        if p.at == SYNCED and p.commits < goal:
            mine = p._replace(at=SAVED, commits=p.commits + 1, voted=p.told)
            votes = s.votes | {(p.world, mine.commits, number, p.told)}
            if self._all_synced(s, p, members):
                yield f"{number} saves {mine.commits}", self._set(s, number, mine)._replace(votes=votes)
        if p.at == SYNCED and p.commits >= goal and p.trainings + 1 < self.trainings:
            after = p._replace(at=BETWEEN, trainings=p.trainings + 1)
            yield f"{number} is done with a training", self._put(s, number, after, ("done",))
        elif p.at == SYNCED and p.commits >= goal:
            yield f"{number} is done", self._put(s, number, p._replace(at=OVER), ("done",), ("died", 0))
        if p.at == SAVED:
            votes = {n: vote for world, c, n, vote in s.votes if (world, c) == (p.world, p.commits)}
            if votes.keys() >= set(members):
                yield f"{number} has compared {p.commits}", self._compared(s, driver, number, p, votes)

    def _sync(self, s, number, p, members):
        """The state of rank 0, if it has come so far: all members take part, none of them can do without rank 0."""
        source = s.processes[members[0]]
        if members[0] == number:
            return self._set(s, number, p._replace(at=SYNCED))
        has_sent = source.trainings > p.trainings or (
            source.at in (SYNCED, SAVED) and source.trainings == p.trainings
        )
        if source.world != p.world or source.at in (WAIT, OVER) or not has_sent:
            return None  # it has not sent its state yet, or never will
        # A rank trains only when all have the state: until then the source's commits are those it was chosen for, or, in
        # a later training of the same world, those with which all have finished the one before.
        commits = max(self._world(s, number, p)[1], self.goal * p.trainings)
        return self._set(s, number, p._replace(at=SYNCED, commits=commits))

    def _all_synced(self, s, p, members):
        """The gradients of a step come from all members. A member that has died may have sent its part before."""
        return all(
            s.processes[n][:2] in ((SYNCED, p.world), (SAVED, p.world))
            and s.processes[n].trainings == p.trainings
            for n in members
            if s.processes[n].at != OVER
        ) and not any(s.processes[n].at == OVER for n in members)

    def _compared(self, s, driver, number, p, votes):
        if driver.world != p.world:
            raise Wrong(f"a commit in world {p.world}, although world {driver.world} was formed")
        s = s._replace(agreed=max(s.agreed, p.commits))
        if any(votes.values()):
            return self._put(s, number, p._replace(at=WAIT, told=False), ("ready", p.commits, True))
        return self._set(s, number, p._replace(at=SYNCED))

    def _read(self, s, number, p):
        what = p.inbox[0]
        if what[0] == "leave":
            return self._put(s, number, p._replace(at=OVER, inbox=()), ("died", 0))
        if what[0] == "update":  # of the world that this worker has left
            return self._set(s, number, p._replace(inbox=p.inbox[1:]))
        after = self._set(s, number, p._replace(at=INIT, world=what[1], told=False, inbox=p.inbox[1:]))
        return after._replace(came=after.came | {(what[1], number)})

    def _world(self, s, number, p):
        """(members by rank, commits of the state that rank 0 was chosen for) of the world that a process is in."""
        driver = s.driver.now
        assert driver.world == p.world, "no member is left behind in an older world"
        return driver.members, driver.workers[driver.members[0]].commits

    # ---------------------------------------------------------------------------------------------- driver

    def _hear(self, s, number):
        p = s.processes[number]
        kind, *rest = p.outbox[0]
        s = self._set(s, number, p._replace(outbox=p.outbox[1:]))
        return self._command(s, (kind, number, *rest))

    def _command(self, s, event):
        commands, reached = s.driver.step(event)
        driver, after = s.driver.now, reached.now
        for command in commands:
            if isinstance(command, Enter):
                self._check_world(s, driver, after, command)
                s = s._replace(came=frozenset(), votes=frozenset())
        if after.failure is not None and driver.failure is None and "had the state" in after.failure.why:
            survivors = [n for n in driver.members if s.processes[n].at != OVER]
            # The first processes were all in the first world; a new one may have no state at all.
            survivors = [n for n in survivors if n < self.size or s.agreed > 0]
            if any(s.processes[n].commits >= s.agreed for n in survivors):
                raise Wrong(f"the job fails, although a survivor has commit {s.agreed}")
        s = s._replace(driver=reached)
        for command in commands:
            if isinstance(command, Enter):
                for n in command.members:
                    s = self._tell(s, n, ("enter", command.world))
            elif isinstance(command, Update):
                for n in command.members:
                    s = self._tell(s, n, ("update",))
            elif isinstance(command, Leave):
                s = self._tell(s, command.number, ("leave",))
        return s

    def _check_world(self, s, before, after, command):
        def check(ok, text):
            if not ok:
                raise Wrong(text)

        check(before.phase is not Phase.ENDING, "a world was formed after the end")
        check(after.least <= len(command.members) <= after.most, f"a world of {len(command.members)}")
        last = [s.processes[n] for n in before.members]
        living = [p for p in last if p.at != OVER]
        check(all(p.at == WAIT for p in living), "a living member has not left the last world")
        trainings = {s.processes[n].trainings for n in command.members if s.processes[n].at != OVER}
        check(len(trainings) <= 1, "the members of a world are in different trainings")
        source = s.processes[command.members[0]]
        if source.at != OVER:
            check(all(p.commits <= source.commits for p in living), "the state of an older commit was chosen")
            check(not living or source.commits >= s.agreed, f"commit {s.agreed} is lost")

    def check_end(self, s: State) -> None:
        """No move is left: the job has ended, or waits for workers."""
        driver = s.driver.now
        if driver.phase is Phase.ENDING:
            if any(p.at != OVER for p in s.processes) and driver.failure is None:
                raise Wrong(f"processes are left: {[p.at for p in s.processes]}")
            died = {number for number, _ in driver._deaths}  # before the first one finished
            goal = self.goal * self.trainings
            unfinished = [n for n in driver.members if s.processes[n].commits < goal and n not in died]
            if unfinished and driver.failure is None:
                raise Wrong(f"the job succeeds, although {unfinished} have not finished")
            return
        waiting = [w for w in driver.workers.values() if w.stage is Stage.READY]
        if driver.phase is not Phase.GATHERING or len(waiting) >= driver.least:
            raise Wrong(f"deadlock: {driver.phase}, {[(p.at, p.world) for p in s.processes]}")

    # ---------------------------------------------------------------------------------------------- helpers

    def _set(self, s, number, p):
        return s._replace(processes=(*s.processes[:number], p, *s.processes[number + 1 :]))

    def _put(self, s, number, p, *messages, **more):
        p = p._replace(outbox=(*p.outbox, *messages))
        return s._replace(processes=(*s.processes[:number], p, *s.processes[number + 1 :]), **more)

    def _tell(self, s, number, message):
        p = s.processes[number]
        return s if p.at == OVER else self._set(s, number, p._replace(inbox=(*p.inbox, message)))


def explore(model: ElasticModel, limit: int = 1_000_000) -> Outcome:
    """Walks all moves, breadth first, to the first mistake."""
    outcome = breadth_first(model.initial(), model.moves, model.check_end, Wrong, limit - 1)
    assert outcome.complete, f"more than {limit} states"
    return outcome
