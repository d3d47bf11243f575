"""The addresses of this host: the one that leads to the other hosts of a job, and those of its interfaces.

Asks the kernel and the resolver; sends no packet. Any thread.
"""

import fcntl
import ipaddress
import os
import socket
import struct

from hvd_core._base.sockets import BootstrapError

_SIOCGIFADDR = 0x8915


def address_towards(names):
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
                return sock.getsockname()[0]
        except OSError as error:
            raise BootstrapError(
                f"rank 0 cannot reach host {name!r}, which takes part in the job: {error}. Make its name "
                "resolvable here, or start with horovodrun."
            ) from error
    return "127.0.0.1"


def named_address(text):
    """This machine's address for the name of an interface, a network (10.0.0.0/8) or an address.

    None if this machine has no such address."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return interface_address(text)
    present = [interface_address(name) for _, name in socket.if_nameindex()]
    return next((one for one in present if one is not None and ipaddress.ip_address(one) in network), None)


def interface_address(name):
    """The address of an interface of this machine: IPv4, else a global one of IPv6, else None."""
    request = struct.pack("256s", os.fsencode(name)[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            return socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24])
        except OSError:
            pass
    try:
        with open("/proc/net/if_inet6") as lines:
            for words in map(str.split, lines):
                address = ipaddress.IPv6Address(bytes.fromhex(words[0]))
                if words[5] == name and not address.is_link_local:
                    return str(address)
    except OSError:
        pass
    return None
