"""The addresses of the store: the one it listens on, and the one that each host uses.

The store listens on the interface that leads to the other hosts, on loopback if there are no other hosts, and on all
interfaces only if different hosts are behind different ones. Asks the kernel and the resolver; sends no packet. For the
launcher; any thread.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hvd_core._bootstrap.routes import interface_address, named_address

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class StorePlace:
    """`listen`: the address to bind. `local`, `remote[host]`: the address to use on this machine and there."""

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
                return sock.getsockname()[0]
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
    `resolve` may know names that the resolver does not. `source`: in place of source_address(). Raises ValueError if no
    address can be found.
    """
    if not hosts:
        return StorePlace(LOOPBACK, LOOPBACK)
    named = [address for name in interfaces if (address := named_address(name)) is not None]
    source = source or source_address
    sources = {host: source(host) or source(resolve(host)) for host in hosts}
    if named:
        # If several are given, use the one that leads to the host.
        remote = {host: source if source in named else named[0] for host, source in sources.items()}
    else:
        guess = None if all(sources.values()) else _only_address(sources)
        remote = {host: source or guess for host, source in sources.items()}
    used = sorted(set(remote.values()))
    if len(used) == 1:
        return StorePlace(used[0], used[0], remote)
    if any(":" in address for address in used):
        raise ValueError(
            f"The other hosts are behind several addresses of this machine ({', '.join(used)}), not all of IPv4. "
            "Name one interface that leads to all of them with --network-interfaces."
        )
    return StorePlace("0.0.0.0", used[0], remote)


def _only_address(sources: dict[str, str | None]) -> str:
    """This machine's address if it has only one, for hosts that only the remote shell can find. Raises ValueError."""
    present = {}
    for _, name in socket.if_nameindex():
        address = interface_address(name)
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
