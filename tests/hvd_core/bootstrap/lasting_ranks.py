"""What the ranks of test_rank0_store.py do; the function and a folder are named on the command line."""

import atexit
import os
import sys
import time
from pathlib import Path

import numpy as np

import hvd_core as hvd
from hvd_core._bootstrap.launchers.identity import identify

FOLDER = Path(sys.argv[2] if __name__ == "__main__" else ".")


def note(name):
    (FOLDER / name).write_text(str(os.getpid()))


def wait_for(name):
    while not (FOLDER / name).exists():
        time.sleep(0.01)


def others_begin_again():
    """Rank 0 is a job by itself and ends; the others are in an init() that begins then."""
    rank = identify(os.environ).rank
    part = [0] if rank == 0 else [1, 2]
    hvd.init(comm=part)
    hvd.allreduce(np.ones(2), name="first")
    hvd.shutdown()
    if rank == 0:
        wait_for("begun.1")  # the store's process does not wait for ranks that have not come yet
        wait_for("begun.2")
        atexit.register(note, "ends")
        return
    note(f"begun.{rank}")
    wait_for("ends")
    hvd.init(comm=part)
    total = hvd.allreduce(np.ones(2), op=hvd.Sum, name="second")
    print(f"rank {rank}: {total[0]:g}", flush=True)


def one_ends_first():
    """Rank 1 ends in good order, and the others go on after that."""
    hvd.init()
    rank = hvd.rank()
    hvd.allreduce(np.ones(2))
    hvd.shutdown()
    if rank == 1:
        note("first")
        return
    wait_for("first")
    while Path(f"/proc/{(FOLDER / 'first').read_text()}/cmdline").exists():
        state = Path(f"/proc/{(FOLDER / 'first').read_text()}/stat").read_text()
        if state.rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.01)
    time.sleep(0.2)  # the launcher would end this process now
    print(f"rank {rank}: lives", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
