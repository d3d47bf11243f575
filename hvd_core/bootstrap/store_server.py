"""The server of the store: one thread, one epoll, asleep when nothing happens. Protocol: see store.py.

The thread belongs to the StoreServer that started it; close() may be called from any thread. A
connection is read only up to the size of the handshake until its peer has proved the secret.
"""

import heapq
import itertools
import logging
import os
import selectors
import socket
import struct
import threading
import time

from .auth import HANDSHAKE_SECONDS, ServerHandshake, check_secret
from .descriptors import DescriptorSet
from .socket_io import AuthenticationError, join_address

PURPOSE = b"store"
SET, GET, ADD, DEL = 1, 2, 3, 4
OK, TIMEOUT, ERROR = 0, 1, 2
MAX_KEY_BYTES = 1024
MAX_REQUEST_BYTES = 16 << 20
# If more connections than this have not proved the secret, the oldest is dropped.
MAX_UNPROVEN = 256

_log = logging.getLogger(__name__)


class _Refused(Exception):
    """The peer broke the protocol; its connection is closed."""


class _Connection:
    def __init__(self, sock, secret):
        self.sock = sock
        self.handshake = ServerHandshake(secret, PURPOSE)
        self.deadline = time.monotonic() + HANDSHAKE_SECONDS
        self.received = bytearray()
        self.unsent = bytearray(self.handshake.challenge)
        self.awaited = None  # the key of a GET that waits
        self.open = True


class StoreServer:
    """Serves the store at ``address`` ('tcp://host:port') until close().

    Args:
        host: the address to listen on: that of the job's interface, not '0.0.0.0'.
        secret: the job's secret (bytes, at least 16).

    Raises OSError if the address cannot be bound, ValueError for a short secret.
    """

    def __init__(self, host="127.0.0.1", secret=b""):
        self._secret = check_secret(secret)
        self._descriptors = DescriptorSet()
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        self._listener = self._descriptors.own(socket.create_server((host, 0), family=family, backlog=1024))
        self._listener.setblocking(False)
        self.address = join_address(*self._listener.getsockname()[:2])
        self._wake = self._descriptors.own(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._selector = self._descriptors.own(selectors.EpollSelector())
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._values = {}
        self._waiting = {}  # key -> connections whose GET waits for it
        self._unproven = {}  # connections in the handshake, oldest first
        self._proven = 0
        self._timers = []
        self._sequence = itertools.count()
        self._closing = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="hvd-store", daemon=True)
        self._thread.start()

    def clients(self):
        """The number of connections whose peer has proved the secret. Any thread may call."""
        return self._proven

    def close(self):
        """Ends the thread and closes every connection; calling it again does nothing."""
        if self._closing or os.getpid() != self._owner:
            return
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._descriptors.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _run(self):
        while not self._closing:
            for key, events in self._selector.select(self._next_timer()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data is not None:
                    self._serve(key.data, events)
            self._run_timers()

    def _accept(self):
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of descriptors: without a pause the listener would stay readable and spin.
            _log.warning("store: could not accept a connection: %s; trying again", error)
            self._selector.unregister(self._listener)
            self._at(time.monotonic() + 0.2, self._listen_again)
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(self._descriptors.own(sock), self._secret)
        if len(self._unproven) >= MAX_UNPROVEN:
            self._drop(next(iter(self._unproven)), "too many connections that have not proved the secret")
        self._unproven[connection] = True
        self._selector.register(sock, selectors.EVENT_READ, connection)
        self._at(connection.deadline, lambda: self._end_handshake(connection))
        self._serve(connection, selectors.EVENT_WRITE)

    def _listen_again(self):
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _end_handshake(self, connection):
        if connection in self._unproven:
            self._drop(connection, f"no proof of the secret within {HANDSHAKE_SECONDS:g} s")

    def _serve(self, connection, events):
        if not connection.open:
            return
        try:
            if events & selectors.EVENT_READ:
                self._read(connection)
            if connection.open:
                self._flush(connection)
        except (OSError, _Refused, AuthenticationError) as error:
            self._drop(connection, error)

    def _read(self, connection):
        try:
            data = connection.sock.recv(1 << 16)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("closed by the peer")
        if connection.handshake is not None:
            connection.handshake.feed(data)
            if not connection.handshake.done:
                return
            connection.unsent += connection.handshake.confirm
            data = connection.handshake.rest
            connection.handshake = None
            self._proven += 1
            self._unproven.pop(connection, None)
        connection.received += data
        if len(connection.received) > 2 * MAX_REQUEST_BYTES:
            raise _Refused("more requests sent ahead than the store keeps")
        self._answer_all(connection)

    def _answer_all(self, connection):
        buffer = connection.received
        while connection.awaited is None and len(buffer) >= 4:
            (size,) = struct.unpack_from("<I", buffer)
            if not 3 <= size <= MAX_REQUEST_BYTES:
                raise _Refused(f"a request of {size} bytes")
            if len(buffer) < 4 + size:
                return
            request = bytes(buffer[4 : 4 + size])
            del buffer[: 4 + size]
            self._answer(connection, request)

    def _answer(self, connection, request):
        op, key_size = struct.unpack_from("<BH", request)
        if key_size > MAX_KEY_BYTES or 3 + key_size > len(request):
            raise _Refused(f"a key of {key_size} bytes in a request of {len(request)}")
        key, payload = request[3 : 3 + key_size], request[3 + key_size :]
        if op in (GET, ADD) and len(payload) != 8:
            raise _Refused(f"operation {op} with a payload of {len(payload)} bytes, expected 8")
        if op == SET:
            self._reply(connection, OK)
            self._store(key, payload)
        elif op == GET:
            self._get(connection, key, struct.unpack("<q", payload)[0])
        elif op == ADD:
            self._add(connection, key, struct.unpack("<q", payload)[0])
        elif op == DEL:
            self._values.pop(key, None)
            self._reply(connection, OK)
        else:
            self._reply(connection, ERROR, f"unknown operation {op}".encode())

    def _get(self, connection, key, timeout_ms):
        if key in self._values:
            self._reply(connection, OK, self._values[key])
        elif timeout_ms == 0:
            self._reply(connection, TIMEOUT)
        else:
            token = connection.awaited = (key, next(self._sequence))
            self._waiting.setdefault(key, []).append(connection)
            if timeout_ms > 0:
                self._at(time.monotonic() + timeout_ms / 1000, lambda: self._give_up(connection, token))

    def _add(self, connection, key, delta):
        try:
            total = int(self._values.get(key, b"0")) + delta
            answer = struct.pack("<q", total)
        except (ValueError, struct.error):
            self._reply(connection, ERROR, b"the value is not a number of 64 bits")
            return
        self._reply(connection, OK, answer)
        self._store(key, b"%d" % total)

    def _store(self, key, value):
        self._values[key] = value
        for connection in self._waiting.pop(key, ()):
            connection.awaited = None
            self._reply(connection, OK, value)
            self._go_on(connection)

    def _give_up(self, connection, token):
        if connection.open and connection.awaited == token:
            self._stop_waiting(connection)
            self._reply(connection, TIMEOUT)
            self._go_on(connection)

    def _go_on(self, connection):
        # Requests that the client sent behind its GET are still in the buffer.
        try:
            self._answer_all(connection)
            self._flush(connection)
        except (OSError, _Refused) as error:
            self._drop(connection, error)

    def _stop_waiting(self, connection):
        key, _ = connection.awaited
        connection.awaited = None
        others = [other for other in self._waiting.get(key, ()) if other is not connection]
        if others:
            self._waiting[key] = others
        else:
            self._waiting.pop(key, None)

    def _reply(self, connection, status, payload=b""):
        connection.unsent += struct.pack("<IB", 1 + len(payload), status) + payload

    def _flush(self, connection):
        try:
            while connection.unsent:
                del connection.unsent[: connection.sock.send(connection.unsent)]
        except BlockingIOError:
            pass
        writing = selectors.EVENT_WRITE if connection.unsent else 0
        self._selector.modify(connection.sock, selectors.EVENT_READ | writing, connection)

    def _drop(self, connection, reason):
        if not connection.open:
            return
        connection.open = False
        if connection.handshake is not None:
            _log.info("store: refused a connection: %s", reason)
        else:
            self._proven -= 1
        self._unproven.pop(connection, None)
        if connection.awaited is not None:
            self._stop_waiting(connection)
        self._selector.unregister(connection.sock)
        self._descriptors.discard(connection.sock)

    def _at(self, when, action):
        heapq.heappush(self._timers, (when, next(self._sequence), action))

    def _next_timer(self):
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _run_timers(self):
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()
