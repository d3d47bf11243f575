"""Sets of descriptors with an owner, so that a forked child can close its copies.

Otherwise a forked DataLoader worker would keep the job's sockets open, and the peers would not notice its parent's death.
Every object of the bootstrap that holds sockets owns one DescriptorSet. Any thread may call; the fork hook runs in the
child's only thread.
"""

import contextlib
import errno
import os
import socket
import time
import weakref

from hvd_core.errors import JobEndedError

_live = weakref.WeakSet()


class DescriptorSet:
    """Raw descriptors and closable objects (sockets, selectors) that are closed together."""

    def __init__(self):
        self._items = []
        _live.add(self)

    def own(self, item):
        """Takes over ``item`` (an int descriptor or an object with close()) and returns it."""
        self._items.append(item)
        return item

    def disown(self, item):
        """Gives ``item`` back to the caller, who must close it; returns ``item``."""
        self._items = [other for other in self._items if other is not item]
        return item

    def discard(self, item):
        """Closes one item now."""
        self.disown(item)
        _close(item)

    def close(self):
        """Closes all items; calling it again does nothing."""
        items, self._items = self._items, []
        for item in items:
            _close(item)


def _close(item):
    # An error for one item (its peer is gone, or it is closed already) must not keep the others open.
    with contextlib.suppress(OSError):
        if isinstance(item, int):
            os.close(item)
        else:
            item.close()


def _close_in_child():
    # close() never shuts a connection down, so the parent's copies keep working.
    for owner in list(_live):
        owner.close()


os.register_at_fork(after_in_child=_close_in_child)


# Deadlines, sockets that send and receive exact counts, store addresses, and the errors of the bootstrap modules.
#
# This module knows no protocol. All functions block and may be called from any thread; another thread must not use the
# same
# socket at the same time.


class BootstrapError(RuntimeError):
    """The processes of the job could not connect to each other. The text names the ranks and the reason."""


class BootstrapTimeout(BootstrapError, TimeoutError):
    """A peer did not connect or did not answer before the deadline."""


class AuthenticationError(BootstrapError):
    """The other side could not prove that it knows this job's secret."""


class StoreLost(BootstrapError):
    """The connection to the job's store has ended."""


class RankLost(BootstrapError, JobEndedError):
    """Another rank, or the process with the job's store, has ended while this rank was in init()."""


class Deadline:
    """A point on the monotonic clock. ``seconds`` is the time from now, ``since`` the clock's now."""

    def __init__(self, seconds):
        self.seconds = float(seconds)
        self.since = time.monotonic()
        self._end = self.since + self.seconds

    def left(self):
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def passed(self):
        return time.monotonic() >= self._end


def recv_exact(sock, count, deadline):
    """Reads exactly ``count`` bytes.

    Raises ConnectionError if the peer closes first, BootstrapTimeout if the deadline passes.
    """
    data = bytearray()
    while len(data) < count:
        _arm(sock, deadline)
        try:
            chunk = sock.recv(count - len(data))
        except (TimeoutError, BlockingIOError):
            continue
        if not chunk:
            raise ConnectionError(f"the peer closed the connection after {len(data)} of {count} bytes")
        data += chunk
    return bytes(data)


def send_exact(sock, data, deadline):
    """Sends all of ``data``. Raises the errors of recv_exact."""
    view = memoryview(data)
    while view:
        _arm(sock, deadline)
        try:
            view = view[sock.send(view) :]
        except (TimeoutError, BlockingIOError):
            continue


def _arm(sock, deadline):
    left = deadline.left()
    if left <= 0:
        raise BootstrapTimeout(f"no answer from the peer within {deadline.seconds:g} s")
    sock.settimeout(left)


def connect_tcp(address, deadline, between=None):
    """A connected TCP socket without Nagle's delay. ``address`` is 'tcp://host:port'.

    A refused connection is tried again until the deadline: the listener may be starting. ``between()`` is called before
    each further attempt, and may raise.
    """
    host, port = split_address(address)
    last = None
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=max(0.001, deadline.left()))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # the peer is not to blame, and time does not help
            if error.errno in (errno.ENETUNREACH, errno.EADDRNOTAVAIL) and (
                host == "::1" or host.startswith("127.")
            ):
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


def split_address(address):
    """('host', port) of 'tcp://host:port' or 'tcp://[v6]:port'. Raises ValueError for other texts."""
    scheme, _, rest = str(address).partition("://")
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if scheme != "tcp" or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"bad store address {address!r}: expected 'tcp://host:port'")
    return host, int(port)


def join_address(host, port):
    """The inverse of split_address."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
