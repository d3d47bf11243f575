"""Programs of the ranks in the tests of the watcher: operations whose counts are known."""

import json
import os
import signal
import time
import urllib.error
import urllib.request
from unittest import mock

import numpy as np

import hvd_core as hvd
from harness import rank as tools
from hvd_core._observe.watch import watcher
from hvd_core._observe.watch.shared_rings import Place, SharedRings
from hvd_core._runtime import current_job
from hvd_core.errors import HorovodInternalError


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
        tools.await_told("submitted", 120)
        hvd.allreduce(np.ones(1), name="waited for")
    tools.expect(HorovodInternalError, lambda: hvd.allreduce(np.ones(hvd.rank() + 1), name="unequal"))
    tools.meet("counted", 120)
    rings = SharedRings(place())
    text = watcher.text(rings, ["shm within a host"]).decode()
    tools.meet("read", 120)
    return text


def served_until_told():
    """The program of a rank whose watcher a test asks: it has made operations, and goes on until the mark is there."""
    for _ in range(4):
        hvd.allreduce(np.ones(2), name="served")
    tools.tell("ready")
    tools.await_told("asked", 300)


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


def late_steps(steps, may_begin=lambda step: None):
    """Steps of three gradients, which rank 1 submits after rank 0."""
    for step in range(steps):
        if hvd.rank() == 1:
            tools.await_told(f"step {step}", 120)
            may_begin(step)
        handles = [hvd.allreduce_async(np.ones(1000, np.float32), name=f"grad.{i}") for i in range(3)]
        if hvd.rank() == 0:
            tools.tell(f"step {step}")
        for handle in handles:
            hvd.synchronize(handle)


def seen_by_a_page():
    """What a page would get on rank 0, of steps, a late rank and a stall."""
    from hvd_core._observe.watch.job_figures import HostFigures

    figures = HostFigures(SharedRings(place()))
    figures.for_page(0)
    figures.read()

    def rank_0_waits_for_20_ms(step):
        """In one of the steps."""
        while step == 5 and not figures.for_page(0)["ranks"][0]["waiting"]:
            figures.read()
        time.sleep(0.02 if step == 5 else 0)

    late_steps(10, rank_0_waits_for_20_ms)
    tools.meet("steps are done", 120)
    figures.read()
    steps = figures.for_page(0)
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(1), name="stalled")
        end = time.monotonic() + 60
        while not (stalls := figures.for_page(steps["last"])["stalls"]) and time.monotonic() < end:
            figures.read()
            time.sleep(0.05)
        tools.tell("stall is seen")
        hvd.synchronize(handle)
        return steps, stalls
    tools.await_told("stall is seen", 120)
    hvd.allreduce(np.ones(1), name="stalled")
    return steps, []


def more_events_than_a_ring_holds():
    """What a page gets when the watcher could not read for a while."""
    from hvd_core._observe.watch import job_figures

    with mock.patch.object(
        job_figures, "VIEWER_TIMEOUT_S", 1000.0
    ):  # the page stays open, however long this takes
        figures = job_figures.HostFigures(SharedRings(place()))
        figures.for_page(0)
        figures.read()
        for _ in range(3000):
            hvd.allreduce(np.ones(1), name="often")
        figures.read()
        late_steps(3)
        tools.meet("done", 120)
        figures.read()
        return figures.for_page(0)


def train_until_told(path):
    """Steps with a late rank until the test says so; rank 1 dies when the test asks for it. Writes this process' number
    and where its rings are."""
    hvd.allreduce(np.ones(1), name="warm-up")
    if hvd.rank() == 1:
        with open(path, "w", encoding="utf-8") as file:
            json.dump([os.getpid(), current_job.world().segment_fd], file)
        os.rename(path, f"{path}.whole")
    while True:
        if hvd.rank() == 1:
            if tools.is_told("die"):
                hvd.allreduce_async(np.ones(3), name="never done")
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
        handles = [
            hvd.allreduce_async(np.ones(25_000, np.float32), name=f"layer{i}.weight") for i in range(24)
        ]
        time.sleep(0.004)
        for handle in handles:
            hvd.synchronize(handle)
        stop = hvd.allreduce(np.array([float(tools.is_told("stop"))]), name="stop")
        if stop[0] > 0:
            return


STEP_TENSORS = 100


def a_thousand_tensors_a_second():
    """Steps of named tensors, at most ten a second, until the test says that it has seen enough."""
    stop = np.zeros(1)
    while stop[0] == 0:
        begin = time.monotonic()
        handles = [hvd.allreduce_async(np.ones(4), name=f"t{i}") for i in range(STEP_TENSORS)]
        for handle in handles:
            hvd.synchronize(handle)
        stop = hvd.allreduce(np.array([float(tools.is_told("stop"))]), name="stop")
        time.sleep(max(0.0, begin + 0.1 - time.monotonic()))


def aborted_and_begun_again():
    """A job that ends by an abort, and another one in the same processes, which goes on until the mark is there."""
    if hvd.rank() == 0:
        tools.expect(HorovodInternalError, lambda: hvd.allreduce(np.ones(2), name="only here"), "stalled")
    else:
        tools.await_told("aborted", 300)
    tools.tell("aborted")
    hvd.shutdown()
    hvd.init()
    hvd.allreduce(np.ones(2), name="again")
    tools.await_told("asked", 300)
