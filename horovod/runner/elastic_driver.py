"""Runs an elastic job: starts workers on the hosts that discovery finds, hears them, and forms worlds of them.

One thread turns one selector, and nothing else waits. elastic_membership.py decides; this file does. Each worker is a
site of its own (LocalRanks or RemoteRanks with one rank), so that the end of one ends no other. Each world has a store
and a secret of its own: nothing of a dead world is left for the next one.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from horovod.runner.elastic_cooldown import Cooldown
from horovod.runner.elastic_discovery import Discovery, HostDiscovery
from horovod.runner.elastic_membership import Command, Enter, Failure, Leave, Membership, Phase, Stage, Update
from horovod.runner.ended_ranks import EndedRanks, describe_code
from horovod.runner.env import rank_environment, store_environment
from horovod.runner.hosts import HostInfo, get_host_assignments
from horovod.runner.local_ranks import LocalRanks
from horovod.runner.output import Output, OutputClosedError
from horovod.runner.processes import Job, Outcome
from horovod.runner.remote_ranks import RemoteRanks

# A worker that was told to leave gets this time.
_LEAVE_S = 10.0
# After a member that was stuck has been killed, those that waited for it get this time to leave.
_NEXT_KILL_S = 3.0


Site = LocalRanks | RemoteRanks  # with one worker


@dataclass(frozen=True)
class Limits:
    """Of an elastic job. `first`: the slots with which it begins; `least`, `most`: ranks of a world; `timeout_s`: how
    long it waits for enough slots; `grace_s`: how long for members to leave a world that has ended; `start_s`: for hosts
    to answer, and for the first workers to come; `spares`: workers beyond `most`, which wait for a place."""

    first: int
    least: int
    most: int | None
    timeout_s: float
    grace_s: float
    start_s: float
    reset_limit: int | None = None
    cooldown: tuple[float, float] | None = None
    spares: int = 0


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
        self._discovery = Discovery(source, self._selector, self._hosts_found, self._note)
        self._hosts: dict[str, int] = {}
        self._site_of: dict[int, Site] = {}
        self._opened: dict[int, float] = {}  # when the site of a worker was opened
        self._heard: dict[int, bytes] = {}  # incomplete lines
        self._leaving: dict[int, float] = {}  # when a worker must have left
        self._waits_since = time.monotonic()
        self._first_ready: float | None = None
        self._begun = False
        self._server = None
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

    def stop(self) -> None:
        """As Job.stop()."""
        self._membership.phase = Phase.ENDING
        super().stop()

    def _is_over(self) -> bool:
        return self._membership.phase is Phase.ENDING and not self._sites

    def _soonest(self) -> float:
        """When something is due, apart from what sites and output wait for."""
        now = time.monotonic()
        due = [self._discovery.due(), *self._leaving.values()]
        if self._membership.phase is Phase.GATHERING:
            due += [now + 0.5]  # its limits are seconds
        return max(now, min(due))

    # -------------------------------------------------------------------------------------------- each turn

    def _advance(self, now: float) -> None:
        if self._membership.failure is not None:
            self._end_all()
        if self._membership.phase is not Phase.ENDING:
            self._discovery.advance(now)
            self._start_workers(now)
        for number, site in list(self._site_of.items()):
            if site.ready and not site.begun and not site.over:
                site.begin()
            elif not site.ready and not site.over and now - self._opened[number] > self._limits.start_s:
                self._note(f"host {site.host} did not answer within {self._limits.start_s:g} s")
                site.close()
            if site.over:
                self._forget(number, site)
        for number, moment in list(self._leaving.items()):
            if now >= moment:
                self._leaving.pop(number)
                self._stop_worker(number)
        self._watch_times(now)

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

    def _watch_times(self, now: float) -> None:
        """Ends what has lasted too long."""
        membership, limits = self._membership, self._limits
        if membership.phase is not Phase.GATHERING:
            self._waits_since = now
            return
        waited = now - self._waits_since
        late = membership.late()
        if late and waited > limits.grace_s:
            # The one of the lowest rank is stuck: the others may wait for it, as ranks hear of a death from lower ones.
            within = f"within {limits.grace_s:g} s (HOROVOD_ELASTIC_GRACE)"
            self._note(f"process {late[0].number} has not left its world {within} and is killed")
            self._kill_worker(late[0].number)
            self._waits_since = now - limits.grace_s + _NEXT_KILL_S
        elif not late and waited > limits.timeout_s:
            have = sum(worker.stage is Stage.READY for worker in membership.alive())
            slots = ", ".join(f"{host}:{count}" for host, count in self._hosts.items()) or "none"
            needed = limits.least if self._begun else limits.first
            membership.failure = Failure(
                f"fewer than {needed} slots for {limits.timeout_s:g} s (--elastic-timeout): {have} processes are ready; "
                f"the slots that were found: {slots}"
            )
            membership.phase = Phase.ENDING
        if (
            membership.world == 0
            and self._first_ready is not None
            and now - self._first_ready > limits.start_s
        ):
            # The first world waits for every process, but not for ever.
            for worker in membership.alive():
                if worker.stage is Stage.STARTING and not worker.leaving:
                    within = f"within {limits.start_s:g} s (--start-timeout)"
                    self._note(f"process {worker.number} has not called init() {within}")
                    self._kill_worker(worker.number)
            self._first_ready = now

    def _end_all(self) -> None:
        if not self._failure_shown:
            self._failure_shown = True
            failure = self._membership.failure
            if failure.number is not None:
                self._note(failure.why)
            for site in self._sites:
                site.request("stop")

    # ----------------------------------------------------------------------------------------------- workers

    def _hosts_found(self, hosts: dict[str, int]) -> None:
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
        self._obey(self._membership.want(kept))

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
                self._start_worker(host, now)
                used[host] = used.get(host, 0) + 1
                count += 1

    def _start_worker(self, host: str, now: float) -> None:
        number, self._number = self._number, self._number + 1
        for index, name in enumerate(("stdout", "stderr")):
            self._streams[number, index] = self._stream(number, name)
        site = self._start(number, host)
        self._membership.add(number, host)
        self._sites.append(site)
        self._site_of[number], self._opened[number] = site, now
        site.open(self._selector, self)

    def _stop_worker(self, number: int) -> None:
        site = self._site_of.get(number)
        if site is not None:
            site.request("stop")

    def _kill_worker(self, number: int) -> None:
        for _ in range(2):  # the second request kills at once
            self._stop_worker(number)

    # ------------------------------------------------------------------------------------------ what is heard

    def heard(self, rank: int, data: bytes) -> None:
        """Called by a site; see Listener."""
        *lines, rest = (self._heard.pop(rank, b"") + data).split(b"\n")
        if rest:
            self._heard[rank] = rest
        for line in lines:
            said = json.loads(line)
            if said["kind"] == "ready":
                self._first_ready = self._first_ready or time.monotonic()
                self._obey(self._membership.ready(rank, said["commits"], said["updated"]))
            elif said["kind"] == "up":
                self._obey(self._membership.up(rank))
            elif said["kind"] == "done":
                self._obey(self._membership.done(rank))

    def event(self, site, event: dict) -> None:
        """Called by a site; see Listener."""
        if event["event"] == "exit":
            self._ended(event["rank"], event["code"])
        elif event["event"] == "lost":
            self._note(event["text"])
            for number in event["ranks"]:
                self._ended(number, 1)
        elif event["event"] in ("start", "unkillable"):
            super().event(site, event)

    def _ended(self, number: int, code: int) -> None:
        membership = self._membership
        worker = membership.workers[number]
        if not worker.alive:
            return
        self._leaving.pop(number, None)
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
            if membership.phase is not Phase.ENDING:
                self._cooldown.failed(worker.host, time.monotonic())
        self._obey(membership.died(number, code))

    # ----------------------------------------------------------------------------------------- what is told

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Enter):
                self._form_world(command)
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

    def _form_world(self, world: Enter) -> None:
        workers = [self._membership.workers[number] for number in world.members]
        counts: dict[str, int] = {}
        for worker in workers:
            counts[worker.host] = counts.get(worker.host, 0) + 1
        hosts = [HostInfo(host, count) for host, count in counts.items()]
        slots = get_host_assignments(hosts, len(workers))
        self._close_store()
        secret = secrets.token_bytes(32)
        self._server, addresses, here = self._open_store(list(counts), secret)
        self._ends = EndedRanks(here, secret)
        where = ", ".join(f"{host} ({count})" for host, count in counts.items())
        names = " ".join(map(str, world.members))
        if self._verbose or world.world > 1:
            text = f"world {world.world}: {len(workers)} ranks on {where}; the processes by rank: {names}"
            self._note(text)
        for slot, worker in zip(slots, workers):
            variables = rank_environment(slot) | store_environment(addresses[worker.host], secret)
            variables["HOROVOD_EPOCH"] = str(world.world)
            self._say(worker.number, kind="enter", env=variables, sync=world.sync)

    def _close_store(self) -> None:
        if self._ends is not None:
            self._ends.close()
            self._ends = None
        if self._server is not None:
            self._server.close()
            self._server = None

    def _note(self, text: str) -> None:
        self._output.stderr.note(f"horovodrun: {text}")
