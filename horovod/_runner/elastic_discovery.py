"""Which hosts an elastic job may use now, and how many slots each has.

A discovery script prints lines as those of a hostfile: "host:slots", "host slots=N" or "host". It runs once a second
in a process of elastic_script_runner.py, and may fail or hang: the driver continues with the last good answer. A source
of another kind is called in a thread. Used on the thread of the driver, which never waits here. The resolver and
`ssh -G` may take many seconds, so `HostNames` looks each name up in a thread, and a host is used when its name is known.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from horovod._runner.event_loop import EventLoop
from horovod._runner.hosts import is_local, parse_host_lines, slots_by_host, source_address

__all__ = ["DISCOVER_HOSTS_FREQUENCY_SECS", "FixedHosts", "HostDiscovery", "HostDiscoveryScript"]


DISCOVER_HOSTS_FREQUENCY_SECS = 1.0
# A script that takes longer is ended, and counts as failed.
_LONGEST_S = 30.0
# The runner of the script gets this time to end it.
_END_S = 5.0
_RUNNER = Path(__file__).with_name("elastic_script_runner.py")


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
        if done.returncode != 0:
            raise RuntimeError(_failed(self.script, done.returncode, done.stderr.decode(errors="replace")))
        return self.parsed(done.stdout.decode(errors="replace"))

    def parsed(self, answer: str) -> dict[str, int]:
        """The answer of the script. Raises ValueError that names the line which is not valid."""
        where = f"the answer of the host discovery script {self.script!r}"
        lines = answer.removeprefix("\ufeff").splitlines()
        return slots_by_host(parse_host_lines(lines, where, self.default_slots))


def _failed(script: str, status: int, said: str) -> str:
    text = said.strip().splitlines()
    return f"the host discovery script {script!r} ended with status {status}" + (
        f": {text[-1]}" if text else ""
    )


class Discovery:
    """Asks for hosts again and again. `found` is called with each new answer, `failed` with the reason of each failure
    that differs from the last one. A script is ended after `limit_s` seconds, and counts as failed."""

    def __init__(
        self,
        source: HostDiscovery,
        loop: EventLoop,
        found: Callable[[dict[str, int]], None],
        failed: Callable[[str], None],
        limit_s: float = _LONGEST_S,
    ) -> None:
        self._source, self._loop, self._selector = source, loop, loop.selector
        self._found, self._failed = found, failed
        self._limit_s = limit_s
        self._runner: subprocess.Popen[bytes] | None = None  # elastic_script_runner.py
        self._answer = b""
        self._asked = False
        self._open = True
        self._next = 0.0
        self._last_failure = ""

    def due(self) -> float | None:
        """When advance() should be called at the latest (time.monotonic()); None: when the answer has come."""
        return None if self._asked else self._next

    def advance(self, now: float) -> None:
        """Asks if it is time."""
        if self._asked or now < self._next:
            return
        self._open = True
        self._next = now + DISCOVER_HOSTS_FREQUENCY_SECS
        if isinstance(self._source, FixedHosts):
            self._found(self._source.find_available_hosts_and_slots())
            return
        self._asked = True
        if isinstance(self._source, HostDiscoveryScript):
            self._ask_script(self._source)
        elif not self._loop.call_in_thread(self._ask, lambda answer: self._take(*answer)):
            self._take(None, "the host discovery cannot be asked: no thread can be started")

    def _ask(self) -> tuple[dict[str, int] | None, str]:
        """In a thread: a source of the user may take its time."""
        try:
            return dict(self._source.find_available_hosts_and_slots()), ""
        except Exception as error:
            return None, f"the host discovery failed ({type(error).__name__}: {error})"

    def _take(self, hosts: dict[str, int] | None, why: str) -> None:
        self._asked = False
        if not self._open:
            return
        if hosts is None:
            if why != self._last_failure:
                self._last_failure = why
                self._failed(why)
            return
        self._last_failure = ""
        self._found(hosts)

    def _ask_script(self, source: HostDiscoveryScript) -> None:
        try:
            runner = self._runner or self._start_runner(source)
            assert runner.stdin is not None
            runner.stdin.write(b"?")
        except OSError as error:
            self._end_runner()
            self._take(None, f"the host discovery script cannot be started: {error.strerror}")

    def _start_runner(self, source: HostDiscoveryScript) -> subprocess.Popen[bytes]:
        python = sys.executable or "python3"
        words = [python, "-I", "-S", str(_RUNNER), str(os.getpid()), str(self._limit_s), source.script]
        self._answer = b""
        runner = self._runner = subprocess.Popen(
            words, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert runner.stdout is not None
        os.set_blocking(runner.stdout.fileno(), False)
        self._selector.register(runner.stdout, selectors.EVENT_READ, lambda: self._read(source))
        return runner

    def _read(self, source: HostDiscoveryScript) -> None:
        if self._runner is None or self._runner.stdout is None:
            return None
        data = self._runner.stdout.read(1 << 16)
        if data is None:
            return None
        if not data:
            self._end_runner()
            return self._take(None, "the process that runs the host discovery script has ended")
        self._answer += data
        if not self._answer.endswith(b"\n"):
            return None
        said, self._answer = json.loads(self._answer), b""
        if "problem" in said:
            return self._take(None, said["problem"])
        if said["status"] != 0:
            return self._take(None, _failed(source.script, said["status"], said["err"]))
        try:
            hosts = source.parsed(said["out"])
        except ValueError as error:
            return self._take(None, str(error))
        return self._take(hosts, "")

    def _end_runner(self) -> None:
        """Ends the script and its runner, which sees the end of its standard input."""
        runner, self._runner = self._runner, None
        if runner is None or runner.stdin is None or runner.stdout is None:
            return
        with contextlib.suppress(KeyError):
            self._selector.unregister(runner.stdout)
        runner.stdin.close()
        runner.stdout.close()
        try:
            runner.wait(_END_S)
        except subprocess.TimeoutExpired:
            runner.kill()
            runner.wait()

    def close(self) -> None:
        """Stops asking; advance() begins again."""
        self._open = False
        if self._runner is not None:
            self._end_runner()
            self._asked = False


# ----------------------------------------------------------------------------------------------- names of hosts


# A name without an address is looked up again after this time.
_AGAIN_S = 30.0
# The user is notified of a lookup that takes longer.
_SLOW_S = 5.0


class HostNames:
    """`resolve(name)`: the name behind one that only the remote shell knows; it may wait."""

    def __init__(self, resolve: Callable[[str], str]) -> None:
        self._resolve = resolve
        self._loop: EventLoop
        self._changed: Callable[[], None] = lambda: None
        self._note: Callable[[str], None] = lambda text: None
        self._facts: dict[str, tuple[bool, str | None]] = {}  # (this machine, our address on the way there)
        self._asked: dict[str, float] = {}  # when a name was looked up last
        self._notified: set[str] = set()
        self.here: str | None = None  # the name of this machine among the hosts

    def begin(self, loop: EventLoop, changed: Callable[[], None], note: Callable[[str], None]) -> None:
        """`changed` is called when more is known."""
        self._loop, self._changed, self._note = loop, changed, note

    def merged(self, hosts: dict[str, int]) -> dict[str, int]:
        """The hosts whose names are known, with all names of this machine made one."""
        found: dict[str, int] = {}
        for name, slots in hosts.items():
            if not self._is_known(name):
                continue
            if self._facts[name][0]:
                name = self.here = self.here or name
            found[name] = found.get(name, 0) + slots
        return {name: slots for name, slots in found.items() if slots > 0}

    def preferred(self, hosts: dict[str, int]) -> dict[str, int]:
        """As merged(), without the hosts behind one whose name is being looked up for the first time, if that does not
        take long: a host that stands first is used first."""
        now = time.monotonic()
        names = list(hosts)
        for place, name in enumerate(names):
            if name not in self._facts and now - self._asked.get(name, now) <= _SLOW_S:
                names = names[:place]
                break
        return self.merged({name: hosts[name] for name in names})

    def source(self, name: str) -> str | None:
        """This machine's address on the way to a host; None if it is not known."""
        return self._facts.get(name, (False, None))[1]

    def _is_known(self, name: str) -> bool:
        now = time.monotonic()
        if name in ("localhost", socket.gethostname()):
            self._facts[name] = (True, None)
        facts = self._facts.get(name)
        asked = self._asked.get(name)
        if facts is None and asked is not None and now - asked > _SLOW_S and name not in self._notified:
            self._notified.add(name)
            self._note(f"host {name} is not used yet: the look-up of its name takes more than {_SLOW_S:g} s")
        stale = facts == (False, None) and asked is not None and now - asked > _AGAIN_S
        if (facts is None and asked is None) or stale:
            begun = self._loop.call_in_thread(
                lambda: self._look_up(name), lambda facts: self._learn(name, facts)
            )
            if begun:
                self._asked[name] = now
        return facts is not None

    def _look_up(self, name: str) -> tuple[bool, str | None]:
        try:
            if is_local(name):
                return True, None
            return False, source_address(name) or source_address(self._resolve(name))
        except Exception:  # the resolver of the system may be anything
            return False, None

    def _learn(self, name: str, facts: tuple[bool, str | None]) -> None:
        changed = self._facts.get(name) != facts
        self._facts[name] = facts
        if changed:
            self._changed()
