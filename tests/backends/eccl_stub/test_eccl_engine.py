"""hvd_core over eccl_stub: the engine's matrix of cases with tensors in the simulated device's memory, on real ranks.

The backend is chosen as a user chooses it, the device by local_rank(). Streams are slowed down, so that code that
does not wait for them reads old data; a host that touches device memory dies.
"""

import json
import re
import sys
from pathlib import Path

import pytest

import stub_backend

HERE = Path(__file__).parent
ENGINE = HERE.parents[1] / "hvd_core/engine"
SHORT = {"counts": [0, 1, 1023], "large": 50001, "dtypes": ["uint8", "int64", "float32", "bool", "bfloat16"]}
FULL = {"counts": [0, 1, 17, 1023], "large": 1_000_001, "dtypes": []}


@pytest.fixture(scope="module")
def side():
    return stub_backend.program_side()


def run(ranks, program, arguments, code=0, **environment):
    """What the ranks printed."""
    settings = {"HOROVOD_BACKEND": "eccl_stub", "TOPS_SIM_DELAY_US": "30", **environment}
    sys.path.insert(0, str(ENGINE))
    try:
        import jobs
    finally:
        sys.path.remove(str(ENGINE))
    return jobs.finish(jobs.start(ranks, HERE / program, settings, arguments), timeout=280, code=code)


def matrix(side, ranks, subset, sizes, **environment):
    job = json.dumps({**sizes, "side": str(side), "rank_of_report": 0})
    output = run(ranks, "eccl_matrix_ranks.py", ["--subset", subset], ECCL_JOB=job, **environment)
    assert output.count("matrix done") == ranks, output
    return output


@pytest.mark.timeout(300)
def test_the_engines_matrix_over_the_template(side):
    said = matrix(side, 2, "1", SHORT)
    for line in (
        "served: allreduce float32 Sum NATIVE eccl_stub",
        "served: allreduce int64 Sum EMULATED eccl_stub allgather + local reduction",
        "served: broadcast bool Sum NATIVE eccl_stub",
    ):
        assert line in said, said


@pytest.mark.timeout(300)
def test_memory_that_is_a_handle(side):
    said = matrix(side, 2, "0", {**SHORT, "dtypes": ["int64", "float32"]}, TOPS_SIM_MEMORY="handle")
    assert "served: allreduce float32 Sum NATIVE eccl_stub" in said, said


@pytest.mark.timeout(300)
def test_without_emulation_a_gap_fails_that_operation_alone(side):
    said = run(2, "eccl_job_ranks.py", [str(side), "gap"], HOROVOD_EMULATION="0")
    for text in (
        "allreduce of int64 on gcu is not supported by backend 'eccl_stub' and emulation is off",
        "fix: HOROVOD_BACKEND=gcu.allreduce=tcp, or cast.  No automatic narrowing is done.",
        "afterwards [2. 2. 2.]",
    ):
        assert said.count(text) == 2, said


@pytest.mark.timeout(300)
def test_a_rank_that_is_killed_ends_the_others_operations(side):
    """The survivors' allreduce is on the stream already, and the library waits there for a rank that is gone."""
    said = run(3, "eccl_job_ranks.py", [str(side), "kill"], code=137)
    assert len(re.findall(r"JobEndedError .*rank 1 .*died", said)) == 2, said


@pytest.mark.timeout(300)
def test_a_vendor_library_that_is_missing_is_said_at_init(side, tmp_path):
    missing = str(tmp_path / "libeccl.so.3")
    said = run(2, "eccl_job_ranks.py", [str(side), "none"], 1, HOROVOD_BACKEND_ECCL_STUB_LIBRARY=missing)
    assert (
        f"backend 'eccl_stub' is installed but unavailable here: {missing}: cannot open shared object" in said
    )
    assert "fix: set HOROVOD_BACKEND_ECCL_STUB_LIBRARY" in said
    assert "Not falling back, because it was named explicitly." in said


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["address", "handle"])
def test_the_engines_matrix_in_full(side, mode):
    print(matrix(side, 3, "0,2", FULL, TOPS_SIM_MEMORY=mode))
