"""Runs an elastic job: starts workers on the hosts that discovery finds, and forms worlds of them.

One thread runs one event loop, and nothing else waits. elastic_membership.py decides, `Decisions` carries the decisions
out, `Places` has the store of each world, and `ElasticJob` receives the workers' messages, and starts and ends
workers. Messages and ends of workers are queued and handled once in each turn, outside the code that reads them.
elastic_workers.py has the processes and the timeouts.
"""

from __future__ import annotations

import json
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from horovod._runner.elastic_discovery import Discovery, HostDiscovery, HostNames
from horovod._runner.elastic_membership import (
    Command,
    Enter,
    Leave,
    Limits,
    Membership,
    Phase,
    Stage,
    Update,
    Worker,
)
from horovod._runner.elastic_workers import Chaos, Cooldown, Timeouts, Workers, free_slots, with_slots
from horovod._runner.environment import rank_environment, store_environment
from horovod._runner.event_loop import SignalWakeup
from horovod._runner.failures import EndedRanks, about_end, describe_code
from horovod._runner.hosts import HostInfo, get_host_assignments
from horovod._runner.job import Job, Outcome
from horovod._runner.output import Output, OutputClosedError
from horovod._runner.site import Event, Site, SiteState
from hvd_core._base.messages import LineBuffer

if TYPE_CHECKING:
    from hvd_core._bootstrap.store import StoreServer


class StoreMaker(Protocol):
    """Starts the store of a world on these hosts."""

    def __call__(self, hosts: Sequence[str], secret: bytes) -> tuple[StoreServer, Mapping[str, str], str]:
        """(the server, its address by host, its address here)"""


class Places:
    """The store of each world, and the places of its members. Each world has a store and a secret of its own: nothing of
    a dead world is left for the next one. `open_store`: see StoreMaker."""

    def __init__(self, open_store: StoreMaker) -> None:
        self._open_store = open_store
        self._server: StoreServer | None = None
        self._ends: EndedRanks | None = None
        self._addresses: Mapping[str, str] = {}  # of the store of the last world, by host
        self._secret = b""

    def open(self, members: Sequence[Worker]) -> None:
        """Opens the store of a world, and closes that of the last one. Raises OSError, ValueError; then the last one is
        still open."""
        secret = secrets.token_bytes(32)
        hosts = list(dict.fromkeys(worker.host for worker in members))
        server, addresses, here = self._open_store(hosts, secret)
        self.close()
        self._server, self._ends = server, EndedRanks(here, secret)
        self._addresses, self._secret = addresses, secret

    def variables(self, world: int, members: Sequence[Worker]) -> tuple[list[dict[str, str]], str]:
        """(the variables of each member of the world that was opened last, the hosts with their numbers of members)"""
        counts: dict[str, int] = {}
        for worker in members:
            counts[worker.host] = counts.get(worker.host, 0) + 1
        slots = get_host_assignments([HostInfo(*item) for item in counts.items()], len(members))
        made = [
            rank_environment(slot)
            | store_environment(self._addresses[worker.host], self._secret)
            | {"HOROVOD_EPOCH": str(world)}
            for slot, worker in zip(slots, members)
        ]
        return made, ", ".join(f"{host} ({count})" for host, count in counts.items())

    def report_end(self, rank: int, code: int, host: str | None) -> None:
        """Reports to the ranks that wait in init() that one has ended."""
        if self._ends is not None:
            self._ends.report(rank, code, host)

    def close(self) -> None:
        """Closes the store of the last world."""
        if self._ends is not None:
            self._ends.close()
            self._ends = None
        if self._server is not None:
            self._server.close()
            self._server = None


# A worker that was sent a request to leave gets this time.
_LEAVE_S = 10.0
# When no world can be formed, the driver tries again after this time.
_FORM_PAUSE_S = 1.0


class Decisions:
    """The membership of a job, and what follows from its decisions: stores of worlds, and messages to workers.

    `membership`: as it is after the last event. `form_after`: when the next attempt to form a world is due, if one has
    failed. `problem`: the last one, which is shown once. `note` writes a line for the user."""

    def __init__(
        self,
        membership: Membership,
        places: Places,
        workers: Workers,
        timeouts: Timeouts,
        chaos: Chaos | None,
        note: Callable[[str], None],
        verbose: bool,
    ) -> None:
        self.membership = membership
        self._places, self._workers, self._timeouts, self._chaos = places, workers, timeouts, chaos
        self._note, self._verbose = note, verbose
        self.form_after = 0.0
        self.problem = ""

    def settle(self, event: Callable[[Membership], Sequence[Command]]) -> None:
        """Lets the membership decide, and carries out its commands. If the store of a new world cannot be opened, the
        membership decides again without that world, and later once more. Raises OSError or ValueError if that is the
        first world."""
        before, after = self.membership, self.membership.copy()
        commands = event(after)
        enter = next((command for command in commands if isinstance(command, Enter)), None)
        if enter is not None:
            try:
                self._places.open([after.workers[number] for number in enter.members])
            except (OSError, ValueError) as error:
                if before.world == 0:
                    raise
                self.note_once(f"world {enter.world} cannot be formed now: {error}", f"{error}")
                self.form_after = time.monotonic() + _FORM_PAUSE_S
                after = before.copy()
                after.held = True
                commands = [] if event is Membership.settle else event(after)
        if after.phase is Phase.GATHERING and before.phase is not Phase.GATHERING:
            self._timeouts.begin(time.monotonic())
        self.membership = after
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Enter):
            if self._chaos is not None:
                self._chaos.entered(command.members, command.sync)
            self._send_places(command)
        elif isinstance(command, Update):
            for number in command.members:
                self._workers.send(number, kind="update")
        elif isinstance(command, Leave):
            starting = self.membership.workers[command.number].stage is Stage.STARTING
            self._workers.send(command.number, kind="leave")
            self._workers.leave_until(command.number, time.monotonic() + (0.0 if starting else _LEAVE_S))

    def _send_places(self, world: Enter) -> None:
        members = [self.membership.workers[number] for number in world.members]
        places, where = self._places.variables(world.world, members)
        names = " ".join(map(str, world.members))
        if self._verbose or world.world > 1:
            self._note(
                f"world {world.world}: {len(members)} ranks on {where}; the processes by rank: {names}"
            )
        for number, variables in zip(world.members, places):
            self._workers.send(number, kind="enter", env=variables, sync=world.sync)

    def note_once(self, text: str, problem: str) -> None:
        """Writes a line, unless the last problem was the same."""
        if problem != self.problem:
            self.problem = problem
            self._note(text)


# After the machine could not start a process, it gets this time.
_START_PAUSE_S = 5.0

_EVENTS = {
    "up": Membership.up,
    "done": Membership.done,
    "again": Membership.again,
}


class ElasticJob(Job):
    """`start(number, host)` makes the site of a worker; `ended(number)` is called when no process of it is left.
    `open_store`: see StoreMaker."""

    def __init__(
        self,
        limits: Limits,
        source: HostDiscovery,
        start: Callable[[int, str], Site],
        ended: Callable[[int], None],
        open_store: StoreMaker,
        names: HostNames,
        output: Output,
        verbose: bool = False,
    ) -> None:
        super().__init__([], output, verbose, limits.start_s)
        self._limits = limits
        self._names = names
        names.begin(self._loop, lambda: self._hosts_found(self._answer), self._note)
        self._workers = Workers(
            start, ended, self._stream, self._sites, self._streams, self._loop.selector, self
        )
        self._places = Places(open_store)
        self._timeouts = Timeouts(limits, self._workers, self._note)
        self._cooldown = Cooldown(limits.cooldown)
        self._chaos = None if limits.chaos_s is None else Chaos(limits.chaos_s, self._workers, self._note)
        membership = Membership(limits.least, limits.most or 1 << 30, limits.reset_limit)
        self._decisions = Decisions(
            membership, self._places, self._workers, self._timeouts, self._chaos, self._note, verbose
        )
        self._settle = self._decisions.settle
        self._going: set[int] = set()  # workers whose end was announced by SIGTERM
        self._patient_until = 0.0  # how long replacements are waited for
        self._discovery = Discovery(source, self._loop, self._hosts_found, self._discovery_failed)
        self._events: list[Callable[[], None]] = []  # messages and ends of workers
        self._answer: dict[str, int] = {}  # of discovery, the last one
        self._hosts: dict[str, int] = {}  # those of them whose names are known
        self._lines: dict[int, LineBuffer] = {}  # of messages, by worker
        self._late_hosts: set[str] = set()
        self._start_after = 0.0
        self._begun = False
        self._failure_shown = False

    @property
    def _membership(self) -> Membership:
        return self._decisions.membership

    def run(self) -> Outcome:
        """As Job.run()."""
        self._wakeup = SignalWakeup(self._loop.selector)
        try:
            while not self._is_over():
                self._loop.turn(self._soonest())
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
            self._places.close()
        failure = self._membership.failure
        self._outcome.last_world = list(self._membership.members)
        if failure is not None:
            if failure.number is not None:
                self._outcome.culprit = (failure.number, failure.code)
            else:
                self._outcome.problem = f"horovodrun: {failure.why}\n"
        return self._outcome

    def _is_over(self) -> bool:
        return self._membership.phase is Phase.ENDING and not self._sites

    def _soonest(self) -> float | None:
        """When something is due that is neither a site's nor a stream's. None: not before an event."""
        now = time.monotonic()
        due = [self._workers.due()]
        if self._membership.phase is not Phase.ENDING:
            due += [self._discovery.due(), None if self._chaos is None else self._chaos.due()]
        if self._membership.phase is Phase.GATHERING:
            due.append(now + 0.5)  # its timeouts are seconds
        if self._membership.patient:
            due.append(self._patient_until)
        moments = [moment for moment in due if moment is not None]
        return max(now, min(moments)) if moments else None

    # -------------------------------------------------------------------------------------------- each turn

    def _advance(self, now: float) -> None:
        if self._stops:
            self._membership.phase = Phase.ENDING
        events, self._events = self._events, []
        for event in events:
            event()
        if self._membership.phase is not Phase.ENDING:
            self._discovery.advance(now)
            if now >= self._start_after and not (self._stops or self._membership.later):
                self._start_workers(now)
        if self._membership.patient and (now >= self._patient_until or not self._membership.starts()):
            self._settle(Membership.hurry)
        if self._chaos is not None:
            self._chaos.advance(now, self._membership)
        if self._membership.held and now >= self._decisions.form_after:
            self._settle(Membership.settle)
        for number, site in list(self._workers.by_number.items()):
            self._advance_site(number, site, now)
        self._workers.advance(now)
        if self._membership.phase is Phase.GATHERING:
            self._timeouts.check(now, self._membership, self._hosts, self._begun, self._decisions.problem)
        if self._membership.phase is Phase.ENDING:
            self._discovery.close()
        if self._membership.failure is not None and not self._stops:
            self._end_all()

    def _advance_site(self, number: int, site: Site, now: float) -> None:
        if self._membership.phase is Phase.ENDING and not (site.begun or site.over):
            self._membership.workers[number].leaving = True
            site.abandon()
        elif site.state is SiteState.READY:
            self._begin_worker(number, site, now)
        elif site.state is SiteState.CONNECTING and now - self._workers.opened[number] > self._limits.start_s:
            self._note(f"host {site.host} did not answer within {self._limits.start_s:g} s")
            site.abandon()
        if site.over:
            self._forget(number, site)

    def _forget(self, number: int, site: Site) -> None:
        if not site.begun:
            if site.host is not None and not self._membership.workers[number].leaving:
                self._note(site.describe_failure())
            self._ended(number, 1)
        elif self._membership.workers[number].alive:
            self._ended(number, 1)  # its site was lost with it
        self._workers.remove(number)

    def _end_all(self) -> None:
        if not self._failure_shown:
            self._failure_shown = True
            failure = self._membership.failure
            if failure is not None and failure.number is not None:
                self._note(failure.why)
            self._workers.stop_all()

    def stop(self) -> None:
        """As Job.stop()."""
        for number in list(self._workers.by_number):
            self._workers.send(number, kind="end")
        super().stop()

    # ----------------------------------------------------------------------------------------------- workers

    def _discovery_failed(self, why: str) -> None:
        self._note(why)
        if not self._timeouts.begun:
            self._timeouts.begin(time.monotonic())

    def _hosts_found(self, hosts: dict[str, int]) -> None:
        if not self._timeouts.begun:
            self._timeouts.begin(time.monotonic())
        self._answer = hosts
        hosts = self._names.merged(hosts)
        if hosts == self._hosts:
            return
        if self._verbose or self._begun:
            self._note("slots: " + (", ".join(f"{host}:{count}" for host, count in hosts.items()) or "none"))
        self._hosts = hosts
        self._want_those_with_slots()

    def _want_those_with_slots(self) -> None:
        """Workers without a slot leave; with --preemption-grace, when their replacements are ready, if that does not take
        too long."""
        kept = with_slots(self._membership, self._hosts, self._going)
        grace_s = self._limits.preemption_s
        patient = grace_s is not None
        if grace_s is not None and not self._membership.patient:
            self._patient_until = time.monotonic() + grace_s / 2
        self._settle(lambda membership: membership.want(kept, patient))

    def _announced(self, number: int) -> None:
        """A worker has got SIGTERM from outside: it is about to end."""
        worker = self._membership.workers[number]
        if number in self._going or worker.leaving or self._membership.phase is Phase.ENDING:
            return
        grace_s = self._limits.preemption_s
        if grace_s is None:  # the variable was set for the process, but not for the job
            self._workers.stop(number)
            return
        self._going.add(number)
        where = f" on {worker.host}" if worker.host != "localhost" else ""
        self._note(
            f"process {number}{where} has got SIGTERM: it leaves at its next commit, or is killed after {grace_s:g} s "
            "(--preemption-grace)"
        )
        until = time.monotonic() + grace_s
        self._workers.leave_until(number, until)
        self._cooldown.announced(worker.host, until)
        self._want_those_with_slots()

    def _start_workers(self, now: float) -> None:
        preferred = self._names.preferred(self._answer)
        if not self._begun:
            if sum(preferred.values()) < self._limits.first:
                return
            self._begun = True
        most = self._limits.most and self._limits.most + self._limits.spares
        for host in free_slots(self._membership, self._hosts, most, self._cooldown.usable_at, now):
            if host in preferred and not self._start_worker(host, now):
                return

    def _start_worker(self, host: str, now: float) -> bool:
        """Returns False if this machine cannot start it now. Raises OSError for that reason before the first world."""
        number, error = self._workers.open(host, now)
        if error is not None:
            self._cannot_start(number, error, now)
            return False
        self._membership.add(number, host)
        return True

    def _begin_worker(self, number: int, site: Site, now: float) -> None:
        try:
            site.begin()
        except OSError as error:  # it has closed itself
            self._cannot_start(number, error, now)

    def _cannot_start(self, number: int, error: OSError, now: float) -> None:
        if self._membership.world == 0:
            raise error
        if number in self._workers.by_number:
            self._membership.workers[number].leaving = True  # it is no failure of the host
        self._start_after = now + _START_PAUSE_S
        self._decisions.note_once(f"process {number} cannot be started: {error}", f"{error}")

    # ------------------------------------------------------------------------------------------ messages, events

    def message(self, rank: int, data: bytes) -> None:
        """See Listener."""
        if rank not in self._workers.by_number:
            return
        for line in self._lines.setdefault(rank, LineBuffer()).feed(data):
            self._queue_message(rank, json.loads(line))

    def _queue_message(self, number: int, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "synced":
            if self._chaos is not None:
                self._events.append(partial(self._chaos.has_state, number))
        elif kind == "announced":
            self._events.append(partial(self._announced, number))
        elif kind == "ready":
            self._timeouts.worker_is_ready(time.monotonic())
            commits, updated = int(message["commits"]), bool(message["updated"])
            self._events.append(lambda: self._settle(lambda m: m.ready(number, commits, updated)))
        else:
            decide = _EVENTS[kind]
            self._events.append(lambda: self._settle(lambda m: decide(m, number)))
        if message.get("stalled") is not None:
            self._events.append(partial(self._world_stalled, number, message["stalled"]))

    def _world_stalled(self, number: int, ranks: list[int]) -> None:
        """A member has ended the last world because `ranks` of it kept it waiting."""
        members = self._membership.members
        if number in members:
            self._timeouts.world_stalled([members[rank] for rank in ranks if rank < len(members)])

    def event(self, site: Site, event: Event) -> None:
        """See Listener."""
        if event["event"] == "exit":
            number, code = int(event["rank"]), int(event["code"])
            if where := about_end(event):
                self._note(f"process {number} has ended {where}")
            self._events.append(partial(self._ended, number, code))
        elif event["event"] == "lost":
            self._note(event["text"])
            for number in map(int, event["ranks"]):
                self._events.append(partial(self._ended, number, 1))
        elif event["event"] in ("start", "unkillable"):
            if event["event"] == "start" and site.host is None:
                self._workers.started(event["rank"], event["pid"])
            super().event(site, event)

    def _ended(self, number: int, code: int) -> None:
        membership = self._membership
        worker = membership.workers.get(number)
        if worker is None or not worker.alive:
            return
        self._workers.ended(number)
        late = number in self._timeouts.asked_to_end
        stopped = (
            number in self._workers.stopped and membership.phase is Phase.GATHERING and not worker.leaving
        )
        if (late or stopped) and code == 0:
            code = -signal.SIGTERM  # it has not finished
        expected = worker.leaving or self._stops or membership.failure is not None
        if membership.phase is not Phase.GATHERING and number in membership.members:
            host = self._workers.by_number[number].host
            self._places.report_end(membership.members.index(number), code, host)
        self._outcome.codes[number] = code
        if code and not expected:
            where = f" on {worker.host}" if worker.host != "localhost" else ""
            self._note(f"process {number}{where} has ended ({describe_code(code)})")
            # A slow first start is no failure of the host.
            spared = late and worker.stage is Stage.STARTING and worker.host not in self._late_hosts
            if spared:
                self._late_hosts.add(worker.host)
            elif membership.phase is not Phase.ENDING and not self._is_planned(number):
                self._cooldown.failed(worker.host, time.monotonic())
        self._settle(lambda membership: membership.died(number, code))

    def _is_planned(self, number: int) -> bool:
        """Whether the end of a worker is no failure of its host."""
        return number in self._going or (self._chaos is not None and number in self._chaos.killed)

    def _note(self, text: str) -> None:
        self._output.stderr.note(f"horovodrun: {text}")
