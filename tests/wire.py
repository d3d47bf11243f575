"""A program on the way between two ends of a connection: it keeps the bytes, and may change one of them."""

import socket
import threading


class Wire:
    """Listens on loopback, and connects every caller with `target` (host, port). `seen`: all bytes, in both directions.

    spoil_at: (direction, number of the byte) of a bit that is turned over; direction 0 is that of the callers' bytes, 1
    the way back. Each connection counts by itself. end_at: (direction, number of bytes) after which the first connection
    ends in this direction, in order.
    """

    def __init__(self, target, spoil_at=None, end_at=None):
        self._target, self._spoil_at, self._end_at = target, spoil_at, end_at
        self.seen = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._sockets = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            for direction, (source, sink) in enumerate(((near, far), (far, near))):
                ends = self._end_at is not None and len(self._sockets) == 2 and direction == self._end_at[0]
                words = (direction, source, sink, self._end_at[1] if ends else None)
                threading.Thread(target=self._pass_on, args=words, daemon=True).start()

    def _pass_on(self, direction, source, sink, end):
        passed = 0
        try:
            while data := source.recv(1 << 16):
                self.seen += data
                if self._spoil_at is not None and direction == self._spoil_at[0]:
                    at = self._spoil_at[1] - passed
                    if 0 <= at < len(data):
                        data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                if end is not None and passed + len(data) >= end:
                    sink.sendall(data[: end - passed])
                    sink.shutdown(socket.SHUT_WR)
                    while source.recv(1 << 16):
                        pass  # the sender shall not notice it
                    return
                passed += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self):
        # Unlike close(), shutdown() wakes the thread that is in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for sock in (self._listener, *self._sockets):
            sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
