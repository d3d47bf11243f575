"""Which hosts an elastic job may use now, and how many slots each has.

A discovery script prints lines as those of a hostfile: "host:slots", "host slots=N" or "host". It runs once a second,
and may fail or hang: the driver continues with the last good answer. A source of another kind is called in a thread, and
so is the resolver. Used on the thread of the driver, which never waits here.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import partial

from horovod._runner.event_loop import EventLoop
from horovod._runner.failures import shell_code
from horovod._runner.hosts import (
    HostInfo,
    is_local,
    merge_hosts,
    parse_host_lines,
    slots_by_host,
    source_address,
)
from horovod._runner.local_ranks import LocalRanks
from horovod._runner.site import Event, Listener, RankSpec, Site

__all__ = ["DISCOVER_HOSTS_FREQUENCY_SECS", "FixedHosts", "HostDiscovery", "HostDiscoveryScript"]


DISCOVER_HOSTS_FREQUENCY_SECS = 1.0
# A script that takes longer, or prints more, is ended, and counts as failed.
_LONGEST_S = 30.0
_LONGEST_ANSWER = 1 << 20


class HostDiscovery:
    """A source of hosts. Derive from it and define find_available_hosts_and_slots()."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """{host: slots}, in the order in which hosts are preferred."""
        raise NotImplementedError


class FixedHosts(HostDiscovery):
    """Hosts that were given."""

    def __init__(self, available_hosts: dict[str, int]) -> None:
        self._available_hosts = dict(available_hosts)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return dict(self._available_hosts)

    def set(self, available_hosts: dict[str, int]) -> None:
        """Replace the hosts."""
        self._available_hosts = dict(available_hosts)


class HostDiscoveryScript(HostDiscovery):
    """The hosts that a command of the shell prints. `slots`: of a host in whose line no number stands."""

    def __init__(self, discovery_script: str, slots: int | None = None) -> None:
        self.script: str = discovery_script
        self.default_slots: int | None = slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Runs the script and waits for it. Raises RuntimeError if it fails, ValueError if its answer is not valid."""
        done = subprocess.run(["/bin/sh", "-c", self.script], stdin=subprocess.DEVNULL, capture_output=True)
        return self.parsed(done.returncode, done.stdout, done.stderr)

    def parsed(self, status: int, out: bytes, err: bytes) -> dict[str, int]:
        """The answer of the script. Raises as find_available_hosts_and_slots()."""
        if status != 0:
            last = err.decode(errors="replace").strip().rpartition("\n")[2]
            raise RuntimeError(
                f"the host discovery script {self.script!r} ended with status {status}: {last}"
            )
        where = f"the answer of the host discovery script {self.script!r}"
        return slots_by_host(
            parse_host_lines(out.decode("utf-8-sig", "replace").splitlines(), where, self.default_slots)
        )


class HostNames:
    """What is known of the names of hosts. `resolve(name)`: the name behind one that only the remote shell knows."""

    def __init__(self, resolve: Callable[[str], str]) -> None:
        self._resolve = resolve
        self._local: dict[str, bool] = {}
        self._sources: dict[str, str | None] = {}
        self.here: str | None = None  # the name of this machine among the hosts

    def are_known(self, hosts: dict[str, int]) -> bool:
        """Whether look_up() has succeeded for all of them."""
        return all(self._local.get(name) or self._sources.get(name) for name in hosts)

    def look_up(self, hosts: dict[str, int]) -> None:
        """Asks the resolver, which may wait. A name without an address is looked up again the next time."""
        for name in hosts:
            if name not in self._local or self._sources.get(name) is None:
                local = is_local(name)
                self._sources[name] = (
                    None if local else source_address(name) or source_address(self._resolve(name))
                )
                self._local[name] = local

    def merged(self, hosts: dict[str, int]) -> dict[str, int]:
        """The hosts with all names of this machine made one, which stays the same."""
        found, here = merge_hosts((HostInfo(*item) for item in hosts.items()), self._local.__getitem__)
        self.here = self.here or here
        names = {} if here is None else {here: self.here or here}
        return {names.get(host.hostname, host.hostname): host.slots for host in found if host.slots > 0}

    def source(self, name: str) -> str | None:
        """This machine's address on the way to a host; None if it is not known."""
        return self._sources.get(name)


class Discovery(Listener):
    """Asks for hosts again and again. The script runs under a supervisor, as ranks do, so that no process of it is left.

    Args:
        names: looks up the hosts' names; None where they are only shown.
        found: is called with each new answer.
        failed: is called with the reason of each failure that differs from the last one.
        limit_s: a script that takes longer is ended.
    """

    def __init__(
        self,
        source: HostDiscovery,
        loop: EventLoop,
        names: HostNames | None,
        found: Callable[[dict[str, int]], None],
        failed: Callable[[str], None],
        limit_s: float = _LONGEST_S,
    ) -> None:
        self._source, self._loop, self._names = source, loop, names
        self._found, self._failed = found, failed
        self._limit_s = limit_s
        self._script: LocalRanks | None = None
        self._until: float | None = None  # the script has not answered yet
        self._printed = (bytearray(), bytearray())
        self._waits = False
        self._open = True
        self._next = 0.0
        self._last_failure = ""

    def due(self) -> float | None:
        if self._script is not None:
            return min((t for t in (self._until, self._script.due()) if t is not None), default=None)
        return None if self._waits else self._next

    def advance(self, now: float) -> None:
        """Asks if it is time."""
        if self._script is not None:
            self._script.advance(now)
            if self._until is not None and now >= self._until:
                self._end_script(f"the host discovery script did not end within {self._limit_s:g} s")
            if self._script.over:
                self._script.close()
                self._script = None
        if self._waits or self._script is not None or now < self._next:
            return
        self._open = True
        self._next = now + DISCOVER_HOSTS_FREQUENCY_SECS
        if isinstance(self._source, HostDiscoveryScript):
            self._start_script(self._source.script, now)
        elif isinstance(self._source, FixedHosts):
            self._take(self._source.find_available_hosts_and_slots())
        else:
            self._waits = True
            self._loop.call_in_thread(self._ask, self._take)

    def _ask(self) -> dict[str, int] | str:
        try:
            return dict(self._source.find_available_hosts_and_slots())
        except Exception as error:
            return f"the host discovery failed ({type(error).__name__}: {error})"

    def _take(self, answer: dict[str, int] | str) -> None:
        """`answer`: the hosts, or why there are none."""
        self._waits = False
        if not self._open:
            return
        if isinstance(answer, str):
            if answer != self._last_failure:
                self._failed(answer)
            self._last_failure = answer
            return
        self._last_failure = ""
        if self._names is None or self._names.are_known(answer):
            self._give(answer)
        else:
            self._waits = True
            self._loop.call_in_thread(partial(self._names.look_up, answer), lambda _: self._give(answer))

    def _give(self, hosts: dict[str, int]) -> None:
        self._waits = False
        if self._open:
            self._found(hosts if self._names is None else self._names.merged(hosts))

    def _start_script(self, script: str, now: float) -> None:
        self._printed = (bytearray(), bytearray())
        self._until = now + self._limit_s
        self._script = LocalRanks([RankSpec(0, ["/bin/sh", "-c", script], {}, notes_calls=False)], os.environ)
        self._script.open(self._loop.selector, self)
        self._script.begin()

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self._printed[stream].extend(data)
        if self._until is not None and len(self._printed[stream]) > _LONGEST_ANSWER:
            self._end_script("the host discovery script printed more than a megabyte")

    def event(self, site: Site, event: Event) -> None:
        if self._until is None:
            return
        if event["event"] == "lost":
            self._end_script(event["text"])
        elif event["event"] == "exit":
            self._until = None
            assert isinstance(self._source, HostDiscoveryScript)
            try:
                answer: dict[str, int] | str = self._source.parsed(
                    shell_code(event["code"]), *map(bytes, self._printed)
                )
            except (RuntimeError, ValueError) as error:
                answer = str(error)
            self._take(answer)

    def _end_script(self, why: str) -> None:
        self._until = None
        if self._script is not None:
            self._script.request("kill")
        self._take(why)

    def close(self) -> None:
        """Stops asking; advance() begins again."""
        self._open = False
        self._until = None
        if self._script is not None:
            self._script.request("kill")
            self._script.close()
            self._script = None
