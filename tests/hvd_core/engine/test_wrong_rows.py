"""A rank that announces a wrong number of rows (tests/backends/host/wrong_rows) ends the job, on all ranks with a cause that
names this rank and the number, before anything is written. hostile_fuzz does the same at random, under sanitizers."""

from pathlib import Path

import numpy as np
import pytest

import hvd_core as hvd
import native_program
from harness import run_on_ranks
from hvd_core import HorovodInternalError

WRONG = Path(__file__).parents[2] / "backends/host" / "wrong_rows" / "wrong_rows.cc"
RANK = 1


def cause(call):
    data = np.ones((10, 2), np.float32)
    with pytest.raises(HorovodInternalError) as failed:
        if call == "allgather":
            hvd.allgather(data, name="rows")
        else:
            hvd.alltoall(data, np.array([4, 3, 3]), name="rows")
    return str(failed.value)


@pytest.mark.parametrize("over", ["shm", "tcp"])
@pytest.mark.parametrize(
    "rows", [-5, -(1 << 63), (1 << 63) - 1, 1 << 62, 1 << 44], ids=["-5", "least", "most", "2^62", "2^44"]
)
@pytest.mark.parametrize("call", ["allgather", "alltoall"])
def test_all_ranks_learn_who_announced_how_many_rows(call, rows, over):
    env = {
        "HOROVOD_BACKEND": "wrong_rows",
        "HOROVOD_BACKEND_PATH_WRONG_ROWS": str(native_program.backend(WRONG)),
        "HVD_TEST_WRONG_OVER": str(Path(hvd.__file__).parent / "lib" / f"libhvd_backend_{over}.so"),
        "HVD_TEST_WRONG_RANK": str(RANK),
        "HVD_TEST_WRONG_ROWS": str(rows),
    }
    causes = run_on_ranks(3, cause, call, env=env).results
    assert all(f"rank {RANK} announced {rows}" in c for c in causes), causes
