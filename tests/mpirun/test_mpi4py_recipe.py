"""The recipe of Horovod's documentation for programs that use mpi4py beside Horovod, whichever backend moves the data."""

import sys
from pathlib import Path

import pytest
from launchers import first_by

pytest.importorskip("mpi4py", reason="mpi4py is not installed")
pytestmark = pytest.mark.mpi

TORCH = """
import horovod.torch as hvd
from torch import ones
"""
# The same questions and operations where importing PyTorch would take most of the time.
NUMPY = """
from numpy import ones
import hvd_core as hvd
from horovod.common import exports
for name in ("mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_built"):
    setattr(hvd, name, getattr(exports, name))
"""
RECIPE = """
hvd.init()
assert hvd.mpi_threads_supported()  # starts MPI, unless the backend mpi has

from mpi4py import MPI
world = MPI.COMM_WORLD
assert (hvd.rank(), hvd.size()) == (world.Get_rank(), world.Get_size())
assert hvd.mpi_built() and hvd.gloo_built() and hvd.mpi_enabled() is (BACKEND == "mpi")
handle = hvd.allreduce_async(ones(1000), op=hvd.Sum)
assert world.allreduce(hvd.rank()) == hvd.size() * (hvd.size() - 1) // 2
assert (hvd.synchronize(handle) == hvd.size()).all()
hvd.shutdown()

# Jobs and process sets of communicators.
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
"""


def library_of(mpirun):
    """A variable by which mpi4py finds the library of this MPI; a site has it on the loader's path."""
    name = "libmpi.so.40" if len(mpirun) > 1 else "libmpi.so.12"
    return {"MPI4PY_LIBMPI": str(Path(mpirun[0]).parents[1] / "lib" / name)}


@pytest.mark.parametrize(
    "front_end, backend",
    [
        pytest.param(NUMPY, "shm", id="numpy-shm"),
        pytest.param(TORCH, "shm", id="torch-shm", marks=pytest.mark.slow),
        pytest.param(TORCH, "mpi", id="torch-mpi", marks=pytest.mark.slow),
    ],
)
@first_by("mpich")
def test_the_recipe_works_unmodified(by_mpirun, mpirun, front_end, backend):
    program = f"{front_end}BACKEND = {backend!r}\n{RECIPE}"
    command = [*by_mpirun.mpirun, "-np", "2", sys.executable, "-c", program]
    env = {"HOROVOD_BACKEND": backend, **library_of(mpirun)}
    job = by_mpirun.start_command(command, env)
    out, err = job.communicate(timeout=200)
    assert job.returncode == 0 and out.decode().count("recipe done") == 2, (out + err).decode()


@pytest.mark.slow
@pytest.mark.parametrize("mpirun", ["mpich"], indirect=True)
def test_the_recipe_after_ranks_have_found_each_other_over_pmi(by_mpirun, mpirun):
    """MPICH's process manager serves MPI too, after it has served init()."""
    command = [*by_mpirun.mpirun, "-np", "2", sys.executable, "-c", f"{NUMPY}BACKEND = 'shm'\n{RECIPE}"]
    env = {"HOROVOD_BACKEND": "shm", "HOROVOD_RENDEZVOUS": "pmi", **library_of(mpirun)}
    job = by_mpirun.start_command(command, env)
    out, err = job.communicate(timeout=200)
    assert job.returncode == 0 and out.decode().count("recipe done") == 2, (out + err).decode()


PART = """
import os, sys
rank = int(os.environ.get("PMIX_RANK") or os.environ["PMI_RANK"])
if sys.argv[1] == "running":
    from mpi4py import MPI
if rank < 2:
    hvd.init(comm=[0, 1])
    try:
        answer = hvd.mpi_threads_supported()
    except ValueError as error:
        answer = str(error)
    assert hvd.allreduce(ones(3), op=hvd.Sum)[0] == 2
    hvd.shutdown()
    print("answer:", answer, flush=True)
"""


@first_by("mpich")
def test_a_job_of_some_processes_does_not_wait_for_the_others(by_mpirun, mpirun):
    env = {"HOROVOD_BACKEND": "shm", **library_of(mpirun)}
    for mpi, answer in (
        ("absent", "this job has 2 of the 3 processes"),
        ("running", "answer: True"),
    ):
        command = [*by_mpirun.mpirun, "-np", "3", sys.executable, "-c", NUMPY + PART, mpi]
        job = by_mpirun.start_command(command, env)
        out, err = job.communicate(timeout=200)
        assert job.returncode == 0 and out.decode().count(answer) == 2, (out + err).decode()


@pytest.mark.slow
def test_the_recipe_works_with_horovodrun_mpi(by_horovodrun, mpirun):
    env = {"HOROVOD_BACKEND": "shm", **library_of(mpirun)}
    program = f"{NUMPY}BACKEND = 'shm'\n{RECIPE}"
    done = by_horovodrun.run("--mpi", "-np", "2", sys.executable, "-c", program, env=env)
    assert done.returncode == 0 and done.stdout.count("recipe done") == 2, done.stdout + done.stderr


QUESTION = """
from horovod.common.basics import HorovodBasics
hvd = HorovodBasics()
hvd.init()
try:
    print("answer", hvd.mpi_threads_supported())
except ValueError as error:
    print("refused", error)
"""


@pytest.mark.slow
def test_threads_can_be_disabled(by_mpirun, mpirun):
    env = {"HOROVOD_BACKEND": "shm", "HOROVOD_MPI_THREADS_DISABLE": "1", **library_of(mpirun)}
    command = [*by_mpirun.mpirun, "-np", "2", sys.executable, "-c", QUESTION]
    out, err = by_mpirun.start_command(command, env).communicate(timeout=200)
    assert out.decode().count("answer False") == 2, (out + err).decode()


@first_by("mpich")
def test_an_mpi4py_that_cannot_answer_says_why(by_mpirun, mpirun):
    """The library of another MPI, under which every rank would be alone."""
    other = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}
    command = [*by_mpirun.mpirun, "-np", "2", sys.executable, "-c", QUESTION]
    out, err = by_mpirun.start_command(command, other).communicate(timeout=200)
    text = out.decode()
    assert text.count("refused Horovod MPI is not enabled") == 2, text + err.decode()
    assert text.count("/nowhere/libmpi.so") >= 2


ONE_ASKS = """
from horovod.common.basics import HorovodBasics
hvd = HorovodBasics()
hvd.init()
if hvd.rank() == 0:
    try:
        hvd.mpi_threads_supported()
    except ValueError as error:
        print("refused", error)
"""


@first_by("mpich")
def test_a_rank_that_asks_alone_learns_it_when_another_one_ends(by_mpirun, mpirun):
    """Inside of MPI it would wait for ever, and silently."""
    env = {"HOROVOD_BACKEND": "shm", **library_of(mpirun)}
    command = [*by_mpirun.mpirun, "-np", "2", sys.executable, "-c", ONE_ASKS]
    job = by_mpirun.start_command(command, env)
    out, err = job.communicate(timeout=200)
    assert job.returncode == 0, (out + err).decode()
    assert "not all of them have called mpi_threads_supported()" in out.decode(), (out + err).decode()


def test_ranks_that_horovodrun_starts_have_no_mpi(tmp_path):
    from launchers import Launcher

    launcher = Launcher(tmp_path)
    done = launcher.python(2, QUESTION)
    launcher.clean_up()
    assert done.stdout.count("refused Horovod MPI is not enabled") == 2, done.stdout + done.stderr
    assert done.stdout.count("use mpirun, or horovodrun --mpi") == 2
