"""HOROVOD_CPU_OPERATIONS, HOROVOD_CONTROLLER and the like, left over in images: honoured, or said to be ignored, once."""

import re
import sys

import pytest

import report_ranks
from announced import IN_PYTHON, backend, run
from harness.frameworks import horovodrun
from launchers import first_by, program_words


def job(start, site, python=(sys.executable,), **variables):
    """(what the job's data went over, what it said in warnings, horovodrun's own among them)."""
    done = run(
        [*start, *program_words(report_ranks.begin_twice, python=python)],
        site,
        **variables,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (over,) = (line.rpartition("over ")[2] for line in done.stdout.splitlines() if "over " in line)
    return over, re.findall(r"horovod(?:run| WARNING)?: (.*)", done.stderr)


@pytest.fixture
def with_mpi(site):
    """A backend mpi that would compute, was it allowed to."""
    backend(site, "mpi", code=IN_PYTHON, launchers=("openmpi", "mpich"))
    return site


def test_operations_of_mpi_without_mpi(with_mpi):
    """Ranks of horovodrun are alone in their MPI: the job must neither die of it nor be silent."""
    settings = {"HOROVOD_CPU_OPERATIONS": "MPI", "HOROVOD_CONTROLLER": "mpi"}
    over, said = job(horovodrun(2), with_mpi, python=(), **settings)
    assert over == "shm"
    assert said == [
        "HOROVOD_CONTROLLER=mpi is ignored; mpirun starts the processes with --mpi",
        "HOROVOD_CPU_OPERATIONS=mpi is ignored: backend 'mpi' (hvd-backend-mpi 1.5) works in jobs that are started by "
        "openmpi or mpich, and this one was started by horovodrun.",
    ]


@pytest.mark.mpi
@first_by("openmpi")
def test_operations_of_mpi_under_mpirun(mpirun, with_mpi):
    over, said = job([*mpirun, "-np", "2"], with_mpi, HOROVOD_CPU_OPERATIONS="MPI", HOROVOD_CONTROLLER="mpi")
    assert (over, said) == ("mpi", [])


@pytest.mark.mpi
@first_by("mpich")
def test_a_controller_that_is_nowhere(mpirun, site):
    over, said = job([*mpirun, "-np", "2"], site, HOROVOD_CONTROLLER="MPI", HOROVOD_CPU_OPERATIONS="CCL")
    assert over == "shm"
    assert sorted(text.partition(":")[0] for text in said) == [
        "HOROVOD_CONTROLLER=mpi is ignored",
        "HOROVOD_CPU_OPERATIONS=ccl is ignored",
    ]
    assert job([*mpirun, "-np", "2"], site, HOROVOD_CONTROLLER="gloo") == ("shm", [])
