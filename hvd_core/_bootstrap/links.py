"""Makes the links of the tree: shared memory and eventfds within a host, TCP between hosts.

Called on the thread that runs init(). All descriptors belong to the DescriptorSet of the caller; the engine borrows them.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvd_core._base.auth import ServerHandshake, client_handshake
from hvd_core._base.listener import AuthenticatedListener, listen
from hvd_core._base.sockets import (
    AuthenticationError,
    BootstrapError,
    Deadline,
    DescriptorSet,
    connect_tcp,
    join_address,
    peer_credentials,
)
from hvd_core._bootstrap.store import encryption

if TYPE_CHECKING:
    from hvd_core._bootstrap.hosts import Neighbours, Topology
    from hvd_core._bootstrap.store.session import Session

_log = logging.getLogger("horovod")

PURPOSE = b"link"
HEADER_BYTES = 64 << 10
SLOT_BYTES = 1 << 20
_OFFER = struct.Struct("<8sIIQ")
_OFFER_MAGIC = b"hvdshm01"
_EVENTFDS = b"hvdbells"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# The kernel's limit, in seconds.
_LONGEST_KEEPALIVE = 32767
# The most descriptors in one message: segment and two eventfds.
_MAX_FDS = 3


@dataclass(frozen=True)
class Link:
    """A link of the control plane: over TCP if ``sock_fd`` >= 0, else within the host. The engine reads the fields.

    Attributes:
        peer: the rank at the other end.
        subtree: the world ranks reached through a child, () for the parent.
        sock_fd: of a TCP link, authenticated, non-blocking, without Nagle's delay.
        key, encrypted: of a TCP link: the connection's key, and whether the engine encrypts its frames.
        slot: within the host: index of the child's part of the segment (its local rank, from 1), the same at both ends.
        peer_bells: within the host: the eventfds that wake the peer.
        guard_fd: within the host: a non-blocking Unix stream socket to the peer that carries no data.
        peer_pid: within the host; 0 if the peer's pid namespace is not visible here.
    """

    peer: int
    is_parent: bool
    subtree: tuple[int, ...]
    sock_fd: int = -1
    key: bytes = b""
    encrypted: bool = False
    slot: int = 0
    peer_bells: tuple[int, ...] = ()
    guard_fd: int = -1
    peer_pid: int = 0


def segment_bytes(local_size: int) -> int:
    """Bytes of a host's control segment: a header and one slot per local rank."""
    return HEADER_BYTES + SLOT_BYTES * local_size


def make_links(
    session: Session,
    topology: Topology,
    neighbours: Neighbours,
    transport: str,
    descriptors: DescriptorSet,
) -> tuple[list[Link], int, tuple[int, int]]:
    """(links, segment_fd, this process's two eventfds): the parent's link first, then the children's by rank. The
    descriptors are -1 without links within the host.

    With ``transport`` 'tcp', links within the host use TCP too. Raises BootstrapTimeout that names the missing peer.
    """
    sockets = neighbours.sockets
    tcp_children = dict(topology.leader_children)
    local: tuple[int, ...] = topology.local_ranks if transport != "tcp" else ()
    if transport == "tcp":
        tcp_children.update({rank: (rank,) for rank in topology.local_children})
        for sock in sockets.values():
            descriptors.discard(sock)
    # Listen for the children before connecting to the parent, because the parent may wait for this port.
    listener = _listen(session, tcp_children) if tcp_children else None
    try:
        links: list[Link] = []
        segment, eventfds = -1, (-1, -1)
        if topology.parent is not None and topology.parent not in local:
            links.append(_tcp_parent(session, topology, descriptors))
        if len(local) > 1:
            first, second = (
                descriptors.own(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)) for _ in range(2)
            )
            eventfds = (first, second)
            wire = _lead_host if topology.leader == session.rank else _join_host
            shm_links, segment = wire(session, topology, sockets, eventfds, descriptors)
            links += shm_links
        for child, subtree in sorted(tcp_children.items()):
            assert listener is not None
            sock, key = session.accept(listener, child, f"rank {child} did not connect")
            fd = _prepare_tcp(descriptors.own(sock), session.silence_s)
            links.append(Link(child, False, subtree, fd, key, _is_encrypted(session, topology, child)))
    finally:
        if listener is not None:
            listener.close()
    return links, segment, eventfds


class RankListener:
    """Accepts each rank of ``ranks`` once, and refuses all other connections, while wait_for() runs.

    Takes over ``listener``. A connection counts when its peer has proved that it knows ``secret`` for ``purpose`` and has
    sent ``epoch``; ``allow(sock)`` may refuse it before.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        purpose: bytes,
        epoch: int,
        ranks: Iterable[int],
        allow: Callable[[socket.socket], bool] | None = None,
    ) -> None:
        self._epoch, self._ranks = epoch, frozenset(ranks)
        self._accepted: dict[int, tuple[socket.socket, bytes]] = {}
        self._taken: set[int] = set()
        self._descriptors = DescriptorSet()
        self._selector = self._descriptors.own(selectors.EpollSelector())
        self._listener = AuthenticatedListener(
            listener,
            secret,
            purpose,
            on_authenticated=self._accept,
            on_refused=lambda reason: _log.info("refused a connection: %s", reason),
            allow=allow,
            check=self._check,
        )
        self._listener.register(self._selector)

    def wait_for(self, rank: int, seconds: float) -> tuple[socket.socket, bytes] | None:
        """(the socket of ``rank``, the connection's key), or None if it did not connect in time. The caller owns the
        socket then. Raises OSError if this process can have no further descriptor."""
        deadline = Deadline(seconds)
        while rank not in self._accepted:
            waits = [deadline.left()] + [max(0.0, due - time.monotonic()) for due in self._listener.due()]
            for key, _ in self._selector.select(min(waits)):
                key.data()
            self._listener.advance(time.monotonic())
            if rank not in self._accepted and deadline.passed():
                return None
        sock, connection_key = self._accepted.pop(rank)
        return self._descriptors.disown(sock), connection_key

    def close(self) -> None:
        """Stops accepting, and closes the sockets that wait_for() has not returned."""
        self._listener.close()
        self._descriptors.close()

    def _check(self, handshake: ServerHandshake) -> None:
        rank = handshake.rank
        if handshake.rest or handshake.epoch != self._epoch or rank not in self._ranks:
            raise AuthenticationError(f"rank {rank} of init {handshake.epoch} is not expected here")
        if rank in self._taken:
            raise AuthenticationError(f"rank {rank} is connected already")

    def _accept(self, sock: socket.socket, handshake: ServerHandshake) -> None:
        self._descriptors.own(sock)
        self._taken.add(handshake.rank)  # not before the rank could be answered
        self._accepted[handshake.rank] = sock, handshake.key


def _listen(session: Session, children: Collection[int]) -> RankListener:
    # Listens only on the interface that leads to the store, so that the port is unreachable from other networks.
    host = session.store.local_host()
    sock = listen(host, backlog=len(children) + 64)
    listener = RankListener(sock, session.secret, PURPOSE, session.epoch, children)
    try:
        session.put(f"link/{session.rank}", join_address(*sock.getsockname()[:2]))
    except BaseException:
        listener.close()
        raise
    return listener


def _tcp_parent(session: Session, topology: Topology, descriptors: DescriptorSet) -> Link:
    parent = topology.parent
    assert parent is not None
    address = session.wait(
        f"link/{parent}", lambda: f"rank {parent}, the parent in the tree, did not open its port"
    )
    sock = descriptors.own(connect_tcp(address, session.deadline, between=session.check))
    try:
        key = client_handshake(sock, session.secret, PURPOSE, session.rank, session.epoch, session.deadline)
    except (OSError, BootstrapError) as error:
        raise BootstrapError(
            f"rank {parent} at {address} did not take the connection of rank {session.rank}: {error}"
        ) from error
    fd = _prepare_tcp(sock, session.silence_s)
    return Link(parent, True, (), fd, key, _is_encrypted(session, topology, parent))


def _is_encrypted(session: Session, topology: Topology, peer: int) -> bool:
    return encryption.wanted() and topology.hosts[peer] != topology.hosts[session.rank]


def _prepare_tcp(sock: socket.socket, silence_s: float) -> int:
    """Configures the socket to fail ``silence_s`` seconds after the last packet of the other host."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    pause = max(1, round(silence_s / 6))
    sock.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, min(_LONGEST_KEEPALIVE, max(1, round(silence_s / 3)))
    )
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, min(_LONGEST_KEEPALIVE, pause))
    # Limits the wait for answers to probes and for acknowledgements. The kernel checks it when the next probe is due, so
    # one pause between probes is subtracted.
    limit_ms = max(500, int(silence_s * 1000) - pause * 1000)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(limit_ms, 2**31 - 1))
    sock.setblocking(False)
    return sock.fileno()


def _lead_host(
    session: Session,
    topology: Topology,
    sockets: dict[int, socket.socket],
    eventfds: tuple[int, int],
    descriptors: DescriptorSet,
) -> tuple[list[Link], int]:
    size = segment_bytes(topology.local_size)
    segment = descriptors.own(os.memfd_create("hvd-control", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    os.ftruncate(segment, size)
    # Sealed, because shrinking the file would send SIGBUS to every rank that has mapped it.
    fcntl.fcntl(segment, fcntl.F_ADD_SEALS, _SEALS)
    for slot, child in enumerate(topology.local_ranks[1:], 1):
        offer = _OFFER.pack(_OFFER_MAGIC, slot, topology.local_size, size)
        # A peer may still be reading the table of hosts, so that there is no room for the message yet.
        sockets[child].settimeout(max(0.001, session.deadline.left()))
        socket.send_fds(sockets[child], [offer], [segment, *eventfds])
    links = []
    for slot, child in enumerate(topology.local_ranks[1:], 1):
        _, fds = _receive_fds(session, sockets[child], len(_EVENTFDS), 2, child, descriptors)
        links.append(_shm_link(child, (child,), slot, fds, sockets[child]))
    return links, segment


def _join_host(
    session: Session,
    topology: Topology,
    sockets: dict[int, socket.socket],
    eventfds: tuple[int, int],
    descriptors: DescriptorSet,
) -> tuple[list[Link], int]:
    leader = topology.leader
    sock = sockets[leader]
    data, fds = _receive_fds(session, sock, _OFFER.size, 3, leader, descriptors)
    magic, slot, local_size, size = _OFFER.unpack(data)
    expected = (_OFFER_MAGIC, topology.local_rank, topology.local_size, segment_bytes(topology.local_size))
    if (magic, slot, local_size, size) != expected or os.fstat(fds[0]).st_size != size:
        raise BootstrapError(
            f"rank {leader} offered slot {slot} of a segment of {size} bytes for {local_size} ranks, expected slot "
            f"{topology.local_rank} of {expected[3]} bytes for {topology.local_size}: do all ranks run the same version?"
        )
    socket.send_fds(sock, [_EVENTFDS], list(eventfds))
    return [_shm_link(leader, (), slot, fds[1:], sock)], fds[0]


def _shm_link(
    peer: int, subtree: tuple[int, ...], slot: int, peer_bells: list[int], sock: socket.socket
) -> Link:
    sock.setblocking(False)
    pid, _ = peer_credentials(sock)
    bells = tuple(peer_bells)
    return Link(peer, not subtree, subtree, slot=slot, peer_bells=bells, guard_fd=sock.fileno(), peer_pid=pid)


def _receive_fds(
    session: Session,
    sock: socket.socket,
    count: int,
    fd_count: int,
    peer: int,
    descriptors: DescriptorSet,
) -> tuple[bytes, list[int]]:
    sock.settimeout(max(0.001, session.deadline.left()))
    try:
        # Not socket.recv_fds: it drops the flags, and the descriptors would survive an exec. The descriptors come with
        # the first byte. The peer sends all in one message, far below the buffer's size.
        data, ancillary, flags, _ = sock.recvmsg(
            count, socket.CMSG_LEN(_MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC
        )
    except TimeoutError:
        raise session.timed_out(f"rank {peer} did not send its descriptors") from None
    fds: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
    for fd in fds:
        descriptors.own(fd)
    if flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    if not data:
        raise ConnectionResetError(f"rank {peer} on this host has closed the connection")
    if len(data) != count or len(fds) != fd_count or flags & socket.MSG_TRUNC:
        raise BootstrapError(
            f"rank {peer} on this host sent {len(data)} bytes and {len(fds)} descriptors, expected {count} "
            f"and {fd_count}"
        )
    return data, fds
