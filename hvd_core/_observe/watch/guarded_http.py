"""An HTTP server for pages and figures that only this user may see: a token, few paths, nothing else.

A browser sends the token once in the address and gets a cookie, which is valid for this port only; a program sends
``Authorization: Bearer``. A ``Host`` that is not this machine is refused, so that a page of another site cannot reach the
server by a name of its own (DNS rebinding), and no other site may read an answer. Each connection has a thread; one that
is silent for some seconds is closed.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

LOOPBACK = "127.0.0.1"
_LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")
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


class GuardedServer(ThreadingHTTPServer):
    """Serves ``pages`` by their paths, on ``address`` and ``port`` (0: any that is free), until close().

    Raises OSError if the port cannot be had, with its number in the message.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: str, port: int, token: str, pages: Mapping[str, Page]) -> None:
        self.token, self.pages = token, pages
        try:
            self.address_family, *_, where = socket.getaddrinfo(
                address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self.checks_host = ipaddress.ip_address(str(where[0]).partition("%")[0]).is_loopback
            super().__init__(where, _Handler)  # type: ignore[arg-type]  # the stubs know IPv4 only
        except OSError as error:
            raise OSError(
                error.errno, f"port {port} of {address} cannot be served: {error.strerror}"
            ) from None
        self.port: int = self.server_address[1]
        # Browsers send cookies to all ports of a host, so the cookie must not be the token.
        self.cookie = f"hvd_watch_{self.port}"
        self.session = hmac.new(token.encode(), self.cookie.encode(), "sha256").hexdigest()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No request is answered any more when this returns."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def server_bind(self) -> None:
        # HTTPServer also looks up the name of the host, which may take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that goes away is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: GuardedServer
    timeout = 10
    server_version, sys_version = "hvd-core", ""

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        values = {name: found[-1] for name, found in parse_qs(asked.query).items()}
        if self.server.checks_host and not _is_local(self.headers.get("Host", "")):
            return self._refuse(403, "This server answers to 127.0.0.1 and localhost only.")
        given = values.pop("token", None)
        if given is not None and not self._is_token(given):
            return self._refuse(403, "The token is not this server's: it has a new one at each start.")
        if given is None and not self._is_known():
            return self._refuse(403, "The token is missing: open the address that was printed at the start.")
        page = self.server.pages.get(asked.path)
        if page is None:
            return self._refuse(404, "There is no such page.")
        if given is not None and asked.path == "/":
            # The token leaves the address, which a browser keeps and shows.
            cookie = f"{self.server.cookie}={self.server.session}; HttpOnly; SameSite=Strict; Path=/"
            return self._answer(303, "text/plain", b"", {"Location": "/", "Set-Cookie": cookie})
        kind, body = page(values)
        return self._answer(200, kind, body)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.server.token.encode())

    def _is_known(self) -> bool:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given.strip()):
            return True
        # Cookies of other programs on this host come too, and may be malformed.
        for one in self.headers.get("Cookie", "").split(";"):
            name, _, value = one.strip().partition("=")
            if name == self.server.cookie and hmac.compare_digest(
                value.encode(), self.server.session.encode()
            ):
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


def _is_local(host: str) -> bool:
    """Whether a ``Host`` names this machine; the port may be that of a tunnel."""
    try:
        asked = urlsplit(f"//{host}")
        return asked.hostname in _LOCAL_NAMES and (asked.port is None or asked.port >= 0)
    except ValueError:  # the port is no number
        return False
