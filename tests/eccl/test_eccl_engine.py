"""hvd_core over eccl_stub: the engine's matrix of cases with tensors in the simulated device's memory, on real ranks.

The backend is chosen as a user chooses it, the device by local_rank(). Streams are slowed down, so that whoever does not
wait for them reads old data; the host that touches device memory dies.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import stub_backend

HERE = Path(__file__).parent
ENGINE = HERE.parent / "engine"
SHORT = {"counts": [0, 1, 1023], "large": 50001, "dtypes": ["uint8", "int64", "float32", "bool", "bfloat16"]}
FULL = {"counts": [0, 1, 17, 1023], "large": 1_000_001, "dtypes": []}


@pytest.fixture(scope="module")
def side(tmp_path_factory):
    """The program's side of the device, linked with the simulator that the backend opens."""
    out = tmp_path_factory.mktemp("side") / "libprogram_side.so"
    simulator = stub_backend.library("eccl_sim")
    include = stub_backend.FOLDER / "simulator" / "include"
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Werror",
        f"-I{include}",
        HERE / "program_side.c",
        "-o",
        out,
    ]
    subprocess.run([*command, f"-Wl,-rpath,{simulator.parent}", simulator], check=True, timeout=60)
    return out


def matrix(side, ranks, subset, sizes, **environment):
    """What the ranks printed."""
    job = {**sizes, "side": str(side), "rank_of_report": 0}
    settings = {"HOROVOD_BACKEND": "eccl_stub", "TOPS_SIM_DELAY_US": "30", "ECCL_JOB": json.dumps(job)}
    sys.path.insert(0, str(ENGINE))
    try:
        import jobs
    finally:
        sys.path.remove(str(ENGINE))
    program = HERE / "eccl_matrix_ranks.py"
    output = jobs.finish(
        jobs.start(ranks, program, settings | environment, ["--subset", subset]), timeout=280
    )
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


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["address", "handle"])
def test_the_engines_matrix_in_full(side, mode):
    print(matrix(side, 3, "0,2", FULL, TOPS_SIM_MEMORY=mode))
