"""Whole jobs over the backend mpi: the digits example as vendors' clusters start it, and tensors beyond MPI's counts."""

import re
import sys
from pathlib import Path

import pytest
from launchers import first_by

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pytorch_digits.py"

# 2^31 + 17 elements, each a byte: more than an int counts, in one tensor.
LARGE = """
import numpy as np, hvd_core
hvd_core.init()
n = 2**31 + 17
data = np.full(n, hvd_core.rank() + 1, np.uint8)
data[-1] = 40
hvd_core.allreduce_(data, op=hvd_core.Sum)
assert data[0] == data[2**31] == 3 and data[-1] == 80 and (data[:-1:65537] == 3).all()
data[:] = hvd_core.rank() + 5
hvd_core.broadcast_(data, root_rank=1)
assert data[0] == data[-1] == 6
del data
part = np.full((2**30 + 9, 1), hvd_core.rank() + 1, np.uint8)
whole = hvd_core.allgather(part)
assert whole.shape == (2**31 + 18, 1) and whole[0] == 1 and whole[-1] == 2 and whole[2**30 + 8] == 1
hvd_core.shutdown()
print("done", flush=True)
"""


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
    mpi_job.run(LARGE)
