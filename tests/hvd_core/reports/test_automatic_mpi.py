"""The real MPI backend in jobs of mpirun in which no backend is named."""

import re
from pathlib import Path

import pytest

import report_ranks
from announced import python, run
from launchers import first_by, program_words

PACKAGE = Path(__file__).parents[3] / "backends" / "mpi" / "src" / "hvd_backend_mpi"
APART = {"HOROVOD_SIMULATED_HOSTS": "0,1"}


@pytest.fixture
def with_mpi(site):
    """The backend as it was built with the checkout, as its wheel would leave it."""
    assert (PACKAGE / "lib" / "libhvd_backend_mpi.so").is_file(), "backends/mpi is not built (cmake --build)"
    (site / "hvd_backend_mpi").symlink_to(PACKAGE)
    (metadata,) = site.glob("hvd_backend_mpi-*.dist-info")
    (metadata / "entry_points.txt").write_text("[hvd_core.backends]\nmpi = hvd_backend_mpi:describe\n")
    return site


def said(mpirun, site, *then, **variables):
    """([{what rank 0 prints of a job by its first word}], standard error). `then`: see print_the_way()."""
    words = program_words(report_ranks.print_the_way, *then)
    done = run([*mpirun, "-np", "2", *words], site, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = re.findall(r"^(over|threads|enabled|loaded) (.*)$", done.stdout, re.MULTILINE)
    return [dict(lines[first : first + 4]) for first in range(0, len(lines), 4)], done.stderr


@pytest.mark.mpi
def test_between_hosts_it_is_used_and_within_one_nobody_loads_it(mpirun, with_mpi):
    """The same processes are on one host first, and then on two."""
    within, between = said(mpirun, with_mpi, APART["HOROVOD_SIMULATED_HOSTS"])[0]
    assert within == {
        "over": "shm automatic",
        "threads": "False",
        "enabled": "False True True",
        "loaded": "False",
    }
    assert between == {
        "over": "shm x mpi automatic",
        "threads": "True",
        "enabled": "True False True",
        "loaded": "True",
    }


@pytest.mark.mpi
@first_by("openmpi")
def test_between_hosts_its_threads_can_be_disabled(mpirun, with_mpi):
    disabled = {**APART, "HOROVOD_MPI_THREADS_DISABLE": "1"}
    (found,), _ = said(mpirun, with_mpi, **disabled)
    assert (found["over"], found["threads"]) == ("shm x mpi automatic", "False")


@pytest.mark.mpi
@first_by("openmpi")
def test_where_it_does_not_work_tcp_goes_between_hosts_and_the_log_says_why(mpirun, with_mpi):
    missing = "/nowhere/libmpi.so"
    (found,), log = said(
        mpirun, with_mpi, HOROVOD_BACKEND_MPI_LIBRARY=missing, **APART, HOROVOD_LOG_LEVEL="info"
    )
    assert found["over"] == "shm x tcp automatic" and found["loaded"] == "False"
    launcher = "openmpi" if len(mpirun) > 1 else "mpich"
    text = (
        f"between hosts: {launcher} started this job, but backend 'mpi' is installed but unavailable here: "
    )
    assert len(re.findall(re.escape(text) + ".*/nowhere/libmpi.so", log)) == 1, log
    # The two hosts are simulated, which the launcher does not know.
    warnings = [line for line in log.splitlines() if "WARN" in line]
    assert all("can reach each other here" in line for line in warnings), log


@pytest.mark.mpi
@first_by("mpich")
def test_an_mpi_that_cannot_be_opened_says_how_to_do_without(mpirun, with_mpi):
    """A program that has finalized MPI before. The user has not named MPI, so the error tells how to run without it."""
    library = Path(mpirun[0]).parents[1] / "lib"
    done = run([*mpirun, "-np", "2", *program_words(report_ranks.print_the_way_after_mpi)], with_mpi, **APART,
               LD_LIBRARY_PATH=str(library))  # fmt: skip
    assert done.returncode != 0
    assert "has called MPI_Finalize" in done.stderr
    assert "mpi was chosen between hosts because its launcher started this job" in done.stderr
    assert "HOROVOD_BACKEND=shm,tcp" in done.stderr


def test_srun_without_pmi_is_no_mpi(with_mpi):
    """Several processes of srun that do not know each other: the automatic choice must not use the backend."""
    program = "from hvd_backend_mpi.library import look; print(look())"
    step = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "HOROVOD_BACKEND_MPI_LIBRARY": "libmpi.so.12"}
    assert "srun has started this job without PMI" in python(program, with_mpi, **step).stdout
    for told in ({"PMIX_RANK": "0"}, {"PMI_FD": "7"}, {"SLURM_STEP_NUM_TASKS": "1"}):
        assert python(program, with_mpi, **(step | told)).stdout.startswith("Available(")
