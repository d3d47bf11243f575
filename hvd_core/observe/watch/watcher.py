"""The process of the watcher: `python -m hvd_core.observe.watch.watcher`, with its configuration in HVD_WATCHER.

start.py starts it, and it ends by itself: soon after the job, later if a browser still shows the page.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvd_core.observe.watch import metrics
from hvd_core.observe.watch.guarded_http import GuardedServer
from hvd_core.observe.watch.shared_rings import Place, SharedRings
from hvd_core.observe.watch.start import CONFIG

ANY_PORT = -1
_TOKEN = re.compile(r"[A-Za-z0-9_.~-]{16,256}")
_PAUSE_S = 0.25
_RINGS_S = 120.0  # for ranks to make their rings, in init()
_AFTER_JOB_S = 30.0  # for the next job's watcher, which waits for the ports a little longer
_SERVER_S = 40.0


class Watcher:
    """Reads the rings of a place, and serves them. ``config``: see start.py."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Raises OSError if the rings cannot be opened or no port can be had, ValueError for a token that is none."""
        self._config = config
        self.rings = SharedRings(place_of(config["place"]))
        self.token = token_of(config["token_file"])
        self.addresses: list[str] = []
        self._servers: list[GuardedServer] = []

    def serve(self, wait_s: float) -> None:
        """Open the ports; those that are taken are tried for ``wait_s`` seconds."""
        config = self._config
        if config["metrics_port"]:
            address = config["metrics_address"]
            server = self._server(address, config["metrics_port"], {"/metrics": self._metrics}, wait_s)
            self.addresses.append(f"metrics: http://{address}:{server.port}/metrics")

    def _server(self, address: str, port: int, pages: dict[str, Any], wait_s: float) -> GuardedServer:
        until = time.monotonic() + wait_s
        while True:
            try:
                server = GuardedServer(address, 0 if port == ANY_PORT else port, self.token, pages)
                self._servers.append(server)
                return server
            except OSError:
                if time.monotonic() >= until:
                    raise
                time.sleep(_PAUSE_S)

    def _metrics(self, _: Any) -> tuple[str, bytes]:
        return metrics.CONTENT_TYPE, metrics.text(self.rings, self._config["backends"])

    def run(self, is_over: Callable[[], bool]) -> None:
        """Serve until ``is_over()``, or until the job is over and nobody looks."""
        began = time.monotonic()
        ended = None
        while not is_over():
            time.sleep(_PAUSE_S)
            now = time.monotonic()
            rings = self.rings.look()
            if not self.rings.complete and now - began < _RINGS_S:
                continue
            if any(ring.alive() and not ring.ended for ring in rings):
                continue
            ended = ended or now
            if now - ended > _AFTER_JOB_S:
                return

    def close(self) -> None:
        for server in self._servers:
            server.close()
        self.rings.close()


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


def main() -> int:
    config = json.loads(os.environ.pop(CONFIG))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the job, which ends this
    owner = config["owner"]
    if config["place"]["segment_fd"] >= 0:
        config["place"]["pid"] = "self"  # the descriptor was inherited
    try:
        watcher = Watcher(config)
        watcher.serve(_SERVER_S)
    except (OSError, ValueError) as error:
        _say(f"no metrics are served: {error}")
        return 1
    for address in watcher.addresses:
        token = f"token in {config['token_file']}" if config["token_file"] else f"token {watcher.token}"
        _say(f"{address} ({token})")
    # The launcher waits for the end of the ranks' output.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    handed_over = False

    def is_over() -> bool:
        """Whether the job was over, and its process makes another one or has ended."""
        nonlocal handed_over
        handed_over = handed_over or bool(select.select([owner], [], [], 0)[0])
        running = any(ring.alive() and not ring.ended for ring in watcher.rings.look())
        return handed_over and not running

    watcher.run(is_over)
    watcher.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
