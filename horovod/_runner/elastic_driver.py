"""Runs an elastic job: starts workers on the hosts that discovery finds, and forms worlds of them.

One thread runs one event loop, and nothing else waits. elastic_membership.py decides, and `ElasticJob` carries the
decisions out: it opens the store of each world, and starts and ends workers. Messages and ends of workers are queued and
handled once in each turn, outside the code that reads them. elastic_workers.py has the timeouts. Blocks its thread.
"""

from __future__ import annotations

import json
import math
import secrets
import signal
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from horovod._runner.elastic_discovery import (
    Discovery,
    FixedHosts,
    HostDiscovery,
    HostDiscoveryScript,
    HostNames,
)
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
from horovod._runner.elastic_workers import Chaos, Cooldown, Process, Timeouts, free_slots, with_slots
from horovod._runner.environment import (
    backend_environment,
    rank_environment,
    remote_environment,
    store_environment,
)
from horovod._runner.failures import EndedRanks, about_end, describe_code
from horovod._runner.hosts import HostInfo, get_host_assignments, open_store, slots_by_host, store_place
from horovod._runner.job import Job, Outcome
from horovod._runner.launch_spec import LaunchSpec, check_command, check_encryption_library, check_proc
from horovod._runner.local_ranks import LocalRanks
from horovod._runner.output import Output
from horovod._runner.remote_ranks import RemoteRanks, RemoteShell, agent_words
from horovod._runner.site import STREAMS, Event, RankSpec, Site, SiteState
from hvd_core._base.messages import LineBuffer, line_of
from hvd_core._config.settings import encryption_wanted

if TYPE_CHECKING:
    from hvd_core._bootstrap.store import StoreServer

# A worker that was sent a request to leave gets this time.
_LEAVE_S = 10.0

_EVENTS = {
    "up": Membership.up,
    "done": Membership.done,
    "again": Membership.again,
}


class ElasticJob(Job):
    """An elastic job. Derived classes make the sites of workers and the stores of worlds.

    Args:
        names: what is known of the hosts' names; None where they are only shown.
    """

    def __init__(
        self,
        limits: Limits,
        source: HostDiscovery,
        names: HostNames | None,
        output: Output,
        verbose: bool = False,
    ) -> None:
        super().__init__([], output, verbose, limits.start_s)
        self._limits = limits
        self._membership = Membership(limits.least, limits.most or 1 << 30, limits.reset_limit)
        self._processes: dict[int, Process] = {}
        self._numbers = 0  # of workers that were started
        self._timeouts = Timeouts(limits, self._processes, self._stop_worker, self._note)
        self._cooldown = Cooldown(limits.cooldown)
        self._chaos = None if limits.chaos_s is None else Chaos(limits.chaos_s, self._kill_worker, self._note)
        self._discovery = Discovery(source, self._loop, names, self._hosts_found, self._discovery_failed)
        self._server: StoreServer | None = None  # of the last world
        self._going: set[int] = set()  # workers whose end was announced by SIGTERM
        self._patient_until = 0.0  # how long replacements are waited for
        self._events: list[Callable[[], None]] = []  # messages and ends of workers
        self._hosts: dict[str, int] = {}
        self._lines: dict[int, LineBuffer] = {}  # of messages, by worker
        self._late_hosts: set[str] = set()
        self._begun = False
        self._failure_shown = False

    @abstractmethod
    def _make_site(self, number: int, host: str) -> Site:
        """The site of a new worker. Raises OSError."""

    @abstractmethod
    def _site_ended(self, number: int) -> None:
        """No process of a worker is left."""

    @abstractmethod
    def _open_store(self, hosts: Sequence[str], secret: bytes) -> tuple[StoreServer, Mapping[str, str], str]:
        """Starts the store of a world on these hosts: the server, its address by other host, its address here. Raises
        OSError, ValueError."""

    def _run(self) -> None:
        while self._membership.phase is not Phase.ENDING or self._sites:
            self._loop.turn(self._soonest())
            self._advance(time.monotonic())
        failure = self._membership.failure
        self._outcome.last_world = list(self._membership.members)
        if failure is not None:
            if failure.number is not None:
                self._outcome.culprit = (failure.number, failure.code)
            else:
                self._outcome.problem = f"horovodrun: {failure.why}\n"

    def _close(self) -> None:
        self._discovery.close()
        self._close_store()
        super()._close()

    def _soonest(self) -> float | None:
        """When something is due that is neither a site's nor a stream's. None: not before an event."""
        now = time.monotonic()
        due = [process.leave_until for process in self._processes.values()]
        if self._membership.phase is not Phase.ENDING:
            others = (self._discovery.due(), None if self._chaos is None else self._chaos.due())
            due += [moment for moment in others if moment is not None]
        if self._membership.phase is Phase.GATHERING:
            due.append(now + 0.5)  # its timeouts are seconds
        if self._membership.patient:
            due.append(self._patient_until)
        soonest = min(due, default=math.inf)
        return None if soonest == math.inf else max(now, soonest)

    # -------------------------------------------------------------------------------------------- each turn

    def _advance(self, now: float) -> None:
        if self._stops:
            self._membership.phase = Phase.ENDING
        events, self._events = self._events, []
        for event in events:
            event()
        if self._membership.phase is not Phase.ENDING:
            self._discovery.advance(now)
            if not (self._stops or self._membership.later):
                self._start_workers(now)
        if self._membership.patient and (now >= self._patient_until or not self._membership.starts()):
            self._settle(Membership.hurry)
        if self._chaos is not None:
            self._chaos.advance(now, self._membership)
        for number, process in list(self._processes.items()):
            self._advance_process(number, process, now)
        if self._membership.phase is Phase.GATHERING:
            self._timeouts.check(now, self._membership, self._hosts, self._begun)
        if self._membership.phase is Phase.ENDING:
            self._discovery.close()
        if self._membership.failure is not None and not self._stops:
            self._end_all()

    def _advance_process(self, number: int, process: Process, now: float) -> None:
        site = process.site
        if now >= process.leave_until:
            process.leave_until = math.inf
            self._stop_worker(number)
        if self._membership.phase is Phase.ENDING and not (site.begun or site.over):
            self._membership.workers[number].leaving = True
            site.abandon()
        elif site.state is SiteState.READY:
            site.begin()
        elif site.state is SiteState.CONNECTING and now - process.opened > self._limits.start_s:
            self._note(f"host {site.host} did not answer within {self._limits.start_s:g} s")
            site.abandon()
        if site.over:
            self._forget(number, site)

    def _forget(self, number: int, site: Site) -> None:
        worker = self._membership.workers[number]
        if not site.begun and site.host is not None and not worker.leaving:
            self._note(site.describe_failure())
        if not site.begun or worker.alive:  # its site was lost with it
            self._ended(number, 1)
        del self._processes[number]
        site.close()
        self._sites.remove(site)
        for index in range(len(STREAMS)):
            if (stream := self._streams.pop((number, index), None)) is not None:
                stream.end()
        self._site_ended(number)

    def _end_all(self) -> None:
        if not self._failure_shown:
            self._failure_shown = True
            failure = self._membership.failure
            if failure is not None and failure.number is not None:
                self._note(failure.why)
            for number in self._processes:
                self._stop_worker(number)

    def stop(self) -> None:
        for number in list(self._processes):
            self._send(number, kind="end")
        super().stop()

    # -------------------------------------------------------------------------------------------- decisions

    def _settle(self, event: Callable[[Membership], Sequence[Command]]) -> None:
        """Lets the membership decide, and carries out its commands. Raises OSError or ValueError if the store of a new
        world cannot be opened."""
        before = self._membership.phase
        commands = event(self._membership)
        if self._membership.phase is Phase.GATHERING and before is not Phase.GATHERING:
            self._timeouts.begin(time.monotonic())
        for command in commands:
            if isinstance(command, Enter):
                self._enter(command)
            elif isinstance(command, Update):
                for number in command.members:
                    self._send(number, kind="update")
            elif isinstance(command, Leave):
                starting = self._membership.workers[command.number].stage is Stage.STARTING
                self._send(command.number, kind="leave")
                self._leave_until(command.number, time.monotonic() + (0.0 if starting else _LEAVE_S))

    def _enter(self, world: Enter) -> None:
        """Forms a world. Each has a store and a secret of its own: nothing of a dead world is left for the next one."""
        if self._chaos is not None:
            self._chaos.entered(world.members, world.sync)
        members = [self._membership.workers[number] for number in world.members]
        self._close_store()
        secret = secrets.token_bytes(32)
        hosts = list(dict.fromkeys(worker.host for worker in members))
        self._server, addresses, here = self._open_store(hosts, secret)
        self._ends = EndedRanks(here, secret)
        counts = {host: sum(worker.host == host for worker in members) for host in hosts}
        if self._verbose or world.world > 1:
            where = ", ".join(f"{host} ({count})" for host, count in counts.items())
            names = " ".join(map(str, world.members))
            self._note(
                f"world {world.world}: {len(members)} ranks on {where}; the processes by rank: {names}"
            )
        slots = get_host_assignments([HostInfo(*item) for item in counts.items()], len(members))
        for slot, worker in zip(slots, members):
            variables = (
                rank_environment(slot)
                | store_environment(addresses.get(worker.host, here), secret)
                | {"HOROVOD_EPOCH": str(world.world)}
            )
            self._send(worker.number, kind="enter", env=variables, sync=world.sync)

    def _close_store(self) -> None:
        if self._ends is not None:
            self._ends.close()
            self._ends = None
        if self._server is not None:
            self._server.close()
            self._server = None

    # ----------------------------------------------------------------------------------------------- workers

    def _discovery_failed(self, why: str) -> None:
        self._note(why)
        if not self._timeouts.begun:
            self._timeouts.begin(time.monotonic())

    def _hosts_found(self, hosts: dict[str, int]) -> None:
        if not self._timeouts.begun:
            self._timeouts.begin(time.monotonic())
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
        if grace_s is not None and not self._membership.patient:
            self._patient_until = time.monotonic() + grace_s / 2
        self._settle(lambda membership: membership.want(kept, grace_s is not None))

    def _announced(self, number: int) -> None:
        """A worker has got SIGTERM from outside: it is about to end."""
        worker = self._membership.workers[number]
        if number in self._going or worker.leaving or self._membership.phase is Phase.ENDING:
            return
        grace_s = self._limits.preemption_s
        if grace_s is None:  # the variable was set for the process, but not for the job
            self._stop_worker(number)
            return
        self._going.add(number)
        self._note(
            f"process {number}{_on(worker)} has got SIGTERM: it leaves at its next commit, or is killed after "
            f"{grace_s:g} s (--preemption-grace)"
        )
        until = time.monotonic() + grace_s
        self._leave_until(number, until)
        self._cooldown.announced(worker.host, until)
        self._want_those_with_slots()

    def _start_workers(self, now: float) -> None:
        if not self._begun:
            if sum(self._hosts.values()) < self._limits.first:
                return
            self._begun = True
        most = self._limits.most and self._limits.most + self._limits.spares
        for host in free_slots(self._membership, self._hosts, most, self._cooldown.usable_at, now):
            self._start_worker(host, now)

    def _start_worker(self, host: str, now: float) -> None:
        number, self._numbers = self._numbers, self._numbers + 1
        site = self._make_site(number, host)
        for index, name in enumerate(STREAMS):
            self._streams[number, index] = self._stream(number, name)
        self._sites.append(site)
        self._processes[number] = Process(site, now)
        self._membership.add(number, host)
        site.open(self._loop.selector, self)

    def _send(self, number: int, **message: Any) -> None:
        """Sends a message over the channel of a worker (hvd_core/_bootstrap/driver_channel.py)."""
        if number in self._processes:
            self._processes[number].site.send(number, line_of(message))

    def _stop_worker(self, number: int) -> None:
        """SIGTERM, and SIGKILL after a while. A message before that says that this is no announcement."""
        if number in self._processes:
            self._processes[number].stopped = True
            self._send(number, kind="end")
            self._processes[number].site.request("stop")

    def _kill_worker(self, number: int) -> None:
        if number in self._processes:
            self._processes[number].site.request("kill")

    def _leave_until(self, number: int, moment: float) -> None:
        if number in self._processes:
            process = self._processes[number]
            process.leave_until = min(moment, process.leave_until)

    # ------------------------------------------------------------------------------------------ messages, events

    def message(self, rank: int, data: bytes) -> None:
        if rank not in self._processes:
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
            super().event(site, event)

    def _ended(self, number: int, code: int) -> None:
        membership = self._membership
        worker = membership.workers.get(number)
        if worker is None or not worker.alive:
            return
        process = self._processes[number]
        process.leave_until = math.inf
        late = number in self._timeouts.asked_to_end
        stopped = process.stopped and membership.phase is Phase.GATHERING and not worker.leaving
        if (late or stopped) and code == 0:
            code = -signal.SIGTERM  # it has not finished
        expected = worker.leaving or self._stops or membership.failure is not None
        if (
            membership.phase is not Phase.GATHERING
            and number in membership.members
            and self._ends is not None
        ):
            self._ends.report(membership.members.index(number), code, process.site.host)
        self._outcome.codes[number] = code
        if code and not expected:
            self._note(f"process {number}{_on(worker)} has ended ({describe_code(code)})")
            # A slow first start is no failure of the host.
            spared = late and worker.stage is Stage.STARTING and worker.host not in self._late_hosts
            planned = number in self._going or (self._chaos is not None and number in self._chaos.killed)
            if spared:
                self._late_hosts.add(worker.host)
            elif membership.phase is not Phase.ENDING and not planned:
                self._cooldown.failed(worker.host, time.monotonic())
        self._settle(lambda membership: membership.died(number, code))

    def _note(self, text: str) -> None:
        self._output.stderr.note(f"horovodrun: {text}")


def _on(worker: Worker) -> str:
    return f" on {worker.host}" if worker.host != "localhost" else ""


# ------------------------------------------------------------------------------------- the jobs of horovodrun


class HostsJob(ElasticJob):
    """An elastic job of horovodrun: processes on this machine, and on other hosts at the ends of remote shells."""

    def __init__(self, spec: LaunchSpec, limits: Limits) -> None:
        self._spec, self._function = spec, spec.function
        self._env = {**spec.env, **backend_environment(spec.env), "HOROVOD_ELASTIC": "1"}
        self._shell = RemoteShell.of(spec)
        self._names = HostNames(self._shell.resolve)
        output = Output(
            limits.most or limits.first, spec.output_filename, bool(spec.prefix_output_with_timestamp)
        )
        self._encrypted = encryption_wanted(self._env)
        super().__init__(limits, host_source(spec), self._names, output, bool(spec.verbose))

    def _make_site(self, number: int, host: str) -> Site:
        from hvd_core._bootstrap.driver_channel import DESCRIPTOR

        spec, function = self._spec, self._function
        own = {"HOROVOD_HOSTNAME": host}
        if function is not None:
            function.add(number)
        ranks = [RankSpec(number, spec.command, own, function, DESCRIPTOR)]
        if host == self._names.here:
            return LocalRanks(ranks, self._env)
        words = self._shell.command(host, agent_words(spec.python_there))
        return RemoteRanks(host, words, ranks, remote_environment(self._env), None)

    def _site_ended(self, number: int) -> None:
        if self._function is not None:
            self._function.drop_if_empty(number)

    def _open_store(self, hosts: Sequence[str], secret: bytes) -> tuple[StoreServer, Mapping[str, str], str]:
        others = [host for host in hosts if host != self._names.here]
        if others and self._encrypted:
            check_encryption_library()
        place = store_place(others, self._spec.store_interfaces, source=self._names.source)
        return open_store(place, secret)


def host_source(spec: LaunchSpec) -> HostDiscovery:
    """Where the hosts of an elastic job come from."""
    if spec.host_discovery_script is not None:
        return HostDiscoveryScript(spec.host_discovery_script, spec.slots)
    return FixedHosts(slots_by_host(spec.hosts))


def run_elastic_job(spec: LaunchSpec, started: Callable[[Job], None]) -> Outcome:
    """Runs an elastic job, and returns when none of its processes is left. Arguments and exceptions: launcher.run_job().
    The results of a function are those of workers."""
    assert spec.elastic is not None
    check_command(spec.command)
    check_proc()
    job = HostsJob(spec, spec.elastic)
    started(job)
    return job.run()
