"""Operation x dtype x count x in or out of place x process set x backend on real ranks, against NumPy in float64.

One launch per job shape; the ranks run the whole matrix (matrix_ranks.py) and report what is wrong.
"""

from pathlib import Path

import pytest

from jobs import finish, has_backend, start

JOBS = {
    "shm-2": (2, "1", {"HOROVOD_BACKEND": "shm"}),
    "shm-4": (4, "0,2,3", {"HOROVOD_BACKEND": "shm"}),
    "tcp-2": (2, "0", {"HOROVOD_BACKEND": "tcp"}),
    "tcp-3": (3, "0,2", {"HOROVOD_BACKEND": "tcp"}),
    "hierarchical-3": (3, "0,2", {"HOROVOD_SIMULATED_HOSTS": "0,0,1"}),
    "hierarchical-4": (4, "1,2,3", {"HOROVOD_SIMULATED_HOSTS": "0,0,1,1"}),
}


# The smaller ones of each backend do what the larger ones do.
SMALLER = ("shm-2", "tcp-2", "hierarchical-3")


@pytest.mark.parametrize(
    "job", [pytest.param(job, marks=pytest.mark.slow if job in SMALLER else []) for job in JOBS]
)
def test_matrix(job: str) -> None:
    ranks, subset, env = JOBS[job]
    if "shm" not in job and not has_backend("tcp"):
        pytest.skip("the tcp backend is not built")
    program = Path(__file__).with_name("matrix_ranks.py")
    output = finish(start(ranks, program, env, ["--subset", subset]), timeout=280)
    assert output.count("matrix done") == ranks, output
    print(output)
