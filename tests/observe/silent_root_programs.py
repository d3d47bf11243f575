"""Programs in which rank 0 is stopped by a signal, for test_silent_root.py. Each rank returns the text of its error."""

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


def stop_rank_0():
    """Returns on each rank when rank 0 is stopped; on rank 0 when it goes on. The result: its process id."""
    if hvd.rank() == 0:
        Path("pid").write_text(str(os.getpid()))
        tell("pid")
        await_told("stopped")
        return os.getpid()
    await_told("pid")
    root = int(Path("pid").read_text())
    if hvd.rank() == 1:
        os.kill(root, signal.SIGSTOP)
        while state_of(root) != "T":
            time.sleep(0.01)
        tell("stopped")
    await_told("stopped")
    return root


def error_of(call):
    try:
        call()
    except hvd.HorovodInternalError as error:
        return str(error)
    return "went on"


def before_an_operation():
    root = stop_rank_0()
    try:
        return root, error_of(lambda: hvd.allreduce(x(), name="a"))
    finally:
        if hvd.rank() == 1:
            os.kill(root, signal.SIGCONT)


def while_the_others_join():
    root = stop_rank_0()
    try:
        return root, error_of(hvd.join if hvd.rank() else lambda: hvd.allreduce(x(), name="a"))
    finally:
        if hvd.rank() == 1:
            os.kill(root, signal.SIGCONT)


def and_goes_on():
    """Rank 1 lets rank 0 go on when its own log has the report."""
    root = stop_rank_0()
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(x(), name="a")
        reported = Path("reported")
        while not reported.exists() or "has not answered" not in reported.read_text():
            time.sleep(0.02)
        os.kill(root, signal.SIGCONT)
        return hvd.synchronize(handle).tolist()
    return hvd.allreduce(x(), name="a").tolist()
