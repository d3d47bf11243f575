"""Factors over MPI: those of floats, which the backend applies, and those of integers, which it leaves to the engine."""

import sys
from pathlib import Path

from launchers import first_by

BITS = Path(__file__).parents[2] / "hvd_core/engine" / "factor_rule.py"


@first_by("mpich")
def test_integers_with_factors(mpi_job):
    mpi_job.run("factors")


@first_by("openmpi")
def test_factors_to_the_bit(mpi_job):
    done = mpi_job.start([sys.executable, BITS])
    assert done.returncode == 0 and done.stdout.count("done") == 2, done.stdout[-3000:] + done.stderr[-3000:]
