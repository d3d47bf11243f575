"""Taking turns on a machine that others use too: wait for a quiet moment, repeat a turn that was disturbed.

The same rule meets every alternative. Without patience (the default) nothing is waited for or repeated. Called by
the conductor between turns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

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


class Quiet:
    """`patience_s`: for how long one turn may be put off or repeated."""

    def __init__(self, patience_s: float = 0) -> None:
        self.patience_s = patience_s
        self.cores = os.cpu_count() or 1
        self.repeated = 0  # turns thrown away
        self.disturbed = 0  # turns that count although others were busy, since patience had ended

    def turn(self, pids: Iterable[int], take: Callable[[], float]) -> float:
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

    def _others(self, pids, action) -> tuple[float, object]:
        """Share of all cores that others used while `action` ran, less two clock ticks of doubt; its result."""
        mine = [os.getpid(), *pids]
        busy, own, begin = busy_ns(), sum(map(cpu_ns, mine)), time.monotonic_ns()
        result = action()
        took = time.monotonic_ns() - begin
        doubt = 2e9 / os.sysconf("SC_CLK_TCK")
        others = busy_ns() - busy - (sum(map(cpu_ns, mine)) - own) - doubt
        return others / (took * self.cores), result
