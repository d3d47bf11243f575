"""The metrics of a host's ranks, in Prometheus' text format (docs/metrics.md).

Values are made when they are asked for, from counters that the engine keeps anyway. Labels have few values: ranks of this
host, operations, collectives of backends. Needs prometheus-client, the extra ``metrics``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from hvd_core._observe.watch.shared_rings import SharedRing, SharedRings
from hvd_core.types import OPERATIONS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text(rings: SharedRings, backends: Iterable[str] = ()) -> bytes:
    """All metrics. ``backends``: what the plan says, such as "shm within a host"."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(rings.look(), tuple(backends)))
    return generate_latest(registry)


class _Collector:
    def __init__(self, rings: list[SharedRing], backends: tuple[str, ...]) -> None:
        self._rings, self._backends = rings, backends

    def collect(self) -> Iterator[object]:
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import GaugeMetricFamily as Gauge

        names = {operation.number: name for name, operation in OPERATIONS.items()}
        names |= {8: "add_process_set", 9: "remove_process_set", 10: "create_window", 11: "send"}
        up = Gauge("horovod_rank_up", "1: the rank's process runs", labels=["rank"])
        operations = Counter(
            "horovod_operations", "operations that the rank has submitted", labels=["rank", "operation"]
        )
        moved = Counter(
            "horovod_operation_bytes",
            "bytes of the tensors of these operations",
            labels=["rank", "operation"],
        )
        batches = Counter("horovod_batches", "batches that the rank has got to carry out", labels=["rank"])
        batched = Counter("horovod_batched_requests", "requests in these batches", labels=["rank"])
        collectives = Counter(
            "horovod_collectives",
            "collectives that a backend has begun, and copies of the engine",
            labels=["rank", "name"],
        )
        waits = Counter("horovod_waits", "calls that had to wait for an operation", labels=["rank"])
        waited = Counter(
            "horovod_wait_seconds",
            "time for which calls have waited; waits of several threads add up",
            labels=["rank"],
        )
        failures = Counter("horovod_failures", "operations that have failed", labels=["rank"])
        stalls = Counter(
            "horovod_stall_reports",
            "reports about operations that only some ranks have submitted; rank 0 makes them",
            labels=["rank"],
        )
        pending = Gauge(
            "horovod_pending_operations",
            "submitted operations that are not done, among the last 4,096 events of the rank",
            labels=["rank"],
        )
        oldest = Gauge(
            "horovod_oldest_pending_seconds", "age of the oldest of these; 0 without any", labels=["rank"]
        )
        info = Gauge("horovod_backend_info", "a backend that the job uses", labels=["backend", "serves"])
        for ring in self._rings:
            rank, counts = str(ring.rank), ring.counts()
            up.add_metric([rank], float(ring.alive() and not ring.ended))
            for number, count in counts.operations.items():
                operation = names.get(number, str(number))
                operations.add_metric([rank, operation], count)
                moved.add_metric([rank, operation], counts.bytes[number])
            batches.add_metric([rank], counts.batches)
            batched.add_metric([rank], counts.requests)
            for name, count in counts.collectives.items():
                collectives.add_metric([rank, name], count)
            waits.add_metric([rank], counts.waits)
            waited.add_metric([rank], counts.wait_ns / 1e9)
            failures.add_metric([rank], counts.failures)
            stalls.add_metric([rank], counts.stall_reports)
            open_ = ring.last_events().pending()
            pending.add_metric([rank], len(open_))
            since = min((event.time for event in open_), default=None)
            oldest.add_metric([rank], 0.0 if since is None else (time.monotonic_ns() - since) / 1e9)
        for line in self._backends:
            backend, _, serves = line.partition(" ")
            info.add_metric([backend, serves], 1)
        yield from (up, operations, moved, batches, batched, collectives, waits, waited, failures, stalls)
        yield from (pending, oldest, info)
