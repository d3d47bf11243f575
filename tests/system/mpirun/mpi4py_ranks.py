"""The programs of ranks that use mpi4py beside Horovod: one function each, named on the command line, with its
arguments behind."""

import os
import sys
import time
from pathlib import Path

from horovod.common import exports
from horovod.common.basics import HorovodBasics


def _front_end(name):
    """(API, function that makes a tensor of ones). "numpy" has the same questions and operations as "torch", whose
    import would take most of the time."""
    if name == "torch":
        from torch import ones

        import horovod.torch as hvd

        return hvd, ones
    from numpy import ones

    import hvd_core as hvd

    for question in ("mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_built"):
        setattr(hvd, question, getattr(exports, question))
    return hvd, ones


def recipe(front_end, backend):
    """The recipe of Horovod's documentation, and jobs and process sets of communicators."""
    hvd, ones = _front_end(front_end)
    hvd.init()
    assert hvd.mpi_threads_supported()  # starts MPI, unless the backend mpi has

    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert (hvd.rank(), hvd.size()) == (world.Get_rank(), world.Get_size())
    assert hvd.mpi_built() and hvd.gloo_built() and hvd.mpi_enabled() is (backend == "mpi")
    handle = hvd.allreduce_async(ones(1000), op=hvd.Sum)
    assert world.allreduce(hvd.rank()) == hvd.size() * (hvd.size() - 1) // 2
    assert (hvd.synchronize(handle) == hvd.size()).all()
    hvd.shutdown()

    backwards = world.Split(color=0, key=-world.rank)
    hvd.init(comm=backwards)
    assert hvd.rank() == world.size - 1 - world.rank and hvd.mpi_threads_supported()
    hvd.shutdown()
    mine = hvd.ProcessSet(world.Split(color=world.rank, key=0))
    hvd.init(comm=world, process_sets=[mine])
    assert mine.ranks == [hvd.rank()] and mine.included()
    assert hvd.allreduce(ones(2), op=hvd.Sum, process_set=mine).tolist() == [1.0, 1.0]
    hvd.barrier()
    print("recipe done", flush=True)


def two_of_three_ask(folder):
    """In jobs of two of the three processes: before MPI starts, and when all of them have started it. The third one waits
    for the first job's end, which files in the folder tell: it would help a question that starts MPI."""
    hvd, ones = _front_end("numpy")
    rank = int(os.environ.get("PMIX_RANK") or os.environ["PMI_RANK"])
    ends = [Path(folder, f"end.{asked}") for asked in (0, 1)]

    def ask_in_a_job():
        hvd.init(comm=[0, 1])
        try:
            answer = hvd.mpi_threads_supported()
        except ValueError as error:
            answer = str(error)
        assert hvd.allreduce(ones(3), op=hvd.Sum)[0] == 2
        hvd.shutdown()
        print("answer:", answer, flush=True)

    if rank < 2:
        ask_in_a_job()
        ends[rank].touch()
    while not all(end.exists() for end in ends):
        time.sleep(0.01)
    from mpi4py import MPI  # noqa: F401 (initialises MPI)

    if rank < 2:
        ask_in_a_job()


def ask():
    hvd = HorovodBasics()
    hvd.init()
    try:
        print("answer", hvd.mpi_threads_supported())
    except ValueError as error:
        print("refused", error)


def rank_0_asks():
    hvd = HorovodBasics()
    hvd.init()
    if hvd.rank() == 0:
        try:
            hvd.mpi_threads_supported()
        except ValueError as error:
            print("refused", error)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
