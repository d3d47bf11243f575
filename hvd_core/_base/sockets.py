"""Sockets that send and receive exact counts before a deadline, owned descriptors, addresses, and their errors.

The functions block and may be called from any thread; two threads must not use one socket at the same time. Messages on
top of these bytes: messages.py; connections that authenticate: auth.py and listener.py.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import struct
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from hvd_core.errors import JobEndedError

_CREDENTIALS = struct.Struct("3i")


class BootstrapError(RuntimeError):
    """The processes of the job could not connect to each other. The message names the ranks and the reason."""


class BootstrapTimeout(BootstrapError, TimeoutError):
    """A peer did not connect or did not answer before the deadline."""


class AuthenticationError(BootstrapError):
    """The other side could not prove that it knows this job's secret."""


class StoreLost(BootstrapError):
    """The connection to the job's store has ended."""


class RankLost(BootstrapError, JobEndedError):
    """Another rank, or the process with the job's store, has ended while this rank was in init()."""


class Closable(Protocol):
    """A socket, a selector, a file."""

    def close(self) -> object: ...


Owned = TypeVar("Owned", bound="int | Closable")


class DescriptorSet:
    """Raw descriptors and closable objects (sockets, selectors) that are closed together, also in a forked child.

    Without that, a forked DataLoader worker would keep the job's sockets open, and the peers would not notice its
    parent's death. Every object that holds connections of the job owns one set. Any thread may call.
    """

    def __init__(self) -> None:
        # Single operations on a dict need no lock, which a forked child could find locked.
        self._items: dict[int, int | Closable] = {}
        _live.add(self)

    def own(self, item: Owned) -> Owned:
        """Takes over ``item`` (a descriptor or an object with close()) and returns it."""
        self._items[_key(item)] = item
        return item

    def disown(self, item: Owned) -> Owned:
        """Gives ``item`` back to the caller, who must close it; returns ``item``."""
        self._items.pop(_key(item), None)
        return item

    def discard(self, item: int | Closable) -> None:
        """Closes one item now."""
        self.disown(item)
        _close(item)

    def close(self) -> None:
        """Closes all items; calling it again does nothing."""
        items, self._items = self._items, {}
        for item in items.values():
            _close(item)


_live: weakref.WeakSet[DescriptorSet] = weakref.WeakSet()


def _key(item: int | Closable) -> int:
    return item if isinstance(item, int) else -id(item)


def _close(item: int | Closable) -> None:
    # An error for one item (its peer is gone, or it is closed already) must not keep the others open.
    with contextlib.suppress(OSError):
        if isinstance(item, int):
            os.close(item)
        else:
            item.close()


def _close_in_child() -> None:
    # close() never shuts a connection down, so the parent's copies keep working.
    for owner in list(_live):
        owner.close()


os.register_at_fork(after_in_child=_close_in_child)


class Deadline:
    """A point on the monotonic clock. ``seconds`` is the time from now, ``since`` the clock's now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = float(seconds)
        self.since = time.monotonic()
        self._end = self.since + self.seconds

    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        return time.monotonic() >= self._end


def recv_exact(sock: socket.socket, count: int, deadline: Deadline) -> bytes:
    """Reads exactly ``count`` bytes. Raises BootstrapTimeout, and ConnectionError if the peer closes first."""
    data = bytearray()
    while len(data) < count:
        _set_timeout(sock, deadline)
        try:
            chunk = sock.recv(count - len(data))
        except (TimeoutError, BlockingIOError):
            continue
        if not chunk:
            raise ConnectionError(f"the peer closed the connection after {len(data)} of {count} bytes")
        data += chunk
    return bytes(data)


def send_exact(sock: socket.socket, data: bytes, deadline: Deadline) -> None:
    """Sends all of ``data``. Raises the errors of recv_exact()."""
    view = memoryview(data)
    while view:
        _set_timeout(sock, deadline)
        try:
            view = view[sock.send(view) :]
        except (TimeoutError, BlockingIOError):
            continue


def _set_timeout(sock: socket.socket, deadline: Deadline) -> None:
    left = deadline.left()
    if left <= 0:
        raise BootstrapTimeout(f"no answer from the peer within {deadline.seconds:g} s")
    sock.settimeout(left)


def connect_tcp(
    address: str, deadline: Deadline, between: Callable[[], object] | None = None
) -> socket.socket:
    """A connected TCP socket without Nagle's delay.

    A refused connection is tried again until the deadline: the listener may be starting. ``between``: called before
    each further attempt; it may raise. Raises BootstrapTimeout, BootstrapError if no attempt can succeed as the interface
    lo is down, and OSError if this process has no descriptor left.
    """
    host, port = split_address(address)
    last: OSError | None = None
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=max(0.001, deadline.left()))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # the peer is not to blame, and time does not help
            if error.errno in (errno.ENETUNREACH, errno.EADDRNOTAVAIL) and host in ("::1", "127.0.0.1"):
                raise BootstrapError(
                    f"could not connect to {address}: the network interface lo is down on this host ({error.strerror}). "
                    "Turn it on: ip link set lo up"
                ) from error
            last = error
        if deadline.left() <= 0.05:
            raise BootstrapTimeout(
                f"could not connect to {address} within {deadline.seconds:g} s: {last}. "
                "Check that the process there is alive and that no firewall is between."
            )
        if between is not None:
            between()
        time.sleep(0.05)


def split_address(address: str) -> tuple[str, int]:
    """('host', port) of 'tcp://host:port' or 'tcp://[v6]:port'. Raises ValueError for other text.

    >>> split_address("tcp://[::1]:29500")
    ('::1', 29500)
    """
    scheme, _, rest = str(address).partition("://")
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if scheme != "tcp" or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"bad store address {address!r}: expected 'tcp://host:port'")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The inverse of split_address()."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process at the other end of a Unix socket, at the time of its connect() or listen().

    pid is 0 if it runs in a pid namespace that is not visible here.
    """
    pid, uid, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid


# ------------------------------------------------------------------------------------------ addresses of this host
# These functions ask the kernel and the resolver, and send no packet.


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
