"""Hosts and slots: parses -H and hostfiles, assigns ranks to slots, finds the names of this machine.

Pure functions, for the launcher; any thread.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

_ITEM = re.compile(r"[\w.-]+:[0-9]+")


@dataclass(frozen=True)
class HostInfo:
    """A host and how many processes it may run."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(text: str) -> HostInfo:
        """ "name:slots". Raises ValueError for anything else."""
        if _ITEM.fullmatch(text) is None:
            raise ValueError(
                "Invalid host input, please make sure it has format as : worker-0:2,worker-1:2. "
                f"The part {text!r} has not."
            )
        name, _, slots = text.rpartition(":")
        return HostInfo(name, int(slots))


@dataclass(frozen=True)
class SlotInfo:
    """One rank's place in the job."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """rank, size, local rank, local size, cross rank, cross size, comma separated."""
        values = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size)
        return ",".join(map(str, values))


def parse_hosts(text: str) -> list[HostInfo]:
    """ "h1:2,h2:4" as a list. Raises ValueError that names the wrong part."""
    return [HostInfo.from_string(part.strip()) for part in text.split(",")]


def parse_host_files(path: str | os.PathLike) -> str:
    """A hostfile (lines "HOST slots=N", comments after '#') as a -H string. Raises ValueError, OSError."""
    hosts = []
    with open(path) as lines:
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].replace("=", " = ").split()
            if not words:
                continue
            if len(words) == 1:
                slots = "1"
            elif len(words) >= 4 and words[1:3] == ["slots", "="] and words[3].isdecimal():
                slots = words[3]
            else:
                raise ValueError(f"{path}, line {number}: expected 'HOST slots=N', found {line.strip()!r}.")
            hosts.append(f"{words[0]}:{slots}")
    if not hosts:
        raise ValueError(f"{path} names no host; expected lines of the form 'HOST slots=N'.")
    return ",".join(hosts)


def get_host_assignments(
    hosts: Iterable[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Assigns ranks to slots, host after host, and returns one SlotInfo per rank.

    At least `min_num_proc` ranks, at most `max_num_proc` (default: as many as `min_num_proc`). Raises
    ValueError if there are fewer slots.
    """
    hosts = list(hosts)
    available = sum(host.slots for host in hosts)
    if available < min_num_proc:
        raise ValueError(
            f"Requested more processes ({min_num_proc}) than there are available slots ({available})"
        )
    size = min(available, min_num_proc if max_num_proc is None else max_num_proc)
    used, left = [], size
    for host in hosts:
        count = min(host.slots, left)
        left -= count
        if count:
            used.append(HostInfo(host.hostname, count))
    slots: list[SlotInfo] = []
    for index, host in enumerate(used):
        for local_rank in range(host.slots):
            # Only hosts that have this local rank count in the cross communicator.
            slots.append(
                SlotInfo(
                    hostname=host.hostname,
                    rank=len(slots),
                    local_rank=local_rank,
                    cross_rank=sum(other.slots > local_rank for other in used[:index]),
                    size=size,
                    local_size=host.slots,
                    cross_size=sum(other.slots > local_rank for other in used),
                )
            )
    return slots


def is_local(name: str) -> bool:
    """Whether the host name means this machine. Names that cannot be resolved do not: ssh may know them."""
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)  # only an address of this machine can be bound to
                return True
            except OSError:
                continue
    return False


def slots_by_host(hosts: Iterable[HostInfo]) -> dict[str, int]:
    """The slots of each host. Those of a host that is listed several times add up."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.hostname] = slots.get(host.hostname, 0) + host.slots
    return slots


def merge_hosts(hosts: Iterable[HostInfo]) -> tuple[list[HostInfo], str | None]:
    """(the slots with each host only once, the name of this machine among them or None).

    Two names of this machine are one host: local ranks select devices, so a local rank must not occur twice. A host keeps
    the place of its first name.
    """
    slots: dict[str, int] = {}
    here = None
    for host in hosts:
        name = host.hostname
        if name not in slots and is_local(name):
            here = name = here or name
        slots[name] = slots.get(name, 0) + host.slots
    return [HostInfo(name, count) for name, count in slots.items()], here


def check_interfaces(names: Iterable[str]) -> None:
    """Raises ValueError unless each name is a network interface of this machine."""
    present = [name for _, name in socket.if_nameindex()]
    for name in names:
        if name not in present:
            raise ValueError(
                f"There is no network interface {name!r} on this machine; there are {', '.join(present)}."
            )
