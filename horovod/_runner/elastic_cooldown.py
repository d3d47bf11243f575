"""When a host may be used again after a process has failed on it. Pure; the caller gives the time (time.monotonic())."""

from __future__ import annotations

import random

# Of the only host of a job, if the user gave no range: it is used again, or the job could not go on.
_ONLY_HOST_S = (1.0, 60.0)
# Failures that are older do not count.
_FORGOTTEN_S = 600.0


class Cooldown:
    """`limits`: the shortest and the longest pause in seconds; None: a host that failed is not used again, unless it is
    the only one. The pause doubles with each failure of the host."""

    def __init__(self, limits: tuple[float, float] | None) -> None:
        self._limits = limits
        self._failures: dict[str, list[float]] = {}
        self._usable: dict[str, float] = {}
        self._announced: dict[str, float] = {}

    def announced(self, host: str, until: float) -> None:
        """A process of a host has been told to end, so the host may be about to go: it gets no new one until then."""
        self._announced[host] = until

    def failed(self, host: str, now: float) -> None:
        """A process has failed on a host."""
        recent = [moment for moment in self._failures.get(host, ()) if now - moment < _FORGOTTEN_S]
        low, high = self._limits or _ONLY_HOST_S
        pause = low * 2.0 ** len(recent) + random.random() * low
        self._failures[host] = [*recent, now]
        self._usable[host] = now + min(max(pause, low), high)

    def usable_at(self, host: str, is_only_one: bool) -> float | None:
        """When a process may be started on a host; None: never."""
        announced = self._announced.get(host, 0.0)
        if host not in self._usable:
            return announced
        if self._limits is None and not is_only_one:
            return None
        return max(announced, self._usable[host])
