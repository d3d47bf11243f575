"""Programs in which rank 0 or a leader is stopped by a signal, for test_silent_root.py. Each rank returns the text of its
error."""

import os
import signal
import time
from pathlib import Path

import numpy as np

import hvd_core as hvd
from harness.rank import await_told, tell


def x():
    return np.ones(4, np.float32)


def state_of(pid):
    """The kernel's letter for the state of a process: 'T' if it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stop(rank=0, by=1):
    """Returns on each rank when `rank` is stopped by rank `by`; on `rank` when it goes on. The result: its process id."""
    if hvd.rank() == rank:
        Path("pid").write_text(str(os.getpid()))
        tell("pid")
        await_told("stopped")
        return os.getpid()
    await_told("pid")
    pid = int(Path("pid").read_text())
    if hvd.rank() == by:
        os.kill(pid, signal.SIGSTOP)
        while state_of(pid) != "T":
            time.sleep(0.01)
        tell("stopped")
    await_told("stopped")
    return pid


def error_of(call):
    try:
        call()
    except hvd.HorovodInternalError as error:
        return str(error)
    return "went on"


def before_an_operation():
    root = stop()
    try:
        return root, error_of(lambda: hvd.allreduce(x(), name="a"))
    finally:
        if hvd.rank() == 1:
            os.kill(root, signal.SIGCONT)


def while_the_others_join():
    root = stop()
    try:
        return root, error_of(hvd.join if hvd.rank() else lambda: hvd.allreduce(x(), name="a"))
    finally:
        if hvd.rank() == 1:
            os.kill(root, signal.SIGCONT)


def of_a_leader():
    """Rank 2 stops its leader, rank 1."""
    leader = stop(rank=1, by=2)
    try:
        return leader, error_of(lambda: hvd.allreduce(x(), name="a"))
    finally:
        if hvd.rank() == 2:
            os.kill(leader, signal.SIGCONT)


def and_goes_on():
    """Rank 1 lets rank 0 go on when its own log has the report."""
    root = stop()
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(x(), name="a")
        log = Path(os.readlink("/proc/self/fd/2"))
        while "has not answered" not in log.read_text():
            time.sleep(0.02)
        os.kill(root, signal.SIGCONT)
        return hvd.synchronize(handle).tolist()
    return hvd.allreduce(x(), name="a").tolist()
