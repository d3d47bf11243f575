"""Programs of the ranks in the tests of the watcher: operations whose counts are known."""

import urllib.error
import urllib.request

import numpy as np

import hvd_core as hvd
from harness import rank as tools
from hvd_core import current_job
from hvd_core.errors import HorovodInternalError
from hvd_core.observe.watch import metrics
from hvd_core.observe.watch.shared_rings import Place, SharedRings


def place():
    """Of the rings of this host, for this process."""
    world = current_job.world()
    return Place(f"/proc/self/fd/{world.segment_fd}", world.local_size)


def samples(text):
    """{(name, labels without the rank): {rank: value}} of metrics in Prometheus' text format."""
    from prometheus_client.parser import text_string_to_metric_families

    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "rank"}
            key = (sample.name, *(labels[k] for k in sorted(labels)))
            found.setdefault(key, {})[sample.labels.get("rank")] = sample.value
    return found


def counted_operations():
    """Known operations, a wait of rank 0, and a failure. Returns what the metrics of the host say then."""
    for _ in range(3):
        hvd.allreduce(np.ones(10, np.float32), name="one")
    hvd.allgather(np.ones((2, 2)), name="two")
    handles = [hvd.allreduce_async(np.ones(5), name=f"grad.{i}") for i in range(8)]
    for handle in handles:
        hvd.synchronize(handle)
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(1), name="waited for")
        tools.tell("submitted")
        hvd.synchronize(handle)
    else:
        tools.await_told("submitted")
        hvd.allreduce(np.ones(1), name="waited for")
    tools.expect(HorovodInternalError, lambda: hvd.allreduce(np.ones(hvd.rank() + 1), name="unequal"))
    tools.meet("counted")
    rings = SharedRings(place())
    text = metrics.text(rings, ["shm within a host"]).decode()
    rings.close()
    tools.meet("read")
    return text


def served_until_told():
    """The program of a rank whose watcher a test asks: it has made operations, and goes on until the mark is there."""
    for _ in range(4):
        hvd.allreduce(np.ones(2), name="served")
    tools.tell("ready")
    tools.await_told("asked", 120)


def ask(address, token=None, headers=None):
    """(status, headers, text) of an answer, whichever it is."""
    request = urllib.request.Request(address, headers=headers or {})
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None
