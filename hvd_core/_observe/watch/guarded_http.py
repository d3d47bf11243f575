"""An HTTP server for pages and figures that only this user may see: a token, few paths, nothing else.

A browser brings the token once in the address and gets a cookie, which is good for this port only; a program sends
``Authorization: Bearer``. Names in ``Host`` that are not this machine's are refused, so that a page of another site
cannot reach the server by a name of its own (DNS rebinding). There is no answer that another site may read. The server
has threads of its own. Other users of this host may open connections: the oldest that has not shown the token gives way
to a new one.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

LOOPBACK = "127.0.0.1"
_LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
_PATIENCE_S = 10  # for a peer that does not read or write
_MOST_CONNECTIONS = 32
_PAUSE_S = 0.1
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Page = Callable[[Mapping[str, str]], tuple[str, bytes]]
"""Gets the parameters of a request; returns (content type, bytes)."""


class GuardedServer:
    """Serves ``pages`` by their paths, on ``address`` and ``port`` (0: any that is free), until close().

    Raises OSError if the port cannot be had, with its number in the text.
    """

    def __init__(self, address: str, port: int, token: str, pages: Mapping[str, Page]) -> None:
        class Handler(_Handler):
            """The handler of this server: the base class has one per class, not one per server."""

        handler = Handler
        handler.token, handler.pages = token, dict(pages)
        try:
            family, where = _resolved(address, port)
            handler.checks_host = ipaddress.ip_address(where[0].partition("%")[0]).is_loopback
            self._server = _Server(family, where, handler)
        except OSError as error:
            raise OSError(
                error.errno, f"port {port} of {address} cannot be served: {error.strerror}"
            ) from None
        self.port: int = self._server.server_address[1]
        # Browsers send cookies to all ports of a host, so that the token itself must not be in one.
        handler.cookie = f"hvd_watch_{self.port}"
        handler.session = hmac.new(token.encode(), handler.cookie.encode(), "sha256").hexdigest()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No request is answered any more when this returns."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, family: socket.AddressFamily, *arguments: Any) -> None:
        self.address_family = family
        self._mutex = threading.Lock()
        self._strangers: dict[
            socket.socket, None
        ] = {}  # connections that have not shown the token, the oldest first
        self._known: set[socket.socket] = set()
        super().__init__(*arguments)

    def server_bind(self) -> None:
        # The base class looks up the name of the host, which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            # For want of a descriptor, say: the listener stays readable, and without a pause the thread would spin.
            time.sleep(_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._mutex:
            if len(self._strangers) + len(self._known) >= _MOST_CONNECTIONS and not self._drop_a_stranger():
                return self.shutdown_request(request)
            self._strangers[request] = None
        super().process_request(request, client_address)

    def _drop_a_stranger(self) -> bool:
        """End the oldest connection that has not shown the token; its thread reads the end and closes it."""
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        del self._strangers[oldest]
        with contextlib.suppress(OSError):  # the peer was faster
            oldest.shutdown(socket.SHUT_RDWR)
        return True

    def note_known(self, request: socket.socket) -> None:
        """This connection has shown the token."""
        with self._mutex:
            if request in self._strangers:
                del self._strangers[request]
                self._known.add(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._mutex:
                self._strangers.pop(request, None)
                self._known.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that goes away is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    token = ""
    cookie = session = ""
    checks_host = True
    pages: Mapping[str, Page] = {}
    timeout = _PATIENCE_S
    server_version, sys_version = "hvd-core", ""

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        values = {name: found[-1] for name, found in parse_qs(asked.query).items()}
        if self.checks_host and not _is_local(self.headers.get("Host", "")):
            return self._refuse(403, "This server answers to 127.0.0.1 and localhost only.")
        given = values.pop("token", None)
        if given is not None and not self._is_token(given):
            return self._refuse(403, "The token is not this server's: it has a new one at each start.")
        if given is None and not self._is_known():
            return self._refuse(403, "The token is missing: open the address that was printed at the start.")
        self.server.note_known(self.request)
        page = self.pages.get(asked.path)
        if page is None:
            return self._refuse(404, "There is no such page.")
        if given is not None and asked.path == "/":
            # The token leaves the address, which a browser keeps and shows.
            return self._answer(
                303,
                "text/plain",
                b"",
                {
                    "Location": "/",
                    "Set-Cookie": f"{self.cookie}={self.session}; HttpOnly; SameSite=Strict; Path=/",
                },
            )
        kind, body = page(values)
        return self._answer(200, kind, body)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.token.encode())

    def _is_known(self) -> bool:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given.strip()):
            return True
        # Cookies of other programs on this host come too, and may be malformed.
        for one in self.headers.get("Cookie", "").split(";"):
            name, _, value = one.strip().partition("=")
            if name == self.cookie and hmac.compare_digest(value.encode(), self.session.encode()):
                return True
        return False

    def _refuse(self, status: int, why: str) -> None:
        self._answer(status, "text/plain; charset=utf-8", f"{why}\n".encode())

    def _answer(self, status: int, kind: str, body: bytes, more: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *_: Any) -> None:
        """Nothing: an address has the token in it."""


def _resolved(address: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """The family of an address or a name, and what bind() takes. Raises OSError."""
    family, *_, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, where


def _is_local(host: str) -> bool:
    """Whether a ``Host`` names this machine; the port may be that of a tunnel."""
    name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "0")
    if not name:
        name, port = host, "0"
    return name.lower() in _LOCAL_NAMES and port.isdigit()
