"""Programs of the ranks in these tests: operations whose traces are known."""

import os
import signal
import time

import numpy as np

import hvd_core as hvd
from harness import rank as tools
from hvd_core._observe import timeline_files


def every_operation():
    """One of each, with names; then a batch of several tensors, a group, and an operation without a name."""
    size = hvd.size()
    hvd.allreduce(np.ones(3, np.float32), name="one")
    hvd.allgather(np.ones((2, 2), np.int32), name="two")
    hvd.broadcast(np.ones(4), 0, name="three")
    hvd.alltoall(np.ones(size * 2), name="four")
    hvd.reducescatter(np.ones(size * 3), name="five")
    hvd.allreduce(np.ones(3), op=hvd.Adasum, name="six")
    hvd.barrier()
    several_steps(2)
    hvd.grouped_allreduce([np.ones(2), np.ones((1, 3))], name="group")
    hvd.allreduce(np.ones(1))


def several_steps(steps, tensors=12):
    """Steps of the same tensors, so that a known batch comes about."""
    for _ in range(steps):
        handles = [hvd.allreduce_async(np.ones(10), name=f"grad.{i}") for i in range(tensors)]
        for handle in handles:
            hvd.synchronize(handle)


def parts_of_a_job(folder):
    """Two timelines in the middle of a job, and operations before, between and behind them."""
    hvd.allreduce(np.ones(1), name="before")
    hvd.start_timeline(f"{folder}/first.json", mark_cycles=True)
    hvd.allreduce(np.ones(1), name="in the first")
    hvd.stop_timeline()
    found = os.path.exists(f"{folder}/first.json")
    hvd.allreduce(np.ones(1), name="between")
    hvd.start_timeline(f"{folder}/second.json")
    hvd.allreduce(np.ones(1), name="in the second")
    hvd.start_timeline(f"{folder}/third.json")
    hvd.allreduce(np.ones(1), name="in the third")
    hvd.stop_timeline()
    hvd.stop_timeline()
    hvd.allreduce(np.ones(1), name="behind")
    return found


def on_rank_0_alone(path):
    """Only rank 0 makes the calls."""
    if hvd.rank() == 0:
        hvd.start_timeline(path)
    hvd.allreduce(np.ones(1), name="seen")
    if hvd.rank() == 0:
        hvd.stop_timeline()


def late_rank(late, path):
    """Rank `late` submits only when the timeline at `path` shows that the other ranks are ready."""
    others = [rank for rank in range(hvd.size()) if rank != late]
    for i in range(4):
        if hvd.rank() == late:
            _await(path, lambda events, name=f"allreduce.t{i}": _ready(events, name) == len(others))
        hvd.allreduce(np.ones(1), name=f"t{i}")


def _ready(events, name):
    pids = [pid for pid, tensor in timeline_files.tensor_names(events).items() if tensor == name]
    return sum(timeline_files.is_rank_tick(e) and e["pid"] in pids for e in events)


def refused(path):
    """A file that cannot be made, and arguments that make no sense. The job goes on."""
    if hvd.rank() == 0:
        tools.expect(OSError, lambda: hvd.start_timeline(path))
    tools.expect(ValueError, lambda: hvd.start_timeline(""), "file_path is empty")
    tools.expect(TypeError, lambda: hvd.start_timeline(b"x"), "must be a str, found bytes")
    hvd.stop_timeline()
    hvd.allreduce(np.ones(1), name="after")


def killed_while_the_other_waits(victim, path=None):
    """Rank `victim` takes part in one operation, submits another, and dies by SIGKILL."""
    tools.ignore_the_launcher()
    hvd.allreduce(np.ones(5, np.float32), name="together")
    handle = hvd.allreduce_async(np.ones(7), name=f"last of {hvd.rank()}")
    if hvd.rank() == victim:
        tools.await_told("waits")
        if path:
            name = f"allreduce.last of {victim}"
            _await(path, lambda events: name in timeline_files.tensor_names(events).values())
        os.kill(os.getpid(), signal.SIGKILL)
    tools.tell("waits")
    tools.expect(hvd.HorovodInternalError, lambda: hvd.synchronize(handle))


def _await(path, found, seconds=60):
    end = time.monotonic() + seconds
    while not (os.path.exists(path) and found(timeline_files.load(path))):
        assert time.monotonic() < end, f"not found in {path} within {seconds} s"
        time.sleep(0.01)


def one_rank_fails_a_call():
    """A mistake on rank 0 fails the call of the others too."""
    wrong = np.ones(2 + hvd.rank())
    tools.expect(hvd.HorovodInternalError, lambda: hvd.allreduce(wrong, name="differs"))


def ends_in_order():
    """Nothing goes wrong."""
    hvd.allreduce(np.ones(1), name="fine")


def rings_in_memory(operations=1):
    """The rings of this host's ranks, read from the segment as another process would."""
    from hvd_core._runtime import current_job

    for _ in range(operations):
        hvd.allreduce(np.ones(1), name="shared")
    world = current_job.world()
    tools.meet("submitted")
    memory = os.pread(world.segment_fd, world.segment_bytes, 0)
    tools.meet("read")
    return [memory[at : at + (252 << 10)] for at in _rings(memory)]


def _rings(memory):
    at = memory.find(b"hvdring1")
    while at >= 0:
        yield at
        at = memory.find(b"hvdring1", at + 8)
