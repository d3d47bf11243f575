"""Hosts, slots and addresses: parses -H, hostfiles and what discovery scripts print, assigns ranks to slots, finds the
names of this machine and the addresses of the store. Asks the kernel and the resolver; sends no packet. Any thread.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_core._bootstrap.store import StoreServer

# "HOST", "HOST:SLOTS" or "HOST slots=SLOTS", and Open MPI's max_slots, which changes nothing here.
_HOST = re.compile(
    r"(?P<name>\[[0-9A-Fa-f:.]+\]|[\w.-]+|[0-9A-Fa-f:.]+(?=\s))"
    r"(:(?P<count>[0-9]+)|\s+slots\s*=\s*(?P<slots>[0-9]+)(\s+max[-_]slots\s*=\s*[0-9]+)?)?"
)
_HELP = (
    "An address of IPv6 is in brackets, as in [2001:db8::1]:2. A user name and a port of ssh do not belong here: "
    "write 'Host NAME' and below it 'User NAME' or 'Port N' into ~/.ssh/config; --ssh-port is the port of all hosts"
)


@dataclass(frozen=True)
class HostInfo:
    """A host and how many processes it may run."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(text: str) -> HostInfo:
        """ "name:slots", or "[address]:slots" for an address of IPv6. Raises ValueError for anything else."""
        host = parse_host(text)
        if host is None:
            raise ValueError(
                "Invalid host input, please make sure it has format as : worker-0:2,worker-1:2. "
                f"Found {text!r}. {_HELP}."
            )
        return host

    def __str__(self) -> str:
        name = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{name}:{self.slots}"


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


def parse_host(text: str, default_slots: int | None = None) -> HostInfo | None:
    """A host as all sources of hosts may name it: "HOST:N", "HOST slots=N", and "HOST" if there is a default; None for
    anything else."""
    found = _HOST.fullmatch(text)
    if found is None:
        return None
    name, slots = found["name"].strip("[]"), found["count"] or found["slots"] or default_slots
    if ":" in name:
        try:
            ipaddress.IPv6Address(name)
        except ValueError:
            return None
    return None if slots is None else HostInfo(name, int(slots))


def parse_hosts(text: str) -> list[HostInfo]:
    """ "h1:2,h2:4" as a list. Raises ValueError that names the wrong part."""
    return [HostInfo.from_string(part.strip()) for part in text.split(",")]


def parse_host_lines(lines: Iterable[str], where: str, default_slots: int | None) -> list[HostInfo]:
    """The hosts of lines with comments after '#'. `where`: what errors call their source. Raises ValueError with the
    line's number and text."""
    hosts = []
    alone = "'HOST'" if default_slots is not None else "'HOST' with --slots-per-host"
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        host = parse_host(text, default_slots)
        if host is None:
            raise ValueError(
                f"{where}, line {number}: expected 'HOST slots=N', 'HOST:N' or {alone}, found {line.strip()!r}. {_HELP}."
            )
        hosts.append(host)
    return hosts


def read_hostfile(path: str | os.PathLike[str]) -> list[HostInfo]:
    """The hosts of a file with lines "HOST slots=N", "HOST:N" or "HOST", which is one slot.

    Raises:
        ValueError: a line is not valid, or the file names no host.
        OSError: the file cannot be read.
    """
    try:
        with open(path, encoding="utf-8-sig") as lines:  # editors of Windows write a mark in front
            hosts = parse_host_lines(lines, str(path), 1)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text in UTF-8: {error}.") from None
    if not hosts:
        raise ValueError(f"{path} names no host; expected lines of the form 'HOST slots=N'.")
    return hosts


def parse_host_files(path: str | os.PathLike[str]) -> str:
    """The hosts of a hostfile as a -H string, for programs. Raises the exceptions of read_hostfile()."""
    return ",".join(map(str, read_hostfile(path)))


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
            peers = [other.slots > local_rank for other in used]
            place = (len(slots), local_rank, sum(peers[:index]), size, host.slots, sum(peers))
            slots.append(SlotInfo(host.hostname, *place))
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


def merge_hosts(
    hosts: Iterable[HostInfo], local: Callable[[str], bool] = is_local
) -> tuple[list[HostInfo], str | None]:
    """(the slots with each host only once, the name of this machine among them or None).

    Two names of this machine are one host: local ranks select devices, so a local rank must not occur twice. A host keeps
    the place of its first name. `local`: whether a name means this machine.
    """
    slots: dict[str, int] = {}
    here = None
    for host in hosts:
        name = host.hostname
        if name not in slots and local(name):
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


# ------------------------------------------------------------------------------------- the addresses of the store

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class StorePlace:
    """The addresses of the store of a job: the one it listens on, and the one that each host uses.

    The store listens on the interface that leads to the other hosts, on loopback if there are no other hosts, and on all
    interfaces only if different hosts are behind different ones.

    `listen`: the address to bind. `local`, `remote[host]`: the address to use on this machine and there."""

    listen: str
    local: str
    remote: dict[str, str] = field(default_factory=dict)


def source_address(host: str) -> str | None:
    """This machine's address on the route to `host`; None if the name or the route is unknown."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as sock:
            try:
                sock.connect(address)  # of a datagram socket: only looks the route up
                return str(sock.getsockname()[0])
            except OSError:
                continue
    return None


def store_place(
    hosts: Sequence[str],
    interfaces: Iterable[str] = (),
    resolve: Callable[[str], str] = lambda host: host,
    source: Callable[[str], str | None] | None = None,
) -> StorePlace:
    """The addresses of the store for a job with these other hosts.

    `interfaces`: names, networks or addresses that the user gave; those that this machine does not have are ignored.
    `resolve` may know names that the resolver does not. `source`: instead of source_address(). Raises ValueError if no
    address can be found.
    """
    if not hosts:
        return StorePlace(LOOPBACK, LOOPBACK)
    from hvd_core._base import sockets  # late: agents do not need it

    named = [address for name in interfaces if (address := sockets.named_address(name)) is not None]
    source = source or source_address
    sources = {host: source(host) or source(resolve(host)) for host in hosts}
    remote: dict[str, str] = {}
    for host, found in sources.items():
        if named:
            # If several are given, use the one that leads to the host.
            remote[host] = found if found is not None and found in named else named[0]
        else:
            remote[host] = found or _only_address(sources)
    used = sorted(set(remote.values()))
    if len(used) == 1:
        return StorePlace(used[0], used[0], remote)
    if any(":" in address for address in used):
        raise ValueError(
            f"The other hosts are behind several addresses of this machine ({', '.join(used)}), not all of IPv4. "
            "Name one interface that leads to all of them with --network-interfaces."
        )
    return StorePlace("0.0.0.0", used[0], remote)


def open_store(place: StorePlace, secret: bytes) -> tuple[StoreServer, dict[str, str], str]:
    """Starts the store of a job: (its server, its address by other host, its address here). Raises OSError."""
    # Imported late, because the parser, --version and wrong arguments need no engine.
    from hvd_core._base.sockets import join_address
    from hvd_core._bootstrap.store import StoreServer

    server = StoreServer(host=place.listen, secret=secret)
    port = int(server.address.rpartition(":")[2])
    remote = {host: join_address(address, port) for host, address in place.remote.items()}
    return server, remote, join_address(place.local, port)


def _only_address(sources: dict[str, str | None]) -> str:
    """This machine's address if it has only one, for hosts that only the remote shell can find. Raises ValueError."""
    from hvd_core._base import sockets

    present: dict[str, str] = {}
    for _, name in socket.if_nameindex():
        address = sockets.interface_address(name)
        if address is not None and not ipaddress.ip_address(address).is_loopback:
            present[name] = address
    if len(present) == 1:
        return next(iter(present.values()))
    unknown = [host for host, source in sources.items() if source is None]
    shown = ", ".join(f"{name} ({address})" for name, address in present.items()) or "none"
    raise ValueError(
        f"No address is known for {', '.join(unknown)}, so it is not clear under which of its own addresses the "
        "ranks there can reach this machine. Name the interface that leads to the hosts with "
        f"--network-interfaces; there are: {shown}."
    )
