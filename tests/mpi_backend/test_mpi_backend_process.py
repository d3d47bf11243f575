"""One MPI in one process: whose library, who initialises and ends it, which threads call it, how jobs end."""

import os
import subprocess
import sys
import textwrap

import pytest
from launchers import first_by

pytestmark = pytest.mark.mpi

START = """
import sys
import numpy as np, hvd_core
def sums(count=1000):
    got = hvd_core.allreduce(np.full(count, hvd_core.rank() + 1.0, np.float32), op=hvd_core.Sum)
    assert (got == hvd_core.size() * (hvd_core.size() + 1) / 2).all(), got
def libraries():
    return {l.split()[-1] for l in open("/proc/self/maps") if "/libmpi.so" in l}
"""
DONE = "hvd_core.shutdown()\nprint('done', flush=True)\n"


def program(text):
    return START + textwrap.dedent(text)


@pytest.mark.parametrize("order", ["mpi4py first", "hvd first"])
def test_mpi4py_beside_us_in_either_order(mpi_job, order):
    pytest.importorskip("mpi4py", reason="the program uses MPI besides")
    begin = ["from mpi4py import MPI\n", "hvd_core.init()\n"]
    if order == "hvd first":
        begin.reverse()
    text = (
        START
        + "".join(begin)
        + textwrap.dedent("""
        world = MPI.COMM_WORLD
        assert (world.rank, world.size) == (hvd_core.rank(), hvd_core.size())
        handles = [hvd_core.allreduce_async(np.ones(n, np.float32), op=hvd_core.Sum) for n in (10, 3_000_000)]
        for turn in range(50):  # while this backend's collectives are in flight
            assert world.allreduce(turn) == turn * world.size
        for handle in handles:
            assert (hvd_core.synchronize(handle) == world.size).all()
        sums()
        assert len(libraries()) == 1, libraries()
        hvd_core.shutdown()
        assert MPI.Is_initialized() and not MPI.Is_finalized()
        world.Barrier()
        hvd_core.init()
        sums()
        """)
    )
    mpi_job.run(text + DONE)


def test_whoever_finalizes_early_gets_an_error(mpi_job):
    pytest.importorskip("mpi4py", reason="the program uses MPI besides")
    text = program("""
        from mpi4py import MPI
        hvd_core.init()
        sums()
        MPI.Finalize()
        try:
            sums()
        except hvd_core.HorovodInternalError as error:
            assert "MPI_Finalize" in str(error), error
            print("done", flush=True)
        """)
    done = mpi_job.start([sys.executable, "-c", text])
    assert done.stdout.count("done") == 2, done.stdout + done.stderr


@pytest.mark.parametrize("how", ["HOROVOD_MPI_THREADS_DISABLE", "serialized"])
def test_below_multiple_one_thread_makes_all_calls(mpi_job, how):
    serialized = how == "serialized"
    text = (
        "import mpi4py; mpi4py.rc.thread_level = 'serialized'\nfrom mpi4py import MPI\n" if serialized else ""
    )
    text = START + text + "hvd_core.init()\nsums()\nsums(2_000_000)\n" + DONE
    mpi_job.run(text, **({} if serialized else {how: "1"}))


@first_by("mpich")
def test_a_level_that_shuts_us_out_is_told_on_every_rank(mpi_job):
    text = program("""
        import mpi4py
        mpi4py.rc.thread_level = "single"
        from mpi4py import MPI
        try:
            hvd_core.init()
        except Exception as error:
            assert "'single'" in str(error) and "MPI_THREAD_MULTIPLE" in str(error), error
            print("done", flush=True)
        """)
    done = mpi_job.start([sys.executable, "-c", text])
    assert done.stdout.count("done") == 2, done.stdout + done.stderr


@first_by("openmpi")
def test_an_exception_on_one_rank_ends_the_job(mpi_job):
    text = program("""
        hvd_core.init()
        sums()
        if hvd_core.rank() == 1:
            raise RuntimeError("no more data")
        sums()
        """)
    done = mpi_job.start([sys.executable, "-c", text])
    assert done.returncode != 0 and "no more data" in done.stderr


@first_by("openmpi")
def test_many_process_sets(mpi_job):
    text = program("""
        hvd_core.init()
        for turn in range(30):
            made = hvd_core.add_process_set([turn % 2])
            if hvd_core.rank() == turn % 2:
                got = hvd_core.allreduce(np.ones(5, np.float32), op=hvd_core.Sum, process_set=made)
                assert (got == 1).all()
            assert hvd_core.remove_process_set(made)
        sums()
        """)
    mpi_job.run(text + DONE, HOROVOD_DYNAMIC_PROCESS_SETS="1")


def test_the_library_of_another_mpi_than_the_launchers_is_refused(mpi_job):
    own, other = ("openmpi", "mpich") if mpi_job.kind == "Open MPI" else ("mpich", "openmpi")
    name = "libmpi.so.12" if other == "mpich" else "libmpi.so.40"
    wrong = mpi_job.library.replace(f"/{own}/lib/", f"/{other}/lib/").rpartition("/")[0] + "/" + name
    if not os.path.exists(wrong):
        pytest.skip(f"there is no {wrong}")
    text = START + "hvd_core.init()\n"
    done = mpi_job.start([sys.executable, "-c", text], HOROVOD_BACKEND_MPI_LIBRARY=wrong)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert wrong in said and "Open MPI" in said and "MPICH" in said and "each process would be alone" in said


def test_processes_that_mpi_sees_alone(mpi_job, tmp_path):
    """Not started by mpirun, each would be a program of its own in MPI, and the sums would be wrong."""
    text = START + "hvd_core.init(backend='mpi')\n"
    done = subprocess.run(
        [*(sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", sys.executable, "-c", text)],
        env=mpi_job.environment(HOROVOD_BACKEND="", HOROVOD_BACKEND_MPI_LIBRARY=mpi_job.library),
        capture_output=True, text=True, timeout=200, cwd=tmp_path,
    )  # fmt: skip
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    for piece in (
        "MPI does not see the 2 ranks as one job",
        "MPI_COMM_WORLD has 1 process",
        "horovodrun --mpi",
    ):
        assert piece in said, said


def test_mpis_own_settings_reach_it(mpi_job):
    """A setting of MPI's that forbids its own choice; this backend sets none."""
    text = program("""
        import os
        mine = {k: v for k, v in os.environ.items() if k.startswith(("OMPI_MCA_", "UCX_", "MPICH_", "MPIR_CVAR_"))}
        hvd_core.init()
        sums(1_000_000)
        now = {k: v for k, v in os.environ.items() if k.startswith(("OMPI_MCA_", "UCX_", "MPICH_", "MPIR_CVAR_"))}
        assert set(mine) == set(now), set(mine) ^ set(now)
        """)
    words = [sys.executable, "-c", text + DONE]
    if mpi_job.kind == "Open MPI":
        done = mpi_job.start(words, options=["--mca", "coll", "^tuned", "--mca", "coll_base_verbose", "10"])
        assert "component libnbc" in done.stderr and "component tuned" not in done.stderr, done.stderr
    else:
        done = mpi_job.start(words, MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM="smp", MPICH_DBG_OUTPUT="none")
    assert done.returncode == 0, done.stdout + done.stderr
