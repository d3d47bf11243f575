"""Whole jobs over the backend mpi: the digits example as vendors' clusters start it, and tensors beyond MPI's counts."""

import re
import sys
from pathlib import Path

import pytest
from launchers import first_by

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pytorch_digits.py"


@first_by("mpich")
def test_digits(mpi_job, tmp_path):
    for module in ("torch", "sklearn", "matplotlib"):
        pytest.importorskip(module, reason="the example needs it")
    words = ["--bind-to", "numa"]
    done = mpi_job.start(
        [sys.executable, EXAMPLE, "--epochs", "12", "--output", tmp_path / "out"],
        options=words,
        HOROVOD_BACKEND="mpi",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (accuracy,) = re.findall(r"test accuracy ([\d.]+) %", done.stdout)
    assert float(accuracy) >= 97.0
    assert "2 process(es)" in done.stdout


@pytest.mark.slow
def test_more_than_an_int_counts(mpi_job):
    mpi_job.run("more_than_an_int_counts")
