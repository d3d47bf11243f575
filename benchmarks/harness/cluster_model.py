"""An alpha-beta model of data-parallel training: a collective's time, a step's time, by pure functions.

A message of N bytes over a link takes alpha + N / beta. A collective of n ranks on hosts of L ranks is the fastest of
NCCL's algorithms and protocols, with the latencies and the factors of bandwidth by which NCCL 2.8 itself chooses
(src/graph/tuning.cc, ncclTopoTuneModel). `flat`: one collective over all ranks, whose ring enters and leaves each
host once. `hierarchical`: reducescatter within each host, L lanes between the hosts that share the host's network
bandwidth, allgather within each host, as hvd_core/engine/dataplane/hierarchical.cc does it. Before a batch starts, all
ranks agree on it: an entry of the log is with the last rank after two hops per level of the control tree.

A step computes forward, then backward, in which the gradients appear one by one; batches form as in
hvd_core/engine/agreement/fusion.cc, and follow each other on one stream. Not modelled: differences between ranks, other
traffic of a network, the cost of reading data, the share of a device that a collective takes from the computation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Bytes at which a batch stops to wait for more, and the longest batch: engine/agreement/fusion.{cc,h}.
COALESCE_BYTES, COALESCE_S, THRESHOLD = 256 << 10, 1e-3, 128 << 20
_FAN_OUT = 8


@dataclass(frozen=True)
class Protocol:
    """One of NCCL's ways. Microseconds; `share` of the link's bandwidth."""

    tree: bool
    base_us: float
    local_us: float
    cross_us: float
    share: float


# tuning.cc: baseLat, hwLat for NVLink and for the network; LL's intra-host latency counts 1.8 times with several hosts.
PROTOCOLS = (
    Protocol(False, 3.6, 0.47 * 1.8, 2.7, 1 / 4),  # ring, LL
    Protocol(False, 8.4, 3.4, 9.6, 1.0),  # ring, simple
    Protocol(True, 4.4, 0.52 * 1.8, 5.0, 0.9 / 3.8),  # tree, LL
    Protocol(True, 0.0, 28.0, 50.0, 0.9),  # tree, simple
)


@dataclass(frozen=True)
class Cluster:
    """``local_gb_s``: bus bandwidth of a collective within a host. ``cross_gb_s``: of a host's network. ``hop_us``: a
    control message to a neighbour, with the work there. ``batch_us``: what the engine adds to a batch.
    ``tensor_us``: to a tensor."""

    name: str
    per_host: int
    local_gb_s: float
    cross_gb_s: float
    hop_us: float
    batch_us: float
    tensor_us: float
    source: str


@dataclass(frozen=True)
class Model:
    """``gradients``: bytes, in the order in which the backward makes them. ``compute_s``: of a step on one device."""

    name: str
    gradients: Sequence[int]
    compute_s: float
    source: str


def allreduce_s(nbytes: float, ranks: int, cluster: Cluster, hierarchical: bool) -> float:
    """Seconds of one allreduce."""
    if ranks == 1:
        return 0.0
    hosts = math.ceil(ranks / cluster.per_host)
    within = min(ranks, cluster.per_host)
    if hosts == 1 or within == 1 or not hierarchical:
        return _collective_s(nbytes, hosts, within, 2, cluster)
    half = _collective_s(nbytes, 1, within, 1, cluster)
    return 2 * half + _collective_s(nbytes / within, hosts, 1, 2, cluster, lanes=within)


def _collective_s(
    nbytes: float, hosts: int, within: int, passes: int, cluster: Cluster, lanes: int = 1
) -> float:
    """Of the fastest protocol. ``passes``: 2 for an allreduce, 1 for one of its halves. ``lanes``: that share
    the network."""
    ranks = hosts * within
    bandwidth = cluster.local_gb_s if hosts == 1 else cluster.cross_gb_s / lanes
    if within > 1:
        bandwidth = min(bandwidth, cluster.local_gb_s)
    found = []
    for p in PROTOCOLS:
        if p.tree and (passes == 1 or hosts == 1):
            continue
        if p.tree:
            latency = p.base_us + passes * ((within - 1) * p.local_us + math.log2(hosts) * p.cross_us)
            moved = passes * nbytes
        else:
            crossing = passes * (hosts - 1)
            latency = p.base_us + crossing * p.cross_us + (passes * (ranks - 1) - crossing) * p.local_us
            moved = passes * (ranks - 1) / ranks * nbytes
        found.append(latency * 1e-6 + moved / (bandwidth * p.share * 1e9))
    return min(found)


def agreement_s(ranks: int, cluster: Cluster) -> float:
    """From the last rank's submission to the last rank's entry of the log."""
    hosts, levels, reached = math.ceil(ranks / cluster.per_host), 0, 1
    while reached < hosts:  # leaders below leaders
        levels += 1
        reached += _FAN_OUT**levels
    return 2 * (levels + (cluster.per_host > 1)) * cluster.hop_us * 1e-6


def batches(ready: Sequence[tuple[float, int]], overlap: bool) -> list[tuple[float, int, int]]:
    """(time, bytes, tensors) of the batches that form from gradients that are ready at these times, in this order."""
    found: list[tuple[float, int, int]] = []
    waiting: list[tuple[float, int]] = []

    def leave(now: float) -> None:
        nbytes = tensors = 0
        for _, size in waiting:
            if tensors and nbytes + size > THRESHOLD:
                found.append((now, nbytes, tensors))
                nbytes = tensors = 0
            nbytes, tensors = nbytes + size, tensors + 1
        if tensors:
            found.append((now, nbytes, tensors))
        waiting.clear()

    if not overlap:
        end = ready[-1][0]
        ready = [(end, size) for _, size in ready]
    for now, size in ready:
        if waiting and now > waiting[0][0] + COALESCE_S:
            leave(waiting[0][0] + COALESCE_S)
        waiting.append((now, size))
        if overlap and sum(s for _, s in waiting) >= COALESCE_BYTES:
            leave(now)
    if waiting:
        leave(waiting[-1][0])  # the optimizer waits for the last one
    return found


def step_s(model: Model, ranks: int, cluster: Cluster, hierarchical: bool, overlap: bool) -> float:
    """Seconds of a step on so many ranks."""
    if ranks == 1:
        return model.compute_s
    # A backward takes twice a forward; its time is taken to be even over the gradients.
    forward, count = model.compute_s / 3, len(model.gradients)
    backward = model.compute_s - forward
    ready = [(forward + backward * (number + 1) / count, size) for number, size in enumerate(model.gradients)]
    agreed, free = agreement_s(ranks, cluster), 0.0
    for now, nbytes, tensors in batches(ready, overlap):
        cost = (cluster.batch_us + tensors * cluster.tensor_us) * 1e-6
        free = max(free, now + agreed) + cost + allreduce_s(nbytes, ranks, cluster, hierarchical)
    return max(model.compute_s, free)


def efficiency(model: Model, ranks: int, cluster: Cluster, hierarchical: bool, overlap: bool) -> float:
    """One device's time over a step's."""
    return model.compute_s / step_s(model, ranks, cluster, hierarchical, overlap)


def measured_curve(points: dict[int, float]) -> Callable[[float], float]:
    """Seconds of an allreduce by its bytes, from measured ones: alpha + N / beta between neighbouring sizes."""
    sizes = sorted(points)

    def seconds(nbytes: float) -> float:
        if nbytes <= sizes[0]:
            return points[sizes[0]]
        right = next((s for s in sizes if s >= nbytes), sizes[-1])
        left = sizes[max(0, sizes.index(right) - 1)]
        slope = (points[right] - points[left]) / (right - left)
        return points[left] + (nbytes - left) * slope

    return seconds


def by_footprint(
    curves: dict[int, Callable[[float], float]],
) -> Callable[[float], Callable[[float], float]]:
    """The curve of a step that goes over so many bytes again and again, from curves measured over some amounts of
    memory: a step that fits into caches is faster. Between two amounts by the logarithm."""
    amounts = sorted(curves)

    def curve_of(total: float) -> Callable[[float], float]:
        if total <= amounts[0]:
            return curves[amounts[0]]
        if total >= amounts[-1]:
            return curves[amounts[-1]]
        right = next(a for a in amounts if a >= total)
        left = amounts[amounts.index(right) - 1]
        share = math.log(total / left) / math.log(right / left)
        return lambda nbytes: (1 - share) * curves[left](nbytes) + share * curves[right](nbytes)

    return curve_of


def list_s(sizes: Sequence[int], curve: Callable[[float], float], tensor_s: float, compute_s: float) -> float:
    """Seconds of a step on two ranks that share their cores with the engine: computation and communication add up."""
    total = compute_s
    waiting = 0
    for size in sizes:
        waiting += size
        if waiting >= COALESCE_BYTES:
            total += curve(waiting)
            waiting = 0
    return total + (curve(waiting) if waiting else 0.0) + tensor_s * len(sizes)
