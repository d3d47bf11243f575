"""The store of each world of an elastic job, and the places of its members. On the thread of the driver.

Each world has a store and a secret of its own: nothing of a dead world is left for the next one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Protocol

from horovod._runner.elastic_membership import Worker
from horovod._runner.ended_ranks import EndedRanks
from horovod._runner.env import rank_environment, store_environment
from horovod._runner.hosts import HostInfo, get_host_assignments


class StoreMaker(Protocol):
    """Starts the store of a world on these hosts."""

    def __call__(self, hosts: Sequence[str], secret: bytes) -> tuple[object, Mapping[str, str], str]:
        """(the server, its address by host, its address here)"""


class Places:
    """`open_store`: see StoreMaker."""

    def __init__(self, open_store: StoreMaker) -> None:
        self._open_store = open_store
        self._server = None
        self._ends: EndedRanks | None = None
        self._addresses: Mapping[str, str] = {}  # of the store of the last world, by host
        self._secret = b""

    def open(self, members: Sequence[Worker]) -> None:
        """Opens the store of a world in place of that of the last one. Raises OSError, ValueError; then the last one is
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

    def tell_end(self, rank: int, code: int, host: str | None) -> None:
        """Tells the ranks that wait in init() that one has ended."""
        if self._ends is not None:
            self._ends.tell(rank, code, host)

    def close(self) -> None:
        if self._ends is not None:
            self._ends.close()
            self._ends = None
        if self._server is not None:
            self._server.close()
            self._server = None
