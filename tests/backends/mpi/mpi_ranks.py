"""The programs of these tests' ranks under mpirun: one function each, named on the command line. A rank that comes to the
end prints "done"."""

import os
import sys

import numpy as np

import hvd_core as hvd


def sums(count=1000):
    got = hvd.allreduce(np.full(count, hvd.rank() + 1.0, np.float32), op=hvd.Sum)
    assert (got == hvd.size() * (hvd.size() + 1) / 2).all(), got


def mpi4py_first():
    from mpi4py import MPI

    hvd.init()
    _beside(MPI)


def hvd_first():
    hvd.init()
    from mpi4py import MPI

    _beside(MPI)


def _beside(mpi):
    """The program uses MPI while this backend does, and after it."""
    world = mpi.COMM_WORLD
    assert (world.rank, world.size) == (hvd.rank(), hvd.size())
    handles = [hvd.allreduce_async(np.ones(n, np.float32), op=hvd.Sum) for n in (10, 3_000_000)]
    for turn in range(50):  # while this backend's collectives are in flight
        assert world.allreduce(turn) == turn * world.size
    for handle in handles:
        assert (hvd.synchronize(handle) == world.size).all()
    sums()
    with open("/proc/self/maps") as maps:
        libraries = {line.split()[-1] for line in maps if "/libmpi.so" in line}
    assert len(libraries) == 1, libraries
    hvd.shutdown()
    assert mpi.Is_initialized() and not mpi.Is_finalized()
    world.Barrier()
    hvd.init()
    sums()
    hvd.shutdown()


def finalizes_early():
    from mpi4py import MPI

    hvd.init()
    sums()
    MPI.Finalize()
    try:
        sums()
    except hvd.HorovodInternalError as error:
        assert "MPI_Finalize" in str(error), error
        return
    raise AssertionError("no error, although MPI was over")


def serialized():
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI  # noqa: F401 (initialises MPI)

    small_and_large()


def small_and_large():
    hvd.init()
    sums()
    sums(2_000_000)
    hvd.shutdown()


def single():
    import mpi4py

    mpi4py.rc.thread_level = "single"
    from mpi4py import MPI  # noqa: F401 (initialises MPI)

    try:
        hvd.init()
    except Exception as error:
        assert "'single'" in str(error) and "MPI_THREAD_MULTIPLE" in str(error), error
        return
    raise AssertionError("no error, although MPI allows one thread only")


def rank_1_raises():
    hvd.init()
    sums()
    if hvd.rank() == 1:
        raise RuntimeError("no more data")
    sums()


def many_process_sets():
    hvd.init()
    for turn in range(30):
        made = hvd.add_process_set([turn % 2])
        if hvd.rank() == turn % 2:
            got = hvd.allreduce(np.ones(5, np.float32), op=hvd.Sum, process_set=made)
            assert (got == 1).all()
        assert hvd.remove_process_set(made)
    sums()
    hvd.shutdown()


def only_init():
    hvd.init(backend="mpi")


def settings_of_mpi():
    before = _settings()
    hvd.init()
    sums(1_000_000)
    now = _settings()
    assert before == now, before ^ now
    hvd.shutdown()


def _settings():
    return {name for name in os.environ if name.startswith(("OMPI_MCA_", "UCX_", "MPICH_", "MPIR_CVAR_"))}


def factors():
    """Factors of integers, which the backend does not apply itself."""
    hvd.init()
    r, n = hvd.rank(), hvd.size()
    for dtype in (np.uint8, np.int32, np.int64):
        x = np.arange(5).astype(dtype) + r
        for pre, post in ((0.5, 1.0), (1.0, 0.5), (3.0, 0.5)):
            ours = [((np.arange(5) + k) * pre).astype(dtype) for k in range(n)]
            total = (sum(ours) * post).astype(dtype)
            said = hvd.allreduce(x, op=hvd.Sum, prescale_factor=pre, postscale_factor=post)
            assert said.tolist() == total.tolist(), (dtype, pre, post, said, total)
            assert x.tolist() == (np.arange(5) + r).tolist(), "the input was written to"
            part = hvd.reducescatter(x[:4], op=hvd.Sum, prescale_factor=pre, postscale_factor=post)
            assert part.tolist() == np.split(total[:4], n)[r].tolist(), (dtype, pre, post, part, total)


def two_hosts():
    """Two ranks on each of two hosts."""
    hvd.init()
    rank = hvd.rank()
    assert (hvd.local_size(), hvd.cross_size()) == (2, 2)
    for count in (7, 300_000, 3_000_000, 3_000_000):  # the levels of the last one overlap
        got = hvd.allreduce(np.full(count, rank + 1.0, np.float32), op=hvd.Sum)
        assert (got == 10).all(), got
    got = hvd.allgather(np.full((rank + 1, 2), rank, np.int64))
    assert got[:, 0].tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert hvd.broadcast(np.full(5, rank), root_rank=3).tolist() == [3] * 5
    if rank == 0:
        row = hvd.backend_report()[0]
        print("over", row.backend, flush=True)
    hvd.shutdown()


def more_than_an_int_counts():
    """2^31 + 17 elements, each a byte, in one tensor."""
    hvd.init()
    n = 2**31 + 17
    data = np.full(n, hvd.rank() + 1, np.uint8)
    data[-1] = 40
    hvd.allreduce_(data, op=hvd.Sum)
    assert data[0] == data[2**31] == 3 and data[-1] == 80 and (data[:-1:65537] == 3).all()
    data[:] = hvd.rank() + 5
    hvd.broadcast_(data, root_rank=1)
    assert data[0] == data[-1] == 6
    del data
    part = np.full((2**30 + 9, 1), hvd.rank() + 1, np.uint8)
    whole = hvd.allgather(part)
    assert whole.shape == (2**31 + 18, 1) and whole[0] == 1 and whole[-1] == 2 and whole[2**30 + 8] == 1
    hvd.shutdown()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done", flush=True)
