"""What the ranks of the tests with Slurm do; the function is named on the command line."""

import os
import signal
import sys

import numpy as np

import hvd_core as hvd


def reduce_three_times():
    """Two whole jobs and one of a half of the ranks: the process manager is asked once only."""
    for _ in range(2):
        hvd.init()
        total = hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum)
        levels = "shm x tcp" in str(hvd.backend_report()).splitlines()[0]
        place = (
            hvd.rank(),
            hvd.size(),
            hvd.local_rank(),
            hvd.local_size(),
            hvd.cross_rank(),
            hvd.cross_size(),
        )
        hvd.shutdown()
    half = [place[0] & ~1, place[0] | 1]
    hvd.init(comm=half)
    pair = hvd.allreduce(np.full(2, float(place[0])), op=hvd.Sum)
    hvd.shutdown()
    print("place", *place, "sum", *total, "pair", *pair, levels, "mpi4py" in sys.modules, flush=True)


def ask_for_mpi():
    """MPI after init(), which has used srun's process manager: an error, where Slurm would end the job."""
    from horovod.common import exports

    hvd.init()
    try:
        exports.mpi_threads_supported()
    except ValueError as error:
        print("told:", error, flush=True)
    hvd.barrier()


def mpi_first():
    """MPI before init(): the ranks find each other over MPI."""
    from mpi4py import MPI

    from horovod.common import exports

    hvd.init()
    assert exports.mpi_threads_supported()
    print(
        "both",
        hvd.size(),
        MPI.COMM_WORLD.Get_size(),
        int(hvd.allreduce(np.ones(1), op=hvd.Sum)[0]),
        flush=True,
    )


def die_in_training():
    """Rank 3 is killed; the others say so."""
    hvd.init()
    hvd.allreduce(np.ones(1), name="first")
    if hvd.rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        hvd.allreduce(np.ones(1), name="second")
    except hvd.HorovodInternalError as error:
        print("survivor", error, flush=True)
        sys.exit(7)


def only_init():
    hvd.init()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
