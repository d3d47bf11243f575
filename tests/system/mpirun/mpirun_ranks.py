"""The programs of the ranks that an mpirun starts: one function each, named on the command line, with its arguments
behind."""

import ctypes
import glob
import os
import signal
import sys
import time

import numpy as np

import hvd_core as hvd


def _sum(count):
    return hvd.allreduce(np.full(count, hvd.rank() + 1.0, np.float32), op=hvd.Sum)


def report_variables(show_secret=""):
    """With the number of processes whose command line holds the secret."""
    hvd.init()
    total = _sum(10)
    secret = os.environ["HOROVOD_SECRET_KEY"]
    lines = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                lines.append(file.read())
        except OSError:
            pass
    seen = sum(secret.encode() in line for line in lines)
    values = (os.environ.get("MINE"), os.environ["HOROVOD_FUSION_THRESHOLD"])
    print(total[0], hvd.rank(), hvd.size(), *values, seen)
    if show_secret:
        print("secret", secret, flush=True)


def report_place():
    hvd.init()
    total = _sum(10)
    store = os.environ.get("HOROVOD_STORE", "none")
    place = (hvd.rank(), hvd.local_rank(), hvd.cross_rank(), os.uname().nodename)
    print("sum", total[0], *place, store, flush=True)


def report_cores():
    hvd.init()
    total = _sum(1000)
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    place = (hvd.rank(), hvd.local_rank(), hvd.size(), cores)
    values = (os.environ.get("SCRIPT"), os.environ.get("HOROVOD_FUSION_THRESHOLD"), os.getuid())
    print("sum", total[0], total[-1], *place, *values, flush=True)


def sleep_after_a_sum():
    hvd.init()
    hvd.allreduce(np.ones(1))
    print("up", flush=True)
    time.sleep(600)


def rank_1_ends(how, code="0"):
    """In the middle of the others' work."""
    hvd.init()
    # mpirun sends it to the others at once, and they have something to say.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for step in range(400):
        if hvd.rank() == 1 and step == 20:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raise":
                raise RuntimeError("rank 1's own fault")
            if how == "exit":
                sys.exit(int(code))
            ctypes.string_at(0)
        hvd.allreduce(np.ones(1000, np.float32))
    print("went on", flush=True)


def print_why_init_fails():
    try:
        hvd.init()
    except Exception as error:
        print(error, flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
