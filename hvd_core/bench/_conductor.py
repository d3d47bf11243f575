"""The conductor's side: starts an alternative's ranks, lets one alternative at a time measure, ends them all.

Used by `hvd bench` and by the scripts of benchmarks/, from one thread. Ranks connect to a Unix socket (serving.py). The
launcher of an alternative, if it needs one (mpirun, horovodrun), is a command prefix here. Shared mappings are
memfds of the conductor, opened through /proc by the ranks, so that nothing named is left behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from hvd_core._base.sandbox import kill_group

# ---- turns on a machine that others use too ---------------------------------------------------------------------------

LIMIT = 0.1  # of all cores; more than this used by others is a disturbance
WINDOW_S = 0.15


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process, living or not: its scheduler clock (see clock_getcpuclockid)."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def busy_ns() -> float:
    """CPU time of everything on the machine so far, in steps of a clock tick per core."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * 1e9 / os.sysconf("SC_CLK_TCK")


_T = TypeVar("_T")


class Quiet:
    """Waits for a quiet moment, and repeats a turn that was disturbed, by the same rule for every alternative. Without
    patience (the default) nothing is waited for or repeated.

    `patience_s`: for how long one turn may be put off or repeated."""

    def __init__(self, patience_s: float = 0) -> None:
        self.patience_s = patience_s
        self.cores = os.cpu_count() or 1
        self.repeated = 0  # turns thrown away
        self.disturbed = 0  # turns that count although others were busy, since patience had ended

    def turn(self, pids: Iterable[int], take: Callable[[], _T]) -> _T:
        """The result of `take()`, in which the processes `pids` work, from a quiet moment if there is one."""
        if not self.patience_s:
            return take()
        deadline = time.monotonic() + self.patience_s
        pids = list(pids)
        while True:
            while self._others((), lambda: time.sleep(WINDOW_S))[0] > LIMIT and time.monotonic() < deadline:
                pass
            used, result = self._others(pids, take)
            if used <= LIMIT:
                return result
            if time.monotonic() >= deadline:
                self.disturbed += 1
                return result
            self.repeated += 1

    def _others(self, pids: Iterable[int], action: Callable[[], _T]) -> tuple[float, _T]:
        """Share of all cores that others used while `action` ran, less two clock ticks of doubt; its result."""
        mine = [os.getpid(), *pids]
        busy, own, begin = busy_ns(), sum(map(cpu_ns, mine)), time.monotonic_ns()
        result = action()
        took = time.monotonic_ns() - begin
        doubt = 2e9 / os.sysconf("SC_CLK_TCK")
        others = busy_ns() - busy - (sum(map(cpu_ns, mine)) - own) - doubt
        return others / (took * self.cores), result


BARRIER_BYTES = 4096
START_TIMEOUT_S = 90.0


class Unavailable(Exception):
    """An alternative cannot run here; the message says why, and the benchmark continues without it."""


@dataclass
class Spec:
    """How to start one alternative."""

    name: str
    title: str
    command: list[str]  # of a rank
    prefix: list[str] | None = None  # a launcher that starts all ranks; None: each is started here
    env: dict[str, str] = field(default_factory=dict)
    shared_bytes: int = BARRIER_BYTES  # of the memory that the ranks share
    variants: list[dict[str, Any]] = field(
        default_factory=lambda: [{}]
    )  # settings to choose from by measuring


class Team:
    """The running ranks of one alternative."""

    def __init__(self, spec: Spec, size: int, scratch: Path) -> None:
        self.spec, self.size = spec, size
        self.scratch = scratch / spec.name
        self.scratch.mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connections: dict[int, Connection] = {}
        self.pids: dict[int, int] = {}
        self.memfd = os.memfd_create("hvd-benchmark", os.MFD_CLOEXEC)
        os.ftruncate(self.memfd, spec.shared_bytes)
        self.log = open(self.scratch / "log", "w+b")  # noqa: SIM115 (closed by end)
        try:
            self._start()
        except BaseException:
            self.end()
            raise

    def _start(self) -> None:
        env = os.environ | self.spec.env | {
            "HVD_BENCH_SOCKET": "socket",
            "HVD_BENCH_SCRATCH": str(self.scratch),
            "HVD_BENCH_SHARED": f"/proc/{os.getpid()}/fd/{self.memfd}",
            "HVD_BENCH_SIZE": str(self.size),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        with socket.socket(socket.AF_UNIX) as listener:
            # A folder's path may be longer than a socket's name can be; the ranks are in the folder.
            folder = os.open(self.scratch, os.O_PATH | os.O_DIRECTORY)
            try:
                listener.bind(f"/proc/self/fd/{folder}/socket")
            finally:
                os.close(folder)
            listener.listen(self.size)
            listener.settimeout(0.2)
            own = [{"HVD_BENCH_RANK": str(rank)} for rank in range(self.size)]
            for mine in own if self.spec.prefix is None else [{}]:
                self.processes.append(
                    subprocess.Popen(
                        [*(self.spec.prefix or []), *self.spec.command],
                        env=env | mine,
                        stdin=subprocess.DEVNULL,
                        stdout=self.log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        cwd=self.scratch,
                    )
                )
            deadline = time.monotonic() + START_TIMEOUT_S
            while len(self.connections) < self.size:
                try:
                    accepted, _ = listener.accept()
                except TimeoutError:
                    self._check_start(deadline)
                    continue
                connection = Connection(accepted.detach())
                hello = connection.recv()
                self.connections[hello["rank"]] = connection
                self.pids[hello["rank"]] = hello["pid"]

    def _check_start(self, deadline: float) -> None:
        """Raises Unavailable if the ranks that are missing will not connect."""
        dead = [p.returncode for p in self.processes if p.poll() is not None]
        if dead or time.monotonic() > deadline:
            why = f"ended with code {dead[0]}" if dead else f"did not connect within {START_TIMEOUT_S:.0f} s"
            raise Unavailable(f"{self.spec.name}: ranks {why}. Their output:\n{self.tail()}")

    def tail(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-2000:].strip() or "(none)"

    def ask(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        """Every rank's answer to the command, in rank order. Raises Unavailable when one fails."""
        answers: dict[int, dict[str, Any]] = {}
        waiting = {connection: rank for rank, connection in self.connections.items()}
        deadline = time.monotonic() + 120
        try:
            for connection in waiting:
                connection.send(command)
            while waiting:
                ready = wait(list(waiting), deadline - time.monotonic())
                if not ready:
                    raise TimeoutError("the deadline has passed")
                for one in ready:
                    assert isinstance(one, Connection)
                    answer, rank = one.recv(), waiting.pop(one)
                    answers[rank] = answer
                    if "error" in answer:  # the others may wait for this rank indefinitely
                        raise Unavailable(f"{self.spec.name}, rank {rank}, {command}:\n{answer['error']}")
        except (OSError, EOFError) as error:
            raise Unavailable(
                f"{self.spec.name}: no answer from ranks {sorted(waiting.values())} to {command}: "
                f"{error or 'the process has ended'}. Output:\n{self.tail()}"
            ) from error
        return [answers[rank] for rank in range(self.size)]

    def seconds(self, command: dict[str, Any]) -> list[float]:
        """Time of each run: from when the last rank called to when the last one had its result."""
        answers = self.ask(command)
        starts, ends = ([max(run) for run in zip(*(a[key] for a in answers))] for key in ("start", "end"))
        return [(end - start) / 1e9 for start, end in zip(starts, ends)]

    def end(self) -> None:
        """Ask the ranks to end, and kill them after a while."""
        for connection in self.connections.values():
            with suppress(OSError):
                connection.send({"do": "quit"})
        deadline = time.monotonic() + 10
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                kill_group(process.pid)
                process.wait()
                for pid in self.pids.values():  # a launcher may have given the ranks groups of their own
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        for connection in self.connections.values():
            connection.close()
        self.log.close()
        os.close(self.memfd)


class Fleet:
    """All alternatives of one run. A context manager: leaving it ends every process it started."""

    def __init__(self, size: int, patience_s: float = 0) -> None:
        self.size = size
        self.quiet = Quiet(patience_s)
        self.scratch = Path(tempfile.mkdtemp(prefix="hvd-benchmark-"))
        self.teams: dict[str, Team] = {}
        self.failed: dict[str, str] = {}

    def __enter__(self: _T) -> _T:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave in order, with all ranks
        return self

    def __exit__(self, *_: object) -> None:
        for team in self.teams.values():
            team.end()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def start(self, name: str, make_spec: Callable[[], Spec]) -> None:
        """Start the alternative `make_spec()` describes; note why where that is impossible."""
        try:
            self.teams[name] = Team(make_spec(), self.size, self.scratch)
        except (Unavailable, OSError, EOFError) as error:  # a rank may end right after it has connected
            self.drop(name, str(error))

    def drop(self, name: str, why: str) -> None:
        print(f"without {name}: {why}", file=sys.stderr)
        self.failed[name] = why
        team = self.teams.pop(name, None)
        if team:
            team.end()

    def turn(self, name: str, command: dict[str, Any]) -> float:
        """Median seconds of the command's runs, from a quiet moment. Raises Unavailable."""
        team = self.teams[name]
        return self.quiet.turn(team.pids.values(), lambda: statistics.median(team.seconds(command)))
