"""The connections between the watchers of a job's hosts: the first host's asks, those of the others answer.

The other hosts connect to a listener that rank 0 has opened, and prove a key that only ranks of the job can make, as on
the job's own connections (bootstrap/auth.py). Each message is signed. Nothing is encrypted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import socket
import struct
import threading
import time
from typing import Any

from hvd_core._base.auth import HANDSHAKE_SECONDS, ServerHandshake, client_handshake
from hvd_core._base.sockets import BootstrapError, Deadline, connect_tcp, recv_exact, send_exact
from hvd_core._observe.watch.job_figures import JobFigures, ToldFigures

_PURPOSE = b"watcher"
_LENGTH = struct.Struct("<Q")
_MAC_BYTES = 32
_MOST_BYTES = 64 << 20
_PAUSE_S, _AGAIN_S = 0.25, 1.0
_ANSWER_S = 10.0
_QUIET_S = 3600.0  # no page is open
_MOST_STRANGERS = 16
_log = logging.getLogger("horovod")


class _Channel:
    """Signed messages of JSON, of one thread. Raises OSError and BootstrapError when the connection ends."""

    def __init__(self, connection: socket.socket, key: bytes, role: bytes) -> None:
        self._connection, self._key = connection, key
        self._role, self._other = (b"ask", b"tell") if role == b"ask" else (b"tell", b"ask")
        self._sent = self._received = 0

    def _signature(self, role: bytes, number: int, body: bytes) -> bytes:
        return hmac.new(self._key, role + _LENGTH.pack(number) + body, hashlib.sha256).digest()

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message, separators=(",", ":")).encode()
        signature = self._signature(self._role, self._sent, body)
        self._sent += 1
        send_exact(self._connection, _LENGTH.pack(len(body)) + signature + body, Deadline(_ANSWER_S))

    def receive(self, seconds: float) -> dict[str, Any]:
        head = recv_exact(self._connection, _LENGTH.size + _MAC_BYTES, Deadline(seconds))
        (length,) = _LENGTH.unpack(head[: _LENGTH.size])
        if length > _MOST_BYTES:
            raise BootstrapError(f"a watcher announces a message of {length} bytes")
        body = recv_exact(self._connection, length, Deadline(_ANSWER_S))
        if not hmac.compare_digest(head[_LENGTH.size :], self._signature(self._other, self._received, body)):
            raise BootstrapError("a message of a watcher has a wrong signature")
        self._received += 1
        return json.loads(body)


class Asker:
    """On the first host: asks the watchers that connect, while a page asks here. Has threads of its own."""

    def __init__(self, listener: socket.socket, key: bytes, figures: JobFigures) -> None:
        self._listener, self._key, self._figures = listener, key, figures
        self._room = threading.BoundedSemaphore(_MOST_STRANGERS)
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="hosts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread that takes connections."""
        self._closed = True
        # close() alone would leave the thread in accept(), with the port still open.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        refused = False
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                if not refused:  # as a rule for want of a descriptor
                    _log.warning("could not accept another host's watcher: %s; trying again", error)
                refused = True
                time.sleep(_PAUSE_S)
                continue
            refused = False
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                handshake = self._proved(connection)
            except (OSError, BootstrapError):
                return
            finally:
                self._room.release()
            try:
                self._ask(handshake.rank, _Channel(connection, handshake.key, b"ask"))
            except (OSError, BootstrapError, ValueError):
                self._figures.lose(handshake.rank)

    def _proved(self, connection: socket.socket) -> ServerHandshake:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handshake, deadline = ServerHandshake(self._key, _PURPOSE), Deadline(HANDSHAKE_SECONDS)
        send_exact(connection, handshake.challenge, deadline)
        while not handshake.done:
            handshake.feed(recv_exact(connection, 1, deadline))
        send_exact(connection, handshake.confirm, deadline)
        return handshake

    def _ask(self, number: int, channel: _Channel) -> None:
        while True:
            if self._figures.host.is_looked_at():
                asked = time.monotonic_ns()
                channel.send({"after": self._figures.last_span(number)})
                answer = channel.receive(_ANSWER_S)
                self._figures.take(number, answer, asked, time.monotonic_ns())
            time.sleep(_PAUSE_S)


class Teller:
    """On another host: connects to the first host's watcher and answers it. Has a thread of its own."""

    def __init__(self, address: str, key: bytes, number: int, figures: ToldFigures) -> None:
        """``number``: the first rank of this host."""
        self._address, self._key, self._number, self._figures = address, key, number, figures
        threading.Thread(target=self._run, name="first host", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                with connect_tcp(self._address, Deadline(HANDSHAKE_SECONDS)) as connection:
                    key = client_handshake(
                        connection, self._key, _PURPOSE, self._number, 0, Deadline(HANDSHAKE_SECONDS)
                    )
                    self._tell(_Channel(connection, key, b"tell"))
            except (OSError, BootstrapError, ValueError) as error:
                _log.debug("the first host's watcher does not ask: %s", error)
            time.sleep(_AGAIN_S)

    def _tell(self, channel: _Channel) -> None:
        while True:
            question = channel.receive(_QUIET_S)
            channel.send(self._figures.answer(int(question["after"])))
