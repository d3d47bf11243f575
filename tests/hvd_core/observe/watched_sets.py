"""Programs of ranks whose process sets the watcher sees."""

import time

import numpy as np

import hvd_core as hvd
import watched_ranks as ranks
from harness import rank as tools
from hvd_core._observe.watch.job_figures import HostFigures
from hvd_core._observe.watch.shared_rings import SharedRings


def watched():
    """The figures of this host, which read events from now on."""
    figures = HostFigures(SharedRings(ranks.place()))
    figures.for_page(0)
    figures.read()
    return figures


def late_steps_after_names_of_one_rank():
    """What a page gets when rank 0 has used names that rank 1 does not know, and rank 1 is the late one."""
    alone = hvd.add_process_set([0])
    figures = watched()
    if hvd.rank() == 0:
        for name in ("first", "second"):
            hvd.allreduce(np.ones(1), name=name, process_set=alone)
    ranks.late_steps(6)
    tools.meet("done", 120)
    figures.read()
    return figures.for_page(0)


def changed_sets():
    """(what a page gets, pending events of each rank) when process sets were added and removed."""
    figures = watched()
    sets = [hvd.add_process_set(members) for members in ([0], [1])]
    assert hvd.remove_process_set(sets[0])
    hvd.allreduce(np.ones(1), name="after")
    tools.meet("done", 120)
    figures.read()
    seen = figures.for_page(0)
    pending = [
        [event.name for event in ring.last_events().pending()] for ring in SharedRings(ranks.place()).look()
    ]
    tools.meet("looked", 120)  # before the first rank waits for the end of the test
    return [rank["pending"] for rank in seen["ranks"]], pending


def stalls_of_three_ranks():
    """The stalls that a page shows on rank 0: of a process set of ranks 0 and 1, and of many operations of rank 2."""
    both = hvd.add_process_set([0, 1])
    figures = watched()
    if hvd.rank() < 2:
        hvd.allreduce(np.ones(1), name="begun", process_set=both)
    handles = []
    if hvd.rank() == 0:
        handles.append(hvd.allreduce_async(np.ones(1), name="in the set", process_set=both))
    if hvd.rank() != 1:
        handles += [hvd.allreduce_async(np.ones(1), name=f"of two/{i}") for i in range(7)]
    tools.meet("submitted", 120)
    stalls = []
    if hvd.rank() == 0:
        end = time.monotonic() + 120
        while len(stalls) < 8 and time.monotonic() < end:
            figures.read()
            stalls = figures.for_page(0)["stalls"]
            time.sleep(0.05)
        tools.tell("seen")
    tools.await_told("seen", 130)
    if hvd.rank() == 1:
        handles.append(hvd.allreduce_async(np.ones(1), name="in the set", process_set=both))
        handles += [hvd.allreduce_async(np.ones(1), name=f"of two/{i}") for i in range(7)]
    for handle in handles:
        hvd.synchronize(handle)
    return {stall["name"]: (stall["submitted"], stall["missing"]) for stall in stalls}
