"""Whole jobs over the backend mpi: the digits example as vendors' clusters start it, and tensors beyond MPI's counts."""

import re
from pathlib import Path

import pytest

from harness.frameworks import python_of
from harness.installed import need
from launchers import first_by

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "pytorch_digits.py"


@first_by("mpich")
def test_digits(mpi_job, tmp_path):
    need("torch", "sklearn", "matplotlib", reason="the example needs them")
    # With these rates three epochs bring 96 %.
    options = ["--epochs", "3", "--warmup-epochs", "1", "--lr", "0.07", "--output", tmp_path / "out"]
    done = mpi_job.start(
        [python_of("torch"), EXAMPLE, *options],
        options=["--bind-to", "numa"],
        HOROVOD_BACKEND="mpi",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (accuracy,) = re.findall(r"test accuracy ([\d.]+) %", done.stdout)
    assert float(accuracy) >= 90.0  # that it comes to 97 % is for tests/system/examples
    assert "2 process(es)" in done.stdout


@pytest.mark.slow
def test_more_than_an_int_counts(mpi_job):
    mpi_job.run("more_than_an_int_counts")
