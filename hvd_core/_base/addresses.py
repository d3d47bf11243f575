"""The addresses of this host: the one that leads to the other hosts of a job, and those of its interfaces.

Asks the kernel and the resolver; sends no packet. Any thread.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from hvd_core._base.sockets import BootstrapError


def address_towards(names: Iterable[str]) -> str:
    """The address of the interface that leads to the other hosts; loopback if there are no other hosts."""
    own = socket.gethostname()
    for name in names:
        if name == own:
            continue
        try:
            family, kind, protocol, _, target = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
            # Connecting a datagram socket sends no packet; it only looks up the route.
            with socket.socket(family, kind, protocol) as sock:
                sock.connect(target)
                return str(sock.getsockname()[0])
        except OSError as error:
            raise BootstrapError(
                f"rank 0 cannot reach host {name!r}, which takes part in the job: {error}. Make its name "
                "resolvable here, or start with horovodrun."
            ) from error
    return "127.0.0.1"


def named_address(text: str) -> str | None:
    """This machine's address for the name of an interface, a network (10.0.0.0/8) or an address.

    None if this machine has no such address."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return interface_address(text)
    present = [interface_address(name) for _, name in socket.if_nameindex()]
    return next((one for one in present if one is not None and ipaddress.ip_address(one) in network), None)


def interface_address(name: str) -> str | None:
    """The address of an interface of this machine: IPv4, else a global one of IPv6, else None."""
    import psutil  # late: importing it takes longer than the rest of a start

    found = psutil.net_if_addrs().get(name, ())
    for entry in found:
        if entry.family == socket.AF_INET:
            return str(entry.address)
    for entry in found:
        address = str(entry.address).partition("%")[0]
        if entry.family == socket.AF_INET6 and not ipaddress.IPv6Address(address).is_link_local:
            return address
    return None
