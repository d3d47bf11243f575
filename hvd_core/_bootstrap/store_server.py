"""The server of the store, as Python starts it. Protocol: see store.py.

The server itself is compiled (engine/store), on a thread of its own that needs no interpreter: while a process holds the
GIL, its store goes on answering the other ranks. Any thread may call.
"""

import socket

from hvd_core._base.native import load

from hvd_core._bootstrap.auth import HANDSHAKE_SECONDS, check_secret
from hvd_core._bootstrap.socket_io import join_address

PURPOSE = b"store"
SET, GET, ADD, DEL, WILL, ANY, GATHER, ABSENT, CLEAR = 1, 2, 3, 4, 5, 6, 7, 8, 9
OK, TIMEOUT, ERROR = 0, 1, 2
MAX_KEY_BYTES = 1024
MAX_REQUEST_BYTES = 16 << 20


class StoreServer:
    """Serves the store at ``address`` ('tcp://host:port') until close(). A forked child has no server.

    Args:
        host: the address to listen on: that of the job's interface, not '0.0.0.0'.
        secret: the job's secret (bytes, at least 16).
        port: the port to listen at; 0 for any free one.

    Raises OSError if the address cannot be bound, ValueError for a short secret, ImportError if the compiled part of
    hvd-core cannot be loaded.
    """

    def __init__(self, host="127.0.0.1", secret=b"", port=0):
        secret = check_secret(secret)
        compiled = load()
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((host, port), family=family, backlog=4096) as listener:
            listener.setblocking(False)
            self.address = join_address(*listener.getsockname()[:2])
            self._server = compiled.StoreServer(listener.detach(), secret, HANDSHAKE_SECONDS)

    def clients(self):
        """The number of connections whose peer has proved the secret."""
        return self._server.clients()

    def close(self):
        """Ends the thread and closes every connection; calling it again does nothing."""
        self._server.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
