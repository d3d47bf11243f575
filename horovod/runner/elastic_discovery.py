"""Which hosts an elastic job may use now, and how many slots each has.

A discovery script prints a line "host:slots" or "host" for each host. It runs in a child process, once a second, and may
fail or hang: the driver goes on with the last good answer. Used on the thread of the driver, which never waits here.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable

from horovod.runner.hosts import HostInfo

__all__ = ["DISCOVER_HOSTS_FREQUENCY_SECS", "FixedHosts", "HostDiscovery", "HostDiscoveryScript"]

DISCOVER_HOSTS_FREQUENCY_SECS = 1.0
# A script that takes longer is ended, and counts as failed.
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
        self.script, self.default_slots = discovery_script, slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Runs the script and waits for it. Raises RuntimeError if it fails, ValueError if its answer is not valid."""
        done = subprocess.run(["/bin/sh", "-c", self.script], stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode != 0:
            raise RuntimeError(_failed(self.script, done.returncode, done.stderr))
        return self.parsed(done.stdout)

    def parsed(self, answer: bytes) -> dict[str, int]:
        """The answer of the script. Raises ValueError that names the line which is not valid."""
        found: dict[str, int] = {}
        for line in answer.decode(errors="replace").splitlines():
            text = line.strip()
            if not text:
                continue
            if ":" not in text:
                if self.default_slots is None:
                    raise ValueError(
                        f"the host discovery script {self.script!r} printed {text!r} without a number of slots. Let it "
                        f"print {text}:N, or give --slots-per-host."
                    )
                text = f"{text}:{self.default_slots}"
            host = HostInfo.from_string(text)
            found[host.hostname] = host.slots
        return found


def _failed(script: str, status: int, said: bytes) -> str:
    text = said.decode(errors="replace").strip().splitlines()
    return f"the host discovery script {script!r} ended with status {status}" + (
        f": {text[-1]}" if text else ""
    )


class Discovery:
    """Asks for hosts again and again. `found` is called with each new answer, `failed` with the reason of each failure
    that differs from the last one."""

    def __init__(
        self,
        source: HostDiscovery,
        selector: selectors.BaseSelector,
        found: Callable[[dict[str, int]], None],
        failed: Callable[[str], None],
    ) -> None:
        self._source, self._selector = source, selector
        self._found, self._failed = found, failed
        self._process: subprocess.Popen | None = None
        self._end = -1  # a descriptor that can be read when the script has ended
        self._answer, self._errors = bytearray(), bytearray()
        self._began = 0.0
        self._next = 0.0
        self._last_failure = ""

    def due(self) -> float:
        """When advance() should be called at the latest (time.monotonic())."""
        return self._next if self._process is None else self._began + _LONGEST_S

    def advance(self, now: float) -> None:
        """Asks if it is time, and ends a script that takes too long."""
        if self._process is not None:
            if now >= self._began + _LONGEST_S:
                self._end_script()
                self._report(f"the host discovery script did not end within {_LONGEST_S:g} s")
        elif now >= self._next:
            self._next = now + DISCOVER_HOSTS_FREQUENCY_SECS
            if isinstance(self._source, HostDiscoveryScript):
                self._start(self._source, now)
            else:
                self._found(self._source.find_available_hosts_and_slots())

    def _start(self, source: HostDiscoveryScript, now: float) -> None:
        self._began = now
        self._answer.clear()
        self._errors.clear()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", source.script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._end = os.pidfd_open(self._process.pid)
        except OSError as error:
            if self._process is not None:
                self._end_script()
            return self._report(f"the host discovery script cannot be started: {error.strerror}")
        self._selector.register(self._end, selectors.EVENT_READ, self._finish)
        for stream, place in ((self._process.stdout, self._answer), (self._process.stderr, self._errors)):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(
                stream, selectors.EVENT_READ, lambda stream=stream, place=place: self._read(stream, place)
            )

    def _read(self, stream, place: bytearray) -> None:
        data = None if stream.closed else stream.read(1 << 16)
        if data is None:
            return
        place += data
        if len(place) > _LONGEST_ANSWER:
            self._end_script()
            return self._report("the host discovery script printed more than a megabyte")
        if data:
            return
        self._selector.unregister(stream)
        stream.close()

    def _finish(self) -> None:
        """The script has ended. Its pipes are read once more; a process that it leaves behind may hold them open."""
        source, process = self._source, self._process
        if process is None:
            return
        status = process.wait()
        for stream, place in ((process.stdout, self._answer), (process.stderr, self._errors)):
            while not stream.closed and self._process is process:
                size = len(place)
                self._read(stream, place)
                if len(place) == size:
                    break
        if self._process is not process:
            return  # it has printed too much
        self._end_script()
        if status != 0:
            return self._report(_failed(source.script, status, bytes(self._errors)))
        try:
            hosts = source.parsed(bytes(self._answer))
        except ValueError as error:
            return self._report(str(error))
        self._last_failure = ""
        self._found(hosts)

    def _report(self, why: str) -> None:
        if why != self._last_failure:
            self._last_failure = why
            self._failed(why)

    def _end_script(self) -> None:
        process, self._process = self._process, None
        if self._end >= 0:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._end)
            os.close(self._end)
            self._end = -1
        for stream in (process.stdout, process.stderr):
            if not stream.closed:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(stream)
                stream.close()
        if process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except OSError:
                pass
            process.wait()
        self._next = max(self._next, time.monotonic())

    def close(self) -> None:
        if self._process is not None:
            self._end_script()
