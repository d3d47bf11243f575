"""Makes the links of the tree: shared memory and eventfds within a host, TCP between hosts.

Called on the thread that runs init(). All descriptors belong to the DescriptorSet of the caller; the engine borrows them.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvd_core._base.auth import ServerHandshake, client_handshake
from hvd_core._base.listener import AuthenticatedListener, ListenerThread, listen
from hvd_core._base.sockets import (
    AuthenticationError,
    BootstrapError,
    Deadline,
    DescriptorSet,
    connect_tcp,
    join_address,
    peer_credentials,
)
from hvd_core._bootstrap import limits
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
class ShmLink:
    """A link within the host.

    ``subtree``: the world ranks reached through a child, () for the parent. ``slot``: index of the child's
    part of the segment (its local rank, from 1), the same at both ends. ``my_eventfds`` are this process's two
    eventfds, the same in all its links; ``peer_eventfds`` wake the peer. ``guard_fd``: a non-blocking Unix
    stream socket to the peer that carries no data. ``peer_pid`` is 0 if the peer's pid namespace is not visible here.
    """

    peer: int
    subtree: tuple[int, ...]
    slot: int
    segment_fd: int
    segment_bytes: int
    my_eventfds: tuple[int, ...]
    peer_eventfds: tuple[int, ...]
    guard_fd: int
    peer_pid: int
    is_parent: bool


@dataclass(frozen=True)
class TcpLink:
    """A link between hosts. ``sock_fd`` is authenticated, non-blocking, without Nagle's delay. ``key``: the connection's.
    ``encrypted``: whether the engine encrypts its frames.

    ``subtree``: the world ranks reached through a child, () for the parent.
    """

    peer: int
    subtree: tuple[int, ...]
    sock_fd: int
    key: bytes
    is_parent: bool
    encrypted: bool = False


Link = ShmLink | TcpLink


def segment_bytes(local_size: int) -> int:
    """Bytes of a host's control segment: a header and one slot per local rank."""
    return HEADER_BYTES + SLOT_BYTES * local_size


def make_links(
    session: Session,
    topology: Topology,
    neighbours: Neighbours,
    transport: str,
    descriptors: DescriptorSet,
) -> tuple[list[Link], int | None]:
    """(links, segment_fd or None): the parent's link first, then the children's by rank.

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
        segment = None
        if topology.parent is not None and topology.parent not in local:
            links.append(_tcp_parent(session, topology, descriptors))
        if len(local) > 1:
            shm_links, segment = _wire_host(session, topology, sockets, descriptors)
            links += shm_links
        for child, subtree in sorted(tcp_children.items()):
            assert listener is not None
            links.append(_tcp_child(session, topology, listener, child, subtree, descriptors))
    finally:
        if listener is not None:
            listener.close()
    return links, segment


class RankListener:
    """Accepts each rank of ``ranks`` once, and refuses all other connections, on a thread of its own.

    Takes over ``listener``. A connection counts when its peer has proved that it knows ``secret`` for ``purpose`` and has
    sent ``epoch``; ``allow(sock)`` may refuse it before. wait_for() may be called from any thread. Raises OSError or
    RuntimeError if this process can have no further descriptor or thread.
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
        self._changed = threading.Condition()
        self._descriptors = DescriptorSet()
        self._failure: OSError | None = None
        accepting = AuthenticatedListener(
            listener,
            secret,
            purpose,
            on_authenticated=self._accept,
            on_refused=lambda reason: _log.info("refused a connection: %s", reason),
            on_pause=lambda error: _log.warning("could not accept a connection: %s; trying again", error),
            on_failure=self._fail,
            allow=allow,
            check=self._check,
        )
        self._thread = ListenerThread(accepting, "hvd-accept")

    def wait_for(self, rank: int, seconds: float) -> tuple[socket.socket, bytes] | None:
        """(the socket of ``rank``, the connection's key), or None if it did not connect in time. The caller owns the
        socket then. Raises OSError if the system does not let this process accept connections."""
        deadline = Deadline(seconds)
        with self._changed:
            while rank not in self._accepted and self._failure is None and not deadline.passed():
                self._changed.wait(deadline.left())
            if rank not in self._accepted:
                if self._failure is not None:
                    raise self._failure
                return None
            sock, key = self._accepted.pop(rank)
        return self._descriptors.disown(sock), key

    def close(self) -> None:
        """Stops accepting, and closes the sockets that wait_for() has not returned."""
        self._thread.close()
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
        with self._changed:
            self._accepted[handshake.rank] = sock, handshake.key
            self._changed.notify_all()

    def _fail(self, error: OSError) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()


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


def _tcp_parent(session: Session, topology: Topology, descriptors: DescriptorSet) -> TcpLink:
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
    encrypted = _is_encrypted(session, topology, parent)
    return TcpLink(parent, (), _prepare_tcp(sock, session.silence_s), key, True, encrypted)


def _is_encrypted(session: Session, topology: Topology, peer: int) -> bool:
    return encryption.wanted() and topology.hosts[peer] != topology.hosts[session.rank]


def _tcp_child(
    session: Session,
    topology: Topology,
    listener: RankListener,
    child: int,
    subtree: tuple[int, ...],
    descriptors: DescriptorSet,
) -> TcpLink:
    sock, key = session.in_slices(
        lambda seconds: listener.wait_for(child, seconds), f"rank {child} did not connect"
    )
    encrypted = _is_encrypted(session, topology, child)
    fd = _prepare_tcp(descriptors.own(sock), session.silence_s)
    return TcpLink(child, subtree, fd, key, False, encrypted)


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


def _wire_host(
    session: Session,
    topology: Topology,
    sockets: dict[int, socket.socket],
    descriptors: DescriptorSet,
) -> tuple[list[ShmLink], int]:
    eventfds = tuple(descriptors.own(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)) for _ in range(2))
    if topology.leader != session.rank:
        return _join_host(session, topology, sockets[topology.leader], eventfds, descriptors)
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
        links.append(_shm_link(child, (child,), slot, segment, size, eventfds, fds, sockets[child], False))
    return links, segment


def _join_host(
    session: Session,
    topology: Topology,
    sock: socket.socket,
    eventfds: tuple[int, ...],
    descriptors: DescriptorSet,
) -> tuple[list[ShmLink], int]:
    leader = topology.leader
    data, fds = _receive_fds(session, sock, _OFFER.size, 3, leader, descriptors)
    magic, slot, local_size, size = _OFFER.unpack(data)
    expected = (_OFFER_MAGIC, topology.local_rank, topology.local_size, segment_bytes(topology.local_size))
    if (magic, slot, local_size, size) != expected or os.fstat(fds[0]).st_size != size:
        raise BootstrapError(
            f"rank {leader} offered slot {slot} of a segment of {size} bytes for {local_size} ranks, "
            "expected slot "
            f"{topology.local_rank} of {expected[3]} bytes for {topology.local_size}: do all ranks run the "
            "same version?"
        )
    socket.send_fds(sock, [_EVENTFDS], list(eventfds))
    return [_shm_link(leader, (), slot, fds[0], size, eventfds, fds[1:], sock, True)], fds[0]


def _shm_link(
    peer: int,
    subtree: tuple[int, ...],
    slot: int,
    segment: int,
    size: int,
    eventfds: tuple[int, ...],
    peer_eventfds: Sequence[int],
    sock: socket.socket,
    is_parent: bool,
) -> ShmLink:
    sock.setblocking(False)
    pid, _ = peer_credentials(sock)
    return ShmLink(
        peer, subtree, slot, segment, size, eventfds, tuple(peer_eventfds), sock.fileno(), pid, is_parent
    )


def _receive_fds(
    session: Session,
    sock: socket.socket,
    count: int,
    fd_count: int,
    peer: int,
    descriptors: DescriptorSet,
) -> tuple[bytes, list[int]]:
    def attempt(seconds: float) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any] | None:
        # The descriptors come with the first byte. The peer sends all in one message, far below the buffer's size.
        sock.settimeout(max(0.001, seconds))
        try:
            # Not socket.recv_fds: it drops the flags, and the descriptors would survive an exec.
            return sock.recvmsg(count, socket.CMSG_LEN(_MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC)
        except (TimeoutError, BlockingIOError):
            return None

    data, ancillary, flags, _ = session.in_slices(attempt, f"rank {peer} did not send its descriptors")
    fds: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
    for fd in fds:
        descriptors.own(fd)
    if flags & socket.MSG_CTRUNC:
        raise limits.too_few_descriptors()
    if not data:
        raise ConnectionResetError(f"rank {peer} on this host has closed the connection")
    if len(data) != count or len(fds) != fd_count or flags & socket.MSG_TRUNC:
        raise BootstrapError(
            f"rank {peer} on this host sent {len(data)} bytes and {len(fds)} descriptors, expected {count} "
            f"and {fd_count}"
        )
    return data, fds
