"""The conformance kit on the backend mpi, under both MPIs. tests/backends/mpi/matrix.py has all versions, and np 4."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launchers import first_by

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]


def kit(mpi_job, tmp_path, *options, size=2, **variables):
    """(exit status, {case: its result}) of the kit, which finds mpirun by itself."""
    report = tmp_path / "kit.json"
    command = [sys.executable, "-m", "hvd_core.conformance", "mpi", "-np", size, "--json", report, *options]
    path = f"{Path(mpi_job.mpirun[0]).parent}{os.pathsep}{os.environ['PATH']}"
    # As the fixture mpirun tells Open MPI: ranks that wait leave their core to others.
    variables |= {"PATH": path, "OMPI_MCA_mpi_yield_when_idle": "1"}
    done = subprocess.run(
        [*map(str, command), "--patience", "3"],
        env=mpi_job.environment(**variables), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert report.exists(), done.stdout + done.stderr
    said = json.loads(report.read_text())
    return done, {case["case"]: case for case in said["cases"]}


def check(done, cases):
    wrong = [f"{c['case']}: {c['text']}" for c in cases.values() if c["verdict"] == "FAIL"]
    assert not wrong and done.returncode == 0, "\n".join(wrong) + done.stdout + done.stderr


@first_by("openmpi")
def test_everything_that_is_declared(mpi_job, tmp_path):
    levels = ["--level", "L2", "--level", "L3"]
    if mpi_job.kind == "Open MPI":  # L0 is about the description, in processes beside MPI
        levels += ["--level", "L0"]
    done, cases = kit(mpi_job, tmp_path, "--quick", *levels)
    check(done, cases)
    for native in ("L2.allreduce", "L2.reducescatterv", "L2.alltoallv", "L2.send_recv", "L2.special_values"):
        assert cases[native]["verdict"] == "PASS"


@first_by("openmpi")
def test_blocking_calls_from_the_first_byte(mpi_job, tmp_path, monkeypatch):
    """What large operations are made of, on all sizes, two communicators in flight at once among them."""
    monkeypatch.setenv("HOROVOD_BACKEND_MPI_BLOCKING_FROM", "0")
    names = ("L2.allreduce", "L2.allgatherv", "L2.scaling", "L3.two_comms", "L4.abort", "L4.recreate")
    done, cases = kit(mpi_job, tmp_path, "--quick", *(word for name in names for word in ("--case", name)))
    check(done, cases)
    assert all(cases[name]["verdict"] == "PASS" for name in names)


@first_by("mpich")
def test_one_rank_needs_no_launcher(mpi_job, tmp_path):
    done, cases = kit(mpi_job, tmp_path, "--case", "L4.alone", "--case", "L4.abort_idle", size=1)
    check(done, cases)
    assert cases["L4.alone"]["verdict"] == "PASS"


@pytest.mark.slow
def test_failures_among_four(mpi_job, tmp_path):
    done, cases = kit(mpi_job, tmp_path, "--level", "L0", "--level", "L2", "--level", "L4", size=4)
    check(done, cases)
    assert cases["L4.deadline"]["verdict"] == "PASS"
