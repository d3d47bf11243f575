"""Runs an elastic job: starts workers on the hosts that discovery finds, hears them, and forms worlds of them.

One thread turns one selector, and nothing else waits. elastic_membership.py decides; this file does. Messages and ends
of workers are kept and handled once in each turn, outside the code of the sites that read them. Each worker is a site of
its own (LocalRanks or RemoteRanks with one rank), so that the end of one ends no other. Each world has a store and a
secret of its own: nothing of a dead world is left for the next one.
"""

from __future__ import annotations

import json
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from horovod.runner.elastic_cooldown import Cooldown
from horovod.runner.elastic_discovery import Discovery, HostDiscovery
from horovod.runner.elastic_membership import (
    Command,
    Enter,
    Failure,
    Leave,
    Membership,
    Phase,
    Stage,
    Update,
    Worker,
)
from horovod.runner.ended_ranks import EndedRanks, describe_code
from horovod.runner.env import rank_environment, store_environment
from horovod.runner.hosts import HostInfo, get_host_assignments
from horovod.runner.local_ranks import STREAMS, LocalRanks
from horovod.runner.output import Output, OutputClosedError
from horovod.runner.processes import Job, Outcome
from horovod.runner.remote_ranks import RemoteRanks

# A worker that was told to leave gets this time.
_LEAVE_S = 10.0
# A member that is stuck is sent SIGTERM, and SIGKILL 5 s later. Then those that waited for it get time to leave.
_NEXT_KILL_S = 15.0
# After the machine could not start a process, it gets this time.
_START_PAUSE_S = 5.0
# When no world can be formed, the driver tries again after this time.
_FORM_PAUSE_S = 1.0
# The driver looks at the time twice a second while it waits for workers. After a longer gap it was stopped itself.
_GAP_S = 5.0


Site = LocalRanks | RemoteRanks  # with one worker


@dataclass(frozen=True)
class Limits:
    """Of an elastic job. `first`: the slots with which it begins; `least`, `most`: ranks of a world; `timeout_s`: how
    long it waits for enough slots; `grace_s`: how long for members to leave a world that has ended; `start_s`: for hosts
    to answer; `init_s`: for workers to come to init() while others wait for them there; `spares`: workers beyond `most`,
    which wait for a place."""

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


class StoreMaker(Protocol):
    """Starts the store of a world on these hosts."""

    def __call__(self, hosts: Sequence[str], secret: bytes) -> tuple[object, Mapping[str, str], str]:
        """(the server, its address by host, its address here)"""


class ElasticJob(Job):
    """`start(number, host)` makes the site of a worker. `open_store`: see StoreMaker. `merged`: {host: slots} with all
    names of this machine made one."""

    def __init__(
        self,
        limits: Limits,
        source: HostDiscovery,
        start: Callable[[int, str], Site],
        open_store: StoreMaker,
        merged: Callable[[dict[str, int]], dict[str, int]],
        output: Output,
        verbose: bool = False,
    ) -> None:
        super().__init__([], output, verbose, limits.start_s)
        self._limits = limits
        self._start, self._open_store, self._merged = start, open_store, merged
        self._membership = Membership(limits.least, limits.most or 1 << 30, limits.reset_limit)
        self._cooldown = Cooldown(limits.cooldown)
        self._discovery = Discovery(source, self._selector, self._hosts_found, self._discovery_failed)
        self._events: list[Callable[[], None]] = []  # what workers said, and their ends
        self._hosts: dict[str, int] = {}
        self._site_of: dict[int, Site] = {}
        self._opened: dict[int, float] = {}  # when the site of a worker was opened
        self._heard: dict[int, bytes] = {}  # incomplete lines
        self._leaving: dict[int, float] = {}  # when a worker must have left
        self._pids: dict[int, int] = {}  # of workers of this machine
        self._asked_to_end: set[int] = set()  # those that came too late
        self._late_hosts: set[str] = set()
        self._looked = 0.0  # when the times were looked at last, while the phase is GATHERING
        self._waits_since: float | None = (
            None  # since when it is; at first, since the first answer of discovery
        )
        self._lacks_since = 0.0  # since when there are too few slots
        self._first_ready: float | None = None
        self._start_after = self._form_after = 0.0
        self._problem = ""  # the last one, which is told once
        self._begun = False
        self._server = None
        self._addresses: Mapping[str, str] = {}  # of the store of the last world, by host
        self._secret = b""
        self._number = 0
        self._failure_shown = False

    def run(self) -> Outcome:
        """As Job.run()."""
        try:
            while not self._is_over():
                self._turn(self._soonest())
                self._advance(time.monotonic())
        except OutputClosedError:
            self._output.mute()
            self._end()
            raise
        except BaseException:
            self._end()
            raise
        finally:
            self._discovery.close()
            self._close()
            self._close_store()
        failure = self._membership.failure
        if failure is not None:
            if failure.number is not None:
                self._outcome.culprit = (failure.number, failure.code)
            else:
                self._outcome.problem = f"horovodrun: {failure.why}\n"
        return self._outcome

    def _is_over(self) -> bool:
        return self._membership.phase is Phase.ENDING and not self._sites

    def _soonest(self) -> float | None:
        """When something is due, apart from what sites and output wait for. None: not before an event."""
        now = time.monotonic()
        due = list(self._leaving.values())
        if self._membership.phase is not Phase.ENDING:
            due.append(self._discovery.due())
        if self._membership.phase is Phase.GATHERING:
            due.append(now + 0.5)  # its limits are seconds
        return max(now, min(due)) if due else None

    # -------------------------------------------------------------------------------------------- each turn

    def _advance(self, now: float) -> None:
        if self._stops:
            self._membership.phase = Phase.ENDING
        events, self._events = self._events, []
        for event in events:
            event()
        if self._membership.phase is not Phase.ENDING:
            self._discovery.advance(now)
            if now >= self._start_after and not self._stops:
                self._start_workers(now)
        if self._membership.held and now >= self._form_after:
            self._settle(Membership.settle)
        for number, site in list(self._site_of.items()):
            if not site.begun and not site.over and self._membership.phase is Phase.ENDING:
                self._membership.workers[number].leaving = True
                site.close()
            elif site.ready and not site.begun and not site.over:
                self._begin_worker(number, site, now)
            elif not site.ready and not site.over and now - self._opened[number] > self._limits.start_s:
                self._note(f"host {site.host} did not answer within {self._limits.start_s:g} s")
                site.close()
            if site.over:
                self._forget(number, site)
        for number, moment in list(self._leaving.items()):
            if now >= moment:
                self._leaving.pop(number)
                self._stop_worker(number)
        if self._membership.phase is Phase.GATHERING:
            self._watch_times(now)
        if self._membership.phase is Phase.ENDING:
            self._discovery.close()
        if self._membership.failure is not None and not self._stops:
            self._end_all()

    def _forget(self, number: int, site: Site) -> None:
        if not site.begun:
            if site.host is not None and not self._membership.workers[number].leaving:
                self._note(site.describe_failure())
            self._ended(number, 1)
        elif self._membership.workers[number].alive:
            self._ended(number, 1)  # its site was lost with it
        site.close()
        self._sites.remove(site)
        del self._site_of[number]
        for index in range(len(STREAMS)):
            if (stream := self._streams.pop((number, index), None)) is not None:
                stream.end()

    def _begin_waiting(self, now: float) -> None:
        """The phase is GATHERING from now on."""
        self._looked = self._waits_since = self._lacks_since = now

    def _watch_times(self, now: float) -> None:
        """Ends what has lasted too long, while workers are waited for."""
        if self._waits_since is None:
            return  # the first answer of discovery is not there yet
        gap, self._looked = now - self._looked, now
        if gap > _GAP_S:
            self._waits_since += gap
            self._lacks_since += gap
            self._opened = {number: moment + gap for number, moment in self._opened.items()}
        late = self._membership.late()
        if late:
            self._watch_members(late, now)
            self._lacks_since = now
        else:
            self._watch_slots(now)
            self._watch_starts(now)

    def _watch_members(self, late: list[Worker], now: float) -> None:
        """Ends a member that does not leave its world: one that is stopped, or one for which another member waits. A
        member may be at work outside of Horovod."""
        membership, limits = self._membership, self._limits
        if now - self._waits_since <= limits.grace_s:
            return
        waits = any(membership.workers[number].stage is Stage.READY for number in membership.members)
        # The others may wait for the one of the lowest rank, as ranks hear of a death from lower ones.
        victims = [w for w in late if self._is_stopped(w.number)] or (late if waits else [])
        if not victims:
            return
        victim = victims[0].number
        within = f"within {limits.grace_s:g} s (HOROVOD_ELASTIC_GRACE)"
        self._note(f"process {victim} has not left its world {within} and is killed")
        self._end_late_worker(victim)
        self._waits_since = now - limits.grace_s + _NEXT_KILL_S

    def _watch_slots(self, now: float) -> None:
        """Ends the job if there are too few slots for too long. The process of a slot may still start."""
        membership, limits = self._membership, self._limits
        alive = membership.alive()
        if self._begun:
            needed, have = limits.least, sum(not worker.leaving for worker in alive)
        else:
            needed, have = limits.first, sum(self._hosts.values())
        if have >= needed and not membership.held:
            self._lacks_since = now
        elif now - self._lacks_since > limits.timeout_s:
            within = f"for {limits.timeout_s:g} s (--elastic-timeout)"
            ready = sum(worker.stage is Stage.READY for worker in alive)
            slots = ", ".join(f"{host}:{count}" for host, count in self._hosts.items()) or "none"
            membership.failure = Failure(
                f"no world could be formed {within}: {self._problem}"
                if membership.held
                else f"fewer than {needed} slots {within}: {ready} processes are ready; "
                f"the slots that were found: {slots}"
            )
            membership.phase = Phase.ENDING

    def _watch_starts(self, now: float) -> None:
        """Ends processes that do not come to init() although others wait for them there."""
        if self._first_ready is None:
            return
        for worker in self._membership.alive():
            number = worker.number
            if worker.stage is not Stage.STARTING or worker.leaving or number in self._asked_to_end:
                continue
            since = max(self._first_ready, self._waits_since, self._opened[number])
            if now - since > self._limits.init_s:
                within = f"within {self._limits.init_s:g} s (--start-timeout)"
                self._note(f"process {number} has not called init() {within} and is killed")
                self._end_late_worker(number)

    def _end_late_worker(self, number: int) -> None:
        self._asked_to_end.add(number)
        self._stop_worker(number)

    def _is_stopped(self, number: int) -> bool:
        """Whether a process of this machine is stopped by a signal. It cannot leave its world then."""
        try:
            with open(f"/proc/{self._pids[number]}/stat", "rb") as stat:
                # The name in parentheses may itself hold spaces and parentheses.
                return stat.read().rpartition(b")")[2].split()[0] == b"T"
        except (KeyError, IndexError, OSError):
            return False

    def _end_all(self) -> None:
        if not self._failure_shown:
            self._failure_shown = True
            failure = self._membership.failure
            if failure.number is not None:
                self._note(failure.why)
            for site in self._sites:
                site.request("stop")

    # ----------------------------------------------------------------------------------------------- workers

    def _discovery_failed(self, why: str) -> None:
        self._note(why)
        if self._waits_since is None:
            self._begin_waiting(time.monotonic())

    def _hosts_found(self, hosts: dict[str, int]) -> None:
        if self._waits_since is None:
            self._begin_waiting(time.monotonic())
        hosts = self._merged(hosts)
        if hosts == self._hosts:
            return
        if self._verbose or self._begun:
            self._note("slots: " + (", ".join(f"{host}:{count}" for host, count in hosts.items()) or "none"))
        self._hosts = hosts
        # A host's oldest workers keep their slots, members before spares.
        members, kept = set(self._membership.members), []
        for host, slots in hosts.items():
            here = [w for w in self._membership.alive() if w.host == host and not w.leaving]
            here.sort(key=lambda worker: (worker.number not in members, worker.number))
            kept += [worker.number for worker in here[:slots]]
        self._settle(lambda membership: membership.want(kept))

    def _start_workers(self, now: float) -> None:
        if not self._begun:
            if sum(self._hosts.values()) < self._limits.first:
                return
            self._begun = True
        used: dict[str, int] = {}
        count = 0
        for worker in self._membership.alive():
            if not worker.leaving:
                used[worker.host] = used.get(worker.host, 0) + 1
                count += worker.wanted
        most = (
            sum(self._hosts.values())
            if self._limits.most is None
            else self._limits.most + self._limits.spares
        )
        for host, slots in self._hosts.items():
            usable = self._cooldown.usable_at(host, len(self._hosts) == 1)
            while usable is not None and now >= usable and count < most and used.get(host, 0) < slots:
                if not self._start_worker(host, now):
                    return
                used[host] = used.get(host, 0) + 1
                count += 1

    def _start_worker(self, host: str, now: float) -> bool:
        """Returns False if this machine cannot start it now. Raises OSError for that reason before the first world."""
        number, self._number = self._number, self._number + 1
        site = self._start(number, host)
        try:
            for index, name in enumerate(STREAMS):
                self._streams[number, index] = self._stream(number, name)
            site.open(self._selector, self)
        except OSError as error:
            for index in range(len(STREAMS)):
                if (stream := self._streams.pop((number, index), None)) is not None:
                    stream.end()
            self._cannot_start(number, error, now)
            return False
        self._membership.add(number, host)
        self._sites.append(site)
        self._site_of[number], self._opened[number] = site, now
        return True

    def _begin_worker(self, number: int, site: Site, now: float) -> None:
        try:
            site.begin()
        except OSError as error:  # it has closed itself
            self._cannot_start(number, error, now)

    def _cannot_start(self, number: int, error: OSError, now: float) -> None:
        if self._membership.world == 0:
            raise error
        if number in self._site_of:
            self._membership.workers[number].leaving = True  # it is no failure of the host
        self._start_after = now + _START_PAUSE_S
        self._note_once(f"process {number} cannot be started: {error}", f"{error}")

    def _stop_worker(self, number: int) -> None:
        site = self._site_of.get(number)
        if site is not None:
            site.request("stop")

    # ------------------------------------------------------------------------------------------ what is heard

    def heard(self, rank: int, data: bytes) -> None:
        """Called by a site; see Listener."""
        if rank not in self._site_of:
            return
        *lines, rest = (self._heard.pop(rank, b"") + data).split(b"\n")
        if rest:
            self._heard[rank] = rest
        for line in lines:
            said = json.loads(line)
            values = [rank]
            if said["kind"] == "ready":
                self._first_ready = self._first_ready or time.monotonic()
                values += [int(said["commits"]), bool(said["updated"])]
            decide = {"ready": Membership.ready, "up": Membership.up, "done": Membership.done}[said["kind"]]
            self._events.append(
                lambda decide=decide, values=values: self._settle(
                    lambda membership: decide(membership, *values)
                )
            )

    def event(self, site, event: dict) -> None:
        """Called by a site; see Listener."""
        if event["event"] == "exit":
            number, code = int(event["rank"]), int(event["code"])
            self._events.append(lambda: self._ended(number, code))
        elif event["event"] == "lost":
            self._note(event["text"])
            for number in map(int, event["ranks"]):
                self._events.append(lambda number=number: self._ended(number, 1))
        elif event["event"] in ("start", "unkillable"):
            if event["event"] == "start" and site.host is None:
                self._pids[event["rank"]] = event["pid"]
            super().event(site, event)

    def _ended(self, number: int, code: int) -> None:
        membership = self._membership
        worker = membership.workers.get(number)
        if worker is None or not worker.alive:
            return
        self._leaving.pop(number, None)
        self._pids.pop(number, None)
        late = number in self._asked_to_end
        if late and code == 0:
            code = 128 + signal.SIGTERM  # it has not finished
        expected = worker.leaving or self._stops or membership.failure is not None
        if (
            membership.phase is not Phase.GATHERING
            and number in membership.members
            and self._ends is not None
        ):
            self._ends.tell(membership.members.index(number), code, self._site_of[number].host)
        self._outcome.codes[number] = code
        if code and not expected:
            where = f" on {worker.host}" if worker.host != "localhost" else ""
            self._note(f"process {number}{where} has ended ({describe_code(code)})")
            # A slow first start is no failure of the host.
            spared = late and worker.stage is Stage.STARTING and worker.host not in self._late_hosts
            if spared:
                self._late_hosts.add(worker.host)
            elif membership.phase is not Phase.ENDING:
                self._cooldown.failed(worker.host, time.monotonic())
        self._settle(lambda membership: membership.died(number, code))

    # ----------------------------------------------------------------------------------------- what is told

    def _settle(self, event: Callable[[Membership], Sequence[Command]]) -> None:
        """Lets the membership decide, and carries out its commands. If the store of a new world cannot be opened, the
        membership decides again without that world, and later once more."""
        before, after = self._membership, self._membership.copy()
        commands = event(after)
        enter = next((command for command in commands if isinstance(command, Enter)), None)
        if enter is not None:
            try:
                self._open_world(enter, after)
            except (OSError, ValueError) as error:
                if before.world == 0:
                    raise
                self._note_once(f"world {enter.world} cannot be formed now: {error}", f"{error}")
                self._form_after = time.monotonic() + _FORM_PAUSE_S
                after = before.copy()
                after.held = True
                commands = [] if event is Membership.settle else event(after)
        if after.phase is Phase.GATHERING and before.phase is not Phase.GATHERING:
            self._begin_waiting(time.monotonic())
        self._membership = after
        for command in commands:
            if isinstance(command, Enter):
                self._tell_places(command)
            elif isinstance(command, Update):
                for number in command.members:
                    self._say(number, kind="update")
            elif isinstance(command, Leave):
                starting = self._membership.workers[command.number].stage is Stage.STARTING
                self._say(command.number, kind="leave")
                self._leaving[command.number] = time.monotonic() + (0.0 if starting else _LEAVE_S)

    def _say(self, number: int, **what) -> None:
        site = self._site_of.get(number)
        if site is not None:
            site.tell(number, json.dumps(what).encode() + b"\n")

    def _open_world(self, world: Enter, membership: Membership) -> None:
        """Opens the store of a world in place of that of the last one."""
        secret = secrets.token_bytes(32)
        hosts = list(dict.fromkeys(membership.workers[number].host for number in world.members))
        server, addresses, here = self._open_store(hosts, secret)
        self._close_store()
        self._server, self._ends = server, EndedRanks(here, secret)
        self._addresses, self._secret = addresses, secret

    def _tell_places(self, world: Enter) -> None:
        workers = [self._membership.workers[number] for number in world.members]
        counts: dict[str, int] = {}
        for worker in workers:
            counts[worker.host] = counts.get(worker.host, 0) + 1
        hosts = [HostInfo(host, count) for host, count in counts.items()]
        slots = get_host_assignments(hosts, len(workers))
        where = ", ".join(f"{host} ({count})" for host, count in counts.items())
        names = " ".join(map(str, world.members))
        if self._verbose or world.world > 1:
            text = f"world {world.world}: {len(workers)} ranks on {where}; the processes by rank: {names}"
            self._note(text)
        for slot, worker in zip(slots, workers):
            variables = rank_environment(slot) | store_environment(self._addresses[worker.host], self._secret)
            variables["HOROVOD_EPOCH"] = str(world.world)
            self._say(worker.number, kind="enter", env=variables, sync=world.sync)

    def _close_store(self) -> None:
        if self._ends is not None:
            self._ends.close()
            self._ends = None
        if self._server is not None:
            self._server.close()
            self._server = None

    def _note_once(self, text: str, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._note(text)

    def _note(self, text: str) -> None:
        self._output.stderr.note(f"horovodrun: {text}")
