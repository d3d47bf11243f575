"""hvd_core over `nccl` on the simulated CUDA and NCCL: whole jobs of real ranks. Streams are slowed down, so that code
that does not wait for them reads old data; a host that touches device memory dies; calls are counted.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import simulated_cuda
from harness import finish
from harness.frameworks import horovodrun

HERE = Path(__file__).parent
MATRIX = HERE.parents[1] / "backends/eccl_stub" / "eccl_matrix_ranks.py"
SHORT = {"counts": [0, 1023], "large": 50001, "dtypes": ["int64", "float32", "bfloat16"]}
FULL = {"counts": [0, 1, 17, 1023], "large": 1_000_001, "dtypes": []}


def run(ranks, program, *arguments, code=0, timeout=180, launcher=None, **environment):
    """What the ranks printed."""
    # A rank of mpirun finds its library of MPI by its parents.
    words = [*launcher, "-np", str(ranks), sys.executable] if launcher else horovodrun(ranks)
    job = subprocess.Popen(
        [*words, str(program), *arguments],
        env={**os.environ, **simulated_cuda.environment(**{"HOROVOD_BACKEND": "nccl", **environment})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return finish(job, timeout, code)


def matrix(ranks, subset, sizes, **options):
    job = {**sizes, "type": "cuda", "side": str(simulated_cuda.build()), "rank_of_report": 0}
    output = run(ranks, MATRIX, "--subset", subset, ECCL_JOB=json.dumps(job), **options)
    assert output.count("matrix done") == ranks, output
    return output


def test_what_a_job_asks_of_cuda_and_nccl():
    said = run(2, HERE / "nccl_job_ranks.py")
    assert said.count("done") == 2, said

    def told(topic):
        lines = re.findall(rf"{topic}: (.*)", said)
        assert len(lines) == 2 and len(set(lines)) == 1, said
        return lines[0]

    # Twenty times one tensor and forty: collectives; launches of kernels, to pack the forty and to unpack them; copies.
    assert told("steady") == "40 40 0", said
    # The memory in which tensors are packed is registered, once.
    assert told("registered") == "1", said
    # Operators made and destroyed, launches: float16 has factors of its own, in which a tenth is not exact.
    assert sorted(set(re.findall(r"factor: (.*)", said))) == ["float16 0 0 2", "float32 1 1 0"], said
    # Two tensors of 8 MiB: where they lie, no launch, no copy.
    assert told("large") == "2 0 0", said
    captured = re.findall(r"captured: (.*)", said)
    assert len(captured) == 2, said
    for text in captured:
        assert "a collective was called while its stream is being captured into a CUDA graph" in text, said
    assert "failed before it was submitted on rank 0" in "".join(captured), said


@pytest.mark.parametrize("silent", ["1", pytest.param("0", marks=pytest.mark.slow)])
def test_a_rank_that_is_killed(silent):
    """NCCL tells of it where a network is between ranks, and turns for ever where none is."""
    said = run(2, HERE / "nccl_job_ranks.py", "kill", code=137, SIM_NCCL_SILENT_DEATH=silent)
    assert re.search(r"second: .*rank 1 .*died", said), said
    assert re.search(r"third: .*aborted: rank 1 .*died", said), said


def test_a_rank_without_a_tensor_that_sees_one_device():
    run(2, HERE / "nccl_job_ranks.py", "join")


@pytest.mark.timeout(400)
def test_the_engines_matrix():
    said = matrix(2, "1", SHORT)
    for line in (
        "served: allreduce float32 Sum NATIVE nccl",
        "served: allreduce int64 Average EMULATED nccl allgather + local reduction",
        "served: allgather bfloat16 Sum NATIVE nccl",
    ):
        assert line in said, said


def staged(backend, **options):
    said = run(2, HERE / "nccl_job_ranks.py", "staged", HOROVOD_BACKEND=f"cuda={backend}", **options)
    served = re.findall(r"served: (\S+) (?:float32|int64) (\S+) (\S+) through host memory", said)
    verbs = {"allreduce", "broadcast", "allgather", "reducescatter", "alltoall"}
    assert set(served) == {(verb, "STAGED", backend) for verb in verbs}, said


def test_staged_over_tcp():
    staged("tcp")


@pytest.mark.parametrize("mpirun", ["mpich", pytest.param("openmpi", marks=pytest.mark.slow)], indirect=True)
def test_staged_over_mpi(mpirun):
    staged("mpi", launcher=mpirun)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_engines_matrix_in_full():
    print(matrix(3, "0,2", FULL, timeout=580))
    print(matrix(2, "1", SHORT, HOROVOD_BACKEND_NCCL_NONBLOCKING="1", SIM_CUDA_DELAY_US="0"))
    print(matrix(2, "1", SHORT, HOROVOD_BACKEND="cuda=tcp"))
