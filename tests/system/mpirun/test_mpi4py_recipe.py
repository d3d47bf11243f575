"""The recipe of Horovod's documentation for programs that use mpi4py beside Horovod, whichever backend moves the data."""

import pytest

import mpi4py_ranks
from launchers import Launcher, first_by, mpi_library, program_words

pytest.importorskip("mpi4py", reason="mpi4py is not installed")
pytestmark = pytest.mark.mpi


def library_of(mpirun):
    """A variable by which mpi4py finds the library of this MPI; a site has it on the loader's path."""
    return {"MPI4PY_LIBMPI": mpi_library(mpirun)}


@pytest.mark.parametrize(
    "front_end, backend",
    [
        pytest.param("numpy", "shm", id="numpy-shm"),
        pytest.param("torch", "shm", id="torch-shm", marks=pytest.mark.slow),
        pytest.param("torch", "mpi", id="torch-mpi", marks=pytest.mark.slow),
    ],
)
@first_by("mpich")
def test_the_recipe_works_unmodified(by_mpirun, mpirun, front_end, backend):
    command = [*by_mpirun.mpirun, "-np", "2", *program_words(mpi4py_ranks.recipe, front_end, backend)]
    env = {"HOROVOD_BACKEND": backend, **library_of(mpirun)}
    job = by_mpirun.start_command(command, env)
    out, err = job.communicate(timeout=200)
    assert job.returncode == 0 and out.decode().count("recipe done") == 2, (out + err).decode()


@pytest.mark.slow
@pytest.mark.parametrize("mpirun", ["mpich"], indirect=True)
def test_the_recipe_after_ranks_have_found_each_other_over_pmi(by_mpirun, mpirun):
    """MPICH's process manager serves MPI too, after it has served init()."""
    command = [*by_mpirun.mpirun, "-np", "2", *program_words(mpi4py_ranks.recipe, "numpy", "shm")]
    env = {"HOROVOD_BACKEND": "shm", "HOROVOD_RENDEZVOUS": "pmi", **library_of(mpirun)}
    job = by_mpirun.start_command(command, env)
    out, err = job.communicate(timeout=200)
    assert job.returncode == 0 and out.decode().count("recipe done") == 2, (out + err).decode()


@first_by("mpich")
def test_a_job_of_some_processes_does_not_wait_for_the_others(by_mpirun, mpirun):
    env = {"HOROVOD_BACKEND": "shm", **library_of(mpirun)}
    words = program_words(mpi4py_ranks.two_of_three_ask, by_mpirun.folder)
    job = by_mpirun.start_command([*by_mpirun.mpirun, "-np", "3", *words], env)
    out, err = job.communicate(timeout=200)
    assert job.returncode == 0, (out + err).decode()
    for answer in ("this job has 2 of the 3 processes", "answer: True"):
        assert out.decode().count(answer) == 2, (out + err).decode()


@pytest.mark.slow
def test_the_recipe_works_with_horovodrun_mpi(by_horovodrun, mpirun):
    env = {"HOROVOD_BACKEND": "shm", **library_of(mpirun)}
    words = program_words(mpi4py_ranks.recipe, "numpy", "shm")
    done = by_horovodrun.run("--mpi", "-np", "2", *words, env=env)
    assert done.returncode == 0 and done.stdout.count("recipe done") == 2, done.stdout + done.stderr


@pytest.mark.slow
def test_threads_can_be_disabled(by_mpirun, mpirun):
    env = {"HOROVOD_BACKEND": "shm", "HOROVOD_MPI_THREADS_DISABLE": "1", **library_of(mpirun)}
    command = [*by_mpirun.mpirun, "-np", "2", *program_words(mpi4py_ranks.ask)]
    out, err = by_mpirun.start_command(command, env).communicate(timeout=200)
    assert out.decode().count("answer False") == 2, (out + err).decode()


@first_by("mpich")
def test_an_mpi4py_that_cannot_answer_says_why(by_mpirun, mpirun):
    """The library of another MPI, under which every rank would be alone."""
    other = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}
    command = [*by_mpirun.mpirun, "-np", "2", *program_words(mpi4py_ranks.ask)]
    out, err = by_mpirun.start_command(command, other).communicate(timeout=200)
    text = out.decode()
    assert text.count("refused Horovod MPI is not enabled") == 2, text + err.decode()
    assert text.count("/nowhere/libmpi.so") >= 2


@first_by("mpich")
def test_a_rank_that_asks_alone_learns_it_when_another_one_ends(by_mpirun, mpirun):
    """Inside of MPI it would wait for ever, and silently."""
    env = {"HOROVOD_BACKEND": "shm", **library_of(mpirun)}
    command = [*by_mpirun.mpirun, "-np", "2", *program_words(mpi4py_ranks.rank_0_asks)]
    job = by_mpirun.start_command(command, env)
    out, err = job.communicate(timeout=200)
    assert job.returncode == 0, (out + err).decode()
    assert "not all of them have called mpi_threads_supported()" in out.decode(), (out + err).decode()


def test_ranks_that_horovodrun_starts_have_no_mpi(tmp_path):
    launcher = Launcher(tmp_path)
    done = launcher.python(2, mpi4py_ranks.ask)
    launcher.clean_up()
    assert done.stdout.count("refused Horovod MPI is not enabled") == 2, done.stdout + done.stderr
    assert done.stdout.count("use mpirun, or horovodrun --mpi") == 2
