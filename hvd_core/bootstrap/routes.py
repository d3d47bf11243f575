"""The address of this host that leads to the other hosts of a job."""

import socket

from .socket_io import BootstrapError


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
