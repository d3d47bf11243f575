"""The key-value store through which the processes of a job find each other.

StoreServer runs one thread inside the launcher or rank 0, in native code (engine/rendezvous): while a process holds the
GIL, its store continues to answer the other ranks. StoreClient blocks its caller. Both may be used from any thread.
Nothing is parsed before the handshake of auth.py (purpose b'store').

After the handshake, little endian, one answer per request, in order:

    request    u32 n (bytes that follow) | u8 op | u16 key length | key | payload
        1 SET  payload = the value                         answer: empty
        2 GET  payload = i64 timeout in ms; waits until the key is there (0: not at all, < 0: indefinitely)
                                                           answer: the value
        3 ADD  payload = i64 delta; the value is kept as decimal text, absent counts as 0
                                                           answer: i64, the sum
        4 DEL  payload empty; no error if absent           answer: empty
        5 WILL payload = a value, which the store sets under the key when this connection ends, unless the key is there
           then; the next WILL replaces it, one with an empty key takes it back
                                                           answer: empty
        6 ANY  payload = up to 7 more keys, each u16 length | key; waits indefinitely until one of the keys is there; the
           next request of this connection ends the wait (timeout)
                                                           answer: u8 (which key, from 0) | its value
        7 GATHER payload = u32 size of the group | members | text (label) | text (common) | the part's own bytes; adds the
           part of these members. When all members are there, as many as member 0 says, the store sets the key to the
           gathered value of the parts without a label, and key:label to that of each label. If the part has bytes of its
           own, they are at key/m immediately, m its first member
                                                           answer: u8 (0: one of the members has a part already)
        8 ABSENT payload = u32 size of the group           answer: the members (u32 each) that have no part yet
        9 CLEAR payload empty; deletes all keys that begin with the key
                                                           answer: empty
    answer     u32 n (bytes that follow) | u8 status (0 ok, 1 timeout, 2 error) | payload (2: UTF-8 text)

    text             u32 n | n bytes
    members          u32 n | n x u32
    gathered value   u32 n | n x (u32 runs | runs x (u32 first member, u32 how many) | text (common)): the different
                     common bytes, and the members that brought them; then for each part with bytes of its own, in the
                     order of their first members: members | text (own)

Keys have at most 1024 bytes, requests at most 16 MiB; a client that breaks a limit is cut off. On an encrypted connection
the n bytes are ciphertext, and the cipher's tag, which n does not count, follows (16 bytes; engine/rendezvous/seal.h).
"""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hvd_core._base.auth import HANDSHAKE_SECONDS, NO_RANK, check_secret, client_handshake
from hvd_core._base.listener import listen
from hvd_core._base.native import load
from hvd_core._base.sockets import (
    BootstrapError,
    BootstrapTimeout,
    Deadline,
    DescriptorSet,
    StoreLost,
    connect_tcp,
    join_address,
    recv_exact,
    send_exact,
)
from hvd_core._bootstrap.store import encryption

PURPOSE = b"store"
SET, GET, ADD, DEL, WILL, ANY, GATHER, ABSENT, CLEAR = 1, 2, 3, 4, 5, 6, 7, 8, 9
OK, TIMEOUT, ERROR = 0, 1, 2
MAX_KEY_BYTES = 1024
MAX_REQUEST_BYTES = 16 << 20


class StoreServer:
    """Serves the store at ``address`` ('tcp://host:port') until close(). A forked child has no server.

    ``host``: the address of the job's interface. Raises OSError if it cannot be bound, ValueError for a secret that is
    too short, ImportError if the native module cannot be loaded.
    """

    def __init__(self, host: str = "127.0.0.1", secret: bytes = b"", port: int = 0) -> None:
        secret = check_secret(secret)
        core = load()
        with listen(host, port, backlog=4096) as listener:
            listener.setblocking(False)
            self.address = join_address(*listener.getsockname()[:2])
            self._server = core.StoreServer(listener.detach(), secret, HANDSHAKE_SECONDS)

    def clients(self) -> int:
        """The number of connections whose peer has proved the secret."""
        return int(self._server.clients())

    def close(self) -> None:
        """Ends the thread and closes every connection; calling it again does nothing."""
        self._server.close()

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# The codec of gathered values, which the members of a group put together in the store: the bytes of one member's part,
# and the whole value. The store joins the parts (engine/rendezvous/gather.h).

_WORD = struct.Struct("<I")


@dataclass(frozen=True)
class Gathered:
    """``commons``: the different common bytes, each with the members that brought them (ascending), in the order of the
    first of them. ``parts``: (members, bytes of their own), in the order of their first members."""

    commons: list[tuple[bytes, list[int]]]
    parts: list[tuple[tuple[int, ...], bytes]]


def part_bytes(
    size: int, members: Sequence[int], common: bytes = b"", own: bytes = b"", label: str = ""
) -> bytes:
    """The payload of a GATHER. ``size``: of the group; ``members``: whose part it is."""
    name = label.encode()
    head = struct.pack(f"<II{len(members)}I", size, len(members), *members)
    return head + _WORD.pack(len(name)) + name + _WORD.pack(len(common)) + common + own


def read_gathered(value: bytes) -> Gathered:
    """The Gathered of a whole value (bytes). Raises struct.error if the bytes are no such value."""
    at = 0

    def words(count: int) -> tuple[int, ...]:
        nonlocal at
        found = struct.unpack_from(f"<{count}I", value, at)
        at += 4 * count
        return found

    def text() -> bytes:
        nonlocal at
        (count,) = words(1)
        found = value[at : at + count]
        at += count
        return found

    commons: list[tuple[bytes, list[int]]] = []
    parts: list[tuple[tuple[int, ...], bytes]] = []
    for _ in range(words(1)[0]):
        runs = words(2 * words(1)[0])
        members = [m for first, n in zip(runs[::2], runs[1::2], strict=True) for m in range(first, first + n)]
        commons.append((text(), members))
    while at < len(value):
        owners = words(words(1)[0])
        parts.append((owners, text()))
    commons.sort(key=lambda common: common[1][0])
    return Gathered(commons, parts)


# The time for the request and the answer to travel, added to the time that a GET may wait at the server.
_ANSWER_SECONDS = 30.0
# A wrong secret is reported after all of them, within half a second.
_ATTEMPTS = 4
_PAUSE_SECONDS = 0.06
_TAG_BYTES = 16
# As in the engine (engine/rendezvous/store_client.cc).
MAX_ANSWER_BYTES = 64 << 20


def open_store_connection(
    address: str,
    secret: bytes,
    rank: int = NO_RANK,
    epoch: int = 0,
    deadline: Deadline | None = None,
    between: Callable[[], object] | None = None,
    encrypted: bool | None = None,
) -> tuple[socket.socket, bytes]:
    """(an authenticated blocking socket to the store at ``address`` ('tcp://host:port'); the connection's key if it is
    encrypted, else b""). ``between``: see connect_tcp(). ``encrypted``: None for encryption.applies_to().

    The store closes the oldest connection if too many have not proved the secret. In a large job it may be that of a rank
    which is slow. So a connection that was closed is tried again a few times, after pauses of random lengths.
    """
    deadline, secret, attempt = deadline or Deadline(30), check_secret(secret), 0
    while True:
        sock = connect_tcp(address, deadline, between)
        try:
            seals = encryption.applies_to(sock, rank != NO_RANK) if encrypted is None else encrypted
            key = client_handshake(sock, secret, PURPOSE, rank, epoch, deadline, seals)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.settimeout(None)
            return sock, key if seals else b""
        except BaseException as error:
            sock.close()
            closed = isinstance(error, ConnectionError) or isinstance(error.__cause__, ConnectionError)
            attempt += 1
            if not closed or attempt == _ATTEMPTS:
                raise
        time.sleep(min(random.uniform(0.5, 1.5) * _PAUSE_SECONDS * attempt, deadline.left()))


class StoreClient:
    """One connection to the store; calls from several threads take turns. The arguments are those of
    open_store_connection().

    Raises AuthenticationError or BootstrapTimeout; every method raises StoreLost when the connection is lost.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        rank: int = NO_RANK,
        epoch: int = 0,
        deadline: Deadline | None = None,
        between: Callable[[], object] | None = None,
        encrypted: bool | None = None,
    ) -> None:
        self._descriptors = DescriptorSet()
        sock, key = open_store_connection(address, secret, rank, epoch, deadline, between, encrypted)
        self._sock = self._descriptors.own(sock)
        self._seals = load().FrameSeals(key) if key else None
        self._lock = threading.Lock()
        self._awaited: tuple[str, ...] | None = None  # the keys of the ANY whose answer is still to come
        self.address = address

    def set(self, key: str, value: bytes) -> None:
        """Stores ``value``."""
        self._call(SET, key, value)

    def get(self, key: str, timeout_s: float) -> bytes:
        """The value of ``key``, waiting up to ``timeout_s`` seconds for it to appear.

        Raises BootstrapTimeout.
        """
        return self._call(GET, key, struct.pack("<q", max(0, int(timeout_s * 1000))), timeout_s)

    def add(self, key: str, delta: int) -> int:
        """Adds ``delta`` to a counter and returns the new value."""
        (total,) = struct.unpack("<q", self._call(ADD, key, struct.pack("<q", delta)))
        return int(total)

    def delete(self, key: str) -> None:
        """Deletes ``key``, if it exists."""
        self._call(DEL, key, b"")

    def set_last_will(self, key: str, value: bytes) -> None:
        """Has the store set ``key`` to ``value`` when this connection ends, unless the key is there then. An empty
        ``key`` takes it back."""
        self._call(WILL, key, value)

    def gather(
        self,
        key: str,
        size: int,
        members: Sequence[int],
        common: bytes = b"",
        own: bytes = b"",
        label: str = "",
    ) -> bool:
        """Adds a part to the value that the ``size`` members of a group put together. ``members``: whose
        part it is, numbers from 0. Returns False, and changes nothing, if one of them has a part already."""
        part = part_bytes(size, members, common, own, label)
        return self._call(GATHER, key, part) == b"\1"

    def absent(self, key: str, size: int) -> list[int]:
        """The members, of ``size``, that have added no part to the gathered value of ``key``. Ints, ascending."""
        answer = self._call(ABSENT, key, struct.pack("<I", size))
        return list(struct.unpack(f"<{len(answer) // 4}I", answer))

    def clear(self, prefix: str) -> None:
        """Deletes all keys that begin with ``prefix``."""
        self._call(CLEAR, prefix, b"")

    def wait_any(self, keys: Iterable[str], timeout_s: float) -> tuple[int, bytes] | None:
        """(index, value) of the first of ``keys`` that exists, waiting up to ``timeout_s`` seconds for one of them; None
        after that time. At most 8 keys; calls that repeat the same keys cost nothing while none of them is there."""
        keys = tuple(keys)
        with self._lock:
            deadline = Deadline(timeout_s + _ANSWER_SECONDS)
            try:
                if self._awaited != keys:
                    names = [key.encode() for key in keys]
                    more = b"".join(struct.pack("<H", len(name)) + name for name in names[1:])
                    self._send(ANY, names[0], more, deadline)
                    self._awaited = keys
                poll = select.poll()
                poll.register(self._sock, select.POLLIN)
                if not poll.poll(int(timeout_s * 1000)):
                    return None
                self._awaited = None
                status, value = self._answer(deadline)
            except OSError as error:
                raise self._lost(error) from error
        if status != OK:
            raise BootstrapError(
                f"the store at {self.address} refused {keys!r}: {value.decode(errors='replace')}"
            )
        return value[0], value[1:]

    def local_host(self) -> str:
        """The numeric address of this process's end of the connection, on the interface that leads to the store."""
        return str(self._sock.getsockname()[0])

    def close(self) -> None:
        """Closes the connection; calling it again does nothing."""
        self._descriptors.close()

    def _call(self, op: int, key: str, payload: bytes, wait_s: float = 0.0) -> bytes:
        name = key.encode()
        with self._lock:
            deadline = Deadline(wait_s + _ANSWER_SECONDS)
            try:
                self._send(op, name, payload, deadline)
                status, value = self._answer(deadline)
            except OSError as error:
                raise self._lost(error) from error
        if status == OK:
            return value
        if status == ERROR:
            raise BootstrapError(
                f"the store at {self.address} refused {key!r}: {value.decode(errors='replace')}"
            )
        raise BootstrapTimeout(f"no process set {key!r} in the store at {self.address} within {wait_s:g} s")

    def _send(self, op: int, name: bytes, payload: bytes, deadline: Deadline) -> None:
        size = 3 + len(name) + len(payload)
        if len(name) > MAX_KEY_BYTES or size > MAX_REQUEST_BYTES:
            raise ValueError(f"store request too large: key {len(name)} bytes, {size} bytes in all")
        body = struct.pack("<BH", op, len(name)) + name + payload
        frame = self._seals.seal(body) if self._seals else struct.pack("<I", size) + body
        send_exact(self._sock, frame, deadline)
        if self._awaited is not None:
            # This request has ended the wait, whose answer comes first.
            self._awaited = None
            self._answer(deadline)

    def _answer(self, deadline: Deadline) -> tuple[int, bytes]:
        (count,) = struct.unpack("<I", recv_exact(self._sock, 4, deadline))
        if not 0 < count <= MAX_ANSWER_BYTES:
            self.close()
            raise BootstrapError(
                f"the store at {self.address} announced an answer of {count} bytes, and 1 to {MAX_ANSWER_BYTES} are "
                "allowed: the answer was changed on the way, or another program has sent it"
            )
        if self._seals is None:
            answer = recv_exact(self._sock, count, deadline)
        else:
            answer = recv_exact(self._sock, count + _TAG_BYTES, deadline)
            try:
                answer = self._seals.open(answer)
            except ValueError:
                self.close()
                raise BootstrapError(
                    f"an answer of the store at {self.address} was changed on the way, or another program has sent it"
                ) from None
        return answer[0], answer[1:]

    def _lost(self, error: OSError) -> StoreLost:
        # The connection cannot be used again: a late answer would be taken for the next request's.
        self.close()
        return StoreLost(
            f"lost the connection to the store at {self.address}: {error}. "
            "The launcher, or rank 0 where it holds the store, has probably ended."
        )
