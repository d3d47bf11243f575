"""One MPI in one process: whose library, who initialises and ends it, which threads call it, how jobs end."""

import os
import subprocess

import pytest

from harness.frameworks import horovodrun
from launchers import each_by_one, first_by

pytestmark = pytest.mark.mpi


@each_by_one("order", openmpi="mpi4py_first", mpich="hvd_first")
def test_mpi4py_beside_us_in_either_order(mpi_job, order):
    pytest.importorskip("mpi4py", reason="the program uses MPI besides")
    mpi_job.run(order)


@first_by("openmpi")
def test_whoever_finalizes_early_gets_an_error(mpi_job):
    pytest.importorskip("mpi4py", reason="the program uses MPI besides")
    done = mpi_job.start(mpi_job.words("finalizes_early"))  # its exit status is MPI's own affair
    assert done.stdout.count("done") == 2, done.stdout + done.stderr


@each_by_one("how", openmpi="serialized", mpich="HOROVOD_MPI_THREADS_DISABLE")
def test_below_multiple_one_thread_makes_all_calls(mpi_job, how):
    if how == "serialized":
        pytest.importorskip("mpi4py", reason="the program uses MPI besides")
        mpi_job.run("serialized")
    else:
        mpi_job.run("small_and_large", **{how: "1"})


@first_by("mpich")
def test_a_level_that_shuts_us_out_is_told_on_every_rank(mpi_job):
    done = mpi_job.start(mpi_job.words("single"))  # its exit status is MPI's own affair
    assert done.stdout.count("done") == 2, done.stdout + done.stderr


@first_by("openmpi")
def test_an_exception_on_one_rank_ends_the_job(mpi_job):
    done = mpi_job.start(mpi_job.words("rank_1_raises"))
    assert done.returncode != 0 and "no more data" in done.stderr


@first_by("openmpi")
def test_many_process_sets(mpi_job):
    mpi_job.run("many_process_sets", HOROVOD_DYNAMIC_PROCESS_SETS="1")


def test_the_library_of_another_mpi_than_the_launchers_is_refused(mpi_job):
    own, other = ("openmpi", "mpich") if mpi_job.kind == "Open MPI" else ("mpich", "openmpi")
    name = "libmpi.so.12" if other == "mpich" else "libmpi.so.40"
    wrong = mpi_job.library.replace(f"/{own}/lib/", f"/{other}/lib/").rpartition("/")[0] + "/" + name
    if not os.path.exists(wrong):
        pytest.skip(f"there is no {wrong}")
    done = mpi_job.start(mpi_job.words("only_init"), HOROVOD_BACKEND_MPI_LIBRARY=wrong)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert wrong in said and "Open MPI" in said and "MPICH" in said and "each process would be alone" in said


def test_processes_that_mpi_sees_alone(mpi_job, tmp_path):
    """Not started by mpirun, each would be a program of its own in MPI, and the sums would be wrong."""
    program = mpi_job.words("only_init")[1:]
    done = subprocess.run(
        list(map(str, [*horovodrun(2, "--gloo"), *program])),
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
    words = mpi_job.words("settings_of_mpi")
    if mpi_job.kind == "Open MPI":
        done = mpi_job.start(words, options=["--mca", "coll", "^tuned", "--mca", "coll_base_verbose", "10"])
        assert "component libnbc" in done.stderr and "component tuned" not in done.stderr, done.stderr
    else:
        done = mpi_job.start(words, MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM="smp", MPICH_DBG_OUTPUT="none")
    assert done.returncode == 0, done.stdout + done.stderr
