"""The watcher of a host: reads the rings, serves the page of the live timeline and the metrics (docs/metrics.md).

start.py starts it as a process of its own, `python -m hvd_core._observe.watch.watcher` with its configuration in
HVD_WATCHER. It ends by itself: with the job, some seconds later if a browser still shows the page. `hvd timeline
--live` runs one too.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_core._base.auth import HANDSHAKE_SECONDS, ServerHandshake, client_handshake
from hvd_core._base.listener import AuthenticatedListener, ListenerThread
from hvd_core._base.sockets import BootstrapError, Deadline, connect_tcp, recv_exact, send_exact
from hvd_core._observe.watch.guarded_http import LOOPBACK, GuardedServer
from hvd_core._observe.watch.job_figures import VIEWER_TIMEOUT_S, HostFigures, JobFigures, ReportedFigures
from hvd_core._observe.watch.shared_rings import Place, Process, SharedRing, SharedRings
from hvd_core._observe.watch.start import CONFIG
from hvd_core.types import OPERATIONS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# The metrics of a host's ranks, in Prometheus' text format. Values are made when they are asked for, from counters
# that the engine keeps anyway. Labels have few values. Needs prometheus-client, the extra ``metrics``.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text(rings: SharedRings, backends: Iterable[str] = ()) -> bytes:
    """All metrics. ``backends``: what the plan says, such as "shm within a host"."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(rings.look(), tuple(backends)))
    exposition: bytes = generate_latest(registry)
    return exposition


# Name without the prefix "horovod_": type, help, labels besides the rank.
_METRICS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "rank_up": ("gauge", "1: the rank's process runs", ()),
    "operations": ("counter", "operations that the rank has submitted", ("operation",)),
    "operation_bytes": ("counter", "bytes of the tensors of these operations", ("operation",)),
    "batches": ("counter", "batches that the rank has got to carry out", ()),
    "batched_requests": ("counter", "requests in these batches", ()),
    "collectives": ("counter", "collectives that a backend has begun, and copies of the engine", ("name",)),
    "waits": ("counter", "calls that had to wait for an operation", ()),
    "wait_seconds": ("counter", "time for which calls have waited; waits of several threads add up", ()),
    "failures": ("counter", "operations that have failed", ()),
    "stall_reports": (
        "counter",
        "reports about operations that only some ranks have submitted; rank 0 makes them",
        (),
    ),
    "pending_operations": (
        "gauge",
        "submitted operations that are not done, among the last 4,096 events of the rank",
        (),
    ),
    "oldest_pending_seconds": ("gauge", "age of the oldest of these; 0 without any", ()),
}


class _Collector:
    def __init__(self, rings: list[SharedRing], backends: tuple[str, ...]) -> None:
        self._rings, self._backends = rings, backends

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        made: dict[str, Any] = {
            name: families[kind](f"horovod_{name}", text, labels=["rank", *labels])
            for name, (kind, text, labels) in _METRICS.items()
        }
        for ring in self._rings:
            for name, values in _values(ring).items():
                for labels, value in values.items():
                    made[name].add_metric([str(ring.rank), *([labels] if labels else [])], value)
        yield from made.values()
        info = GaugeMetricFamily(
            "horovod_backend_info", "a backend that the job uses", labels=["backend", "serves"]
        )
        for line in self._backends:
            backend, _, serves = line.partition(" ")
            info.add_metric([backend, serves], 1)
        yield info


_OPERATION_NAMES = {operation.number: name for name, operation in OPERATIONS.items()}
_OPERATION_NAMES |= {8: "add_process_set", 9: "remove_process_set", 10: "create_window", 11: "send"}


def _values(ring: SharedRing) -> dict[str, dict[str, float]]:
    """Of one rank: metric -> label, or "" -> value."""
    counts, pending = ring.counts(), ring.last_events().pending()
    since = min((event.time for event in pending), default=None)
    names = {number: _OPERATION_NAMES.get(number, str(number)) for number in counts.operations}
    single = {
        "rank_up": float(ring.alive() and not ring.ended),
        "batches": counts.batches,
        "batched_requests": counts.requests,
        "waits": counts.waits,
        "wait_seconds": counts.wait_ns / 1e9,
        "failures": counts.failures,
        "stall_reports": counts.stall_reports,
        "pending_operations": len(pending),
        "oldest_pending_seconds": 0.0 if since is None else (time.monotonic_ns() - since) / 1e9,
    }
    return {
        "operations": {names[number]: count for number, count in counts.operations.items()},
        "operation_bytes": {names[number]: size for number, size in counts.bytes.items()},
        "collectives": dict(counts.collectives),
        **{name: {"": value} for name, value in single.items()},
    }


# The connections between the watchers of a job's hosts: the first host's asks, those of the others answer.
#
# The other hosts connect to a listener that rank 0 has opened, and prove a key that only ranks of the job can make, as
# on the job's own connections (_base/auth.py). Each message is signed. Nothing is encrypted.

_PURPOSE = b"watcher"
_LENGTH = struct.Struct("<Q")
_MAC_BYTES = 32
_MOST_BYTES = 64 << 20
_PAUSE_S, _AGAIN_S = 0.25, 1.0
_ANSWER_S = 10.0
_QUIET_S = 3600.0  # no page is open
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
        message: dict[str, Any] = json.loads(body)
        return message


class HostPoller:
    """On the first host: asks the watchers that connect, while a page asks here. Has threads of its own."""

    def __init__(self, listener: socket.socket, key: bytes, figures: JobFigures) -> None:
        self._figures = figures
        listening = AuthenticatedListener(listener, key, _PURPOSE, self._authenticated)
        self._thread = ListenerThread(listening, "hosts")

    def close(self) -> None:
        """Ends the thread that takes connections."""
        self._thread.close()

    def _authenticated(self, connection: socket.socket, handshake: ServerHandshake) -> None:
        threading.Thread(target=self._serve, args=(connection, handshake), daemon=True).start()

    def _serve(self, connection: socket.socket, handshake: ServerHandshake) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                self._ask(handshake.rank, _Channel(connection, handshake.key, b"ask"))
            except (OSError, BootstrapError, ValueError):
                self._figures.lose(handshake.rank)

    def _ask(self, number: int, channel: _Channel) -> None:
        while True:
            if self._figures.host.has_viewers():
                asked = time.monotonic_ns()
                channel.send({"after": self._figures.last_span(number)})
                answer = channel.receive(_ANSWER_S)
                self._figures.take(number, answer, asked, time.monotonic_ns())
            time.sleep(_PAUSE_S)


class HostReporter:
    """On another host: connects to the first host's watcher and answers it. Has a thread of its own."""

    def __init__(self, address: str, key: bytes, number: int, figures: ReportedFigures) -> None:
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
        self._hosts: HostPoller | None = None
        key = bytes.fromhex(config.get("hosts key", ""))
        if config.get("listener", -1) >= 0:
            self._job = JobFigures(self.rings)
            self.figures = self._job.host
            self._hosts = HostPoller(socket.socket(fileno=config["listener"]), key, self._job)
        elif config.get("first host"):
            self.figures = ReportedFigures(self.rings)
            HostReporter(config["first host"], key, config["first rank"], self.figures)
        else:
            self.figures = HostFigures(self.rings)
        self.token = token_of(config["token_file"])
        self.addresses: dict[str, str] = {}
        self._servers: list[GuardedServer] = []

    def serve(self, wait_s: float, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Open the ports; those that are taken are tried for ``wait_s`` seconds, until ``gives_up()``. Raises
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
                gives_up,
            )
            self.addresses["live timeline"] = f"http://{LOOPBACK}:{server.port}/"
        if config["metrics_port"]:
            address = config["metrics_address"]
            server = self._server(
                address, config["metrics_port"], {"/metrics": self._metrics}, until, gives_up
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
        self, address: str, port: int, pages: dict[str, Any], until: float, gives_up: Callable[[], bool]
    ) -> GuardedServer:
        while True:
            try:
                server = GuardedServer(address, 0 if port == ANY_PORT else port, self.token, pages)
                self._servers.append(server)
                return server
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() >= until or gives_up():
                    raise
                time.sleep(_LONG_PAUSE_S)

    def _metrics(self, _: Any) -> tuple[str, bytes]:
        return CONTENT_TYPE, text(self.rings, self._config["backends"])

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
            viewed = self.figures.has_viewers()
            time.sleep(next(pause for share, pause in _PAUSES if new >= share) if viewed else _LONG_PAUSE_S)
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


def _file(name: str, kind: str) -> Callable[[Any], tuple[str, bytes]]:
    body = (Path(__file__).parent / "page" / name).read_bytes()
    return lambda _: (kind, body)


def place_of(facts: dict[str, Any]) -> Place:
    """The place of the rings in start.facts() of a rank, whose descriptors this process has too, or may open."""
    if facts["segment_fd"] >= 0:
        return Place(f"/proc/{facts['pid']}/fd/{facts['segment_fd']}", facts["slots"])
    return Place(file=facts["file"])


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


def _has_ended(pipe: int) -> bool:
    """Whether nobody can write to a pipe any more."""
    poll = select.poll()  # select() takes only descriptors below 1,024
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(0))


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
        viewed = self._watcher.figures.has_viewers()
        if self._asked_at is not None:
            return not viewed or time.monotonic() - self._asked_at > _LAST_LOOK_S
        if self._handed_over_at is None and _has_ended(self._owner):
            self._handed_over_at = time.monotonic()
        if self._handed_over_at is None:
            return False
        since = time.monotonic() - self._handed_over_at
        if since > _HANDED_OVER_S and self._rank.alive():
            # It has begun another job, whose watcher waits for the ports.
            return not viewed or since > VIEWER_TIMEOUT_S
        # It ends, and the other ranks of this host may still run.
        return not viewed and (self._watcher.figures.is_over() or not self._watcher.rings.look())


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
        watcher.serve(SERVER_S, lambda: _has_ended(owner))
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
