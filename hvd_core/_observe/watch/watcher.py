"""The watcher of a host: reads the rings, serves the page of the live timeline and the metrics.

As a process of its own, `python -m hvd_core._observe.watch.watcher` with its configuration in HVD_WATCHER,
start.py starts
it, and it ends by itself: with the job, some seconds later if a browser still shows the page. `hvd timeline --live` runs
one too.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hvd_core._observe.watch import metrics
from hvd_core._observe.watch.guarded_http import LOOPBACK, GuardedServer
from hvd_core._observe.watch.host_figures import LOOKED_AT_S, HostFigures
from hvd_core._observe.watch.job_figures import JobFigures, ToldFigures
from hvd_core._observe.watch.other_hosts import Asker, Teller
from hvd_core._observe.watch.process_end import Process, is_ready
from hvd_core._observe.watch.shared_rings import Place, SharedRings
from hvd_core._observe.watch.start import CONFIG

ANY_PORT = -1
_TOKEN = re.compile(r"[A-Za-z0-9_.~-]{16,256}")
_LONG_PAUSE_S = 0.25
# Pauses until the next look at the rings, by the share of a ring that was new: those of a page show what happened a
# quarter of a second ago, and a ring that fills faster is read before it is full.
_PAUSES = ((0.25, 0.02), (0.05, 0.1), (0.0, _LONG_PAUSE_S))
_RINGS_S = 120.0  # for ranks to make their rings, in init()
_AFTER_JOB_S = 30.0  # the next job's watcher waits for the ports a little longer
_LAST_LOOK_S = 1.5  # for a page to ask once more when the launcher ends this process
_HANDED_OVER_S = 2.0  # a process that ends gives its descriptors back a little earlier
SERVER_S = 40.0
_PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}


class Watcher:
    """Reads the rings of a place, and serves them. ``config``: see start.py."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Raises OSError if the rings cannot be opened, ValueError for a wrong token."""
        self._config = config
        self.rings = SharedRings(place_of(config["place"]))
        self._job: JobFigures | None = None
        self._hosts: Asker | None = None
        key = bytes.fromhex(config.get("hosts key", ""))
        if config.get("listener", -1) >= 0:
            self._job = JobFigures(self.rings)
            self.figures = self._job.host
            self._hosts = Asker(socket.socket(fileno=config["listener"]), key, self._job)
        elif config.get("first host"):
            self.figures = ToldFigures(self.rings)
            Teller(config["first host"], key, config["first rank"], self.figures)
        else:
            self.figures = HostFigures(self.rings)
        self.token = token_of(config["token_file"])
        self.addresses: dict[str, str] = {}
        self._servers: list[GuardedServer] = []

    def serve(self, wait_s: float, in_vain: Callable[[], bool] = lambda: False) -> None:
        """Open the ports; those that are taken are tried for ``wait_s`` seconds, unless that is ``in_vain()``. Raises
        OSError."""
        config = self._config
        until = time.monotonic() + wait_s
        if config["page_port"]:
            pages = {path: _file(name, kind) for path, (name, kind) in _PAGES.items()}
            server = self._server(
                LOOPBACK,
                config["page_port"],
                {**pages, "/data": self._data, "/closed": self._closed_page},
                until,
                in_vain,
            )
            self.addresses["live timeline"] = f"http://{LOOPBACK}:{server.port}/"
        if config["metrics_port"]:
            address = config["metrics_address"]
            server = self._server(
                address, config["metrics_port"], {"/metrics": self._metrics}, until, in_vain
            )
            host = f"[{address}]" if ":" in address else address
            self.addresses["metrics"] = f"http://{host}:{server.port}/metrics"

    def announcements(self) -> list[str]:
        """What the user has to know: addresses, and the token unless it is in a file."""
        said = []
        for what, address in self.addresses.items():
            if self._config["token_file"]:
                said.append(f"{what}: {address} (token in {self._config['token_file']})")
            elif what == "metrics":
                said.append(f"{what}: {address} (token {self.token})")
            else:
                said.append(f"{what}: {address}?token={self.token}")
        return said

    def _server(
        self, address: str, port: int, pages: dict[str, Any], until: float, in_vain: Callable[[], bool]
    ) -> GuardedServer:
        while True:
            try:
                server = GuardedServer(address, 0 if port == ANY_PORT else port, self.token, pages)
                self._servers.append(server)
                return server
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() >= until or in_vain():
                    raise
                time.sleep(_LONG_PAUSE_S)

    def _metrics(self, _: Any) -> tuple[str, bytes]:
        return metrics.CONTENT_TYPE, metrics.text(self.rings, self._config["backends"])

    def _data(self, values: Mapping[str, str]) -> tuple[str, bytes]:
        after = values.get("after", "")
        config = self._config
        shown = self._job or self.figures
        answer = shown.for_page(int(after) if after.isdecimal() else 0, values.get("page", "")[:64])
        answer |= {name: config[name] for name in ("job", "host", "size", "backends")}
        answer["other hosts"] = config["other hosts"]
        return "application/json", json.dumps(answer, separators=(",", ":")).encode()

    def _closed_page(self, values: Mapping[str, str]) -> tuple[str, bytes]:
        self.figures.note_closed(values.get("page", "")[:64])
        return "text/plain", b""

    def run(self, is_over: Callable[[], bool], after_job_s: float = _AFTER_JOB_S) -> None:
        """Read until ``is_over()``, or until the job has been over for ``after_job_s`` seconds."""
        began = time.monotonic()
        ended = None
        while not is_over():
            new = self.figures.read()
            looked_at = self.figures.is_looked_at()
            time.sleep(
                next(pause for share, pause in _PAUSES if new >= share) if looked_at else _LONG_PAUSE_S
            )
            now = time.monotonic()
            if not self.rings.complete and now - began < _RINGS_S:
                continue
            if self.figures.is_over() or not self.rings.look():
                ended = ended or now
                if now - ended > after_job_s:
                    return

    def close(self) -> None:
        """No request is answered any more."""
        for server in self._servers:
            server.close()
        if self._hosts is not None:
            self._hosts.close()
        self.rings.close()


def _file(name: str, kind: str) -> Callable[[Any], tuple[str, bytes]]:
    body = (Path(__file__).parent / "page" / name).read_bytes()
    return lambda _: (kind, body)


def place_of(facts: dict[str, Any]) -> Place:
    """The place of the rings in start.facts() of a rank, whose descriptors this process has too, or may open."""
    if facts["segment_fd"] >= 0:
        return Place(f"/proc/{facts['pid']}/fd/{facts['segment_fd']}", facts["slots"])
    return Place(files=[facts["file"]])


def token_of(path: str) -> str:
    """The token in a file, or a new one without a file. Raises OSError, ValueError."""
    if not path:
        return secrets.token_urlsafe(24)
    token = Path(path).read_text(encoding="utf-8").strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError(
            f"HOROVOD_WATCH_TOKEN_FILE={path}: a token has 16 to 256 letters, digits and characters of '-_.~', and its "
            "file has nothing else"
        )
    return token


def _say(text: str) -> None:
    print(f"horovod: {text}", file=sys.stderr, flush=True)


class _End:
    """When the process of a watcher has to end."""

    def __init__(self, watcher: Watcher, owner: int, rank: Process) -> None:
        """``owner``: a pipe from the process of the rank that has started this one; ``rank``: that process."""
        self._watcher, self._owner, self._rank = watcher, owner, rank
        self._handed_over_at: float | None = None
        self._asked_at: float | None = None
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, *_: Any) -> None:
        self._asked_at = self._asked_at or time.monotonic()

    def __call__(self) -> bool:
        looked_at = self._watcher.figures.is_looked_at()
        if self._asked_at is not None:
            return not looked_at or time.monotonic() - self._asked_at > _LAST_LOOK_S
        if self._handed_over_at is None and is_ready(self._owner):
            self._handed_over_at = time.monotonic()
        if self._handed_over_at is None:
            return False
        since = time.monotonic() - self._handed_over_at
        if since > _HANDED_OVER_S and self._rank.alive():
            # It has begun another job, whose watcher waits for the ports.
            return not looked_at or since > LOOKED_AT_S
        # It ends, and the other ranks of this host may still run.
        return not looked_at and (self._watcher.figures.is_over() or not self._watcher.rings.look())


def main() -> int:
    """The process that start.py starts."""
    config = json.loads(os.environ.pop(CONFIG))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the job, which ends this
    # The launcher waits for the end of the ranks' output, which this process has inherited.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    owner, rank = config["owner"], Process(config["place"]["pid"])
    if config["place"]["segment_fd"] >= 0:
        config["place"]["pid"] = "self"  # the descriptor was inherited
    try:
        watcher = Watcher(config)
        watcher.serve(SERVER_S, lambda: is_ready(owner))
    except (OSError, ValueError) as error:
        _say(f"neither live timeline nor metrics are served: {error}")
        return 1
    for text in watcher.announcements():
        _say(text)
    os.dup2(nothing, 2)
    watcher.run(_End(watcher, owner, rank))
    watcher.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
