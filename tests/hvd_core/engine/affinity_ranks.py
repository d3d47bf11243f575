"""What ranks report about the cores of their threads; see test_affinity.py."""

import contextlib
import json
import os
import threading

import numpy as np

import hvd_core as hvd
from hvd_core._runtime import runtime
from star_backend import StarBackend, StarCommunicator


def _threads():
    """(name, cores) of every thread of this process, as the kernel tells it."""
    found = []
    for tid in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{tid}/status") as file:
                fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        except OSError:
            continue  # a thread that has just ended
        found.append((fields["Name"], fields["Cpus_allowed_list"]))
    return found


def report():
    """The threads before, in and after the engine's life, and the cores that the ranks told each other."""
    said = {"inherited": _threads()[0][1]}
    hvd.init()
    said["rank"], said["local_rank"] = hvd.rank(), hvd.local_rank()
    said["cores"] = [sorted(mask) for mask in runtime.world().local_cores]
    said["started"] = _threads()
    handles = [hvd.allreduce_async(np.ones(n), name=f"t{n}") for n in (1, 1000, 300_000)]
    hvd.barrier()
    for handle in handles:
        hvd.synchronize(handle)
    user = threading.Thread(target=lambda: hvd.allgather(np.ones(3), name="from a thread of the caller's"))
    user.start()
    user.join()
    said["worked"] = _threads()
    hvd.shutdown()
    said["ended"] = _threads()
    return said


def print_report():
    # One write, which launchers do not mix with others.
    os.write(1, ("REPORT " + json.dumps(report()) + "\n").encode())


_seen = {}


class _Communicator(StarCommunicator):
    def __init__(self, *args):
        for tid in os.listdir("/proc/self/task"):
            # The thread may have just ended.
            with contextlib.suppress(OSError), open(f"/proc/self/task/{tid}/comm") as file:
                # By thread: one that made the communicator before may still be listed.
                _seen.setdefault(file.read().strip(), {})[tid] = sorted(os.sched_getaffinity(int(tid)))
        super().__init__(*args)


class _Watchful(StarBackend):
    name = "watchful"
    communicator = _Communicator


def check_where_communicators_are_made():
    _seen.clear()
    given = sorted(os.sched_getaffinity(0))
    hvd.init(backend=_Watchful)
    for rank in (0, 1):
        hvd.add_process_set([rank])
    rank = hvd.rank()
    hvd.shutdown()
    assert list(_seen["hvd-engine"].values())[-1] == given[rank : rank + 1], _seen
    assert list(_seen["hvd-create"].values()) == [given] * 2, _seen
