"""horovod.torch on CUDA tensors: all operations, streams under stress, captures, over NCCL and through host memory.

The checks are those that tests/torch runs on a simulated device (ranks_device_*.py there), and what only CUDA has
(ranks_cuda.py here). One job for each row of JOBS, started when the first of its tests needs it.
"""

import gpu_machine

gpu_machine.require()

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launch import HERE as TORCH_TESTS
from launch import Report, checks_of, launch

HERE = Path(__file__).resolve().parent
THOUSANDS = {"HVD_TEST_TURNS": "3000"}
# Ranks, modules, environment.
JOBS = {
    "nccl-1": (1, ["ranks_cuda", "ranks_device_ops", "ranks_device_stress"], {"HOROVOD_BACKEND": "nccl", **THOUSANDS}),
    "nccl-2": (2, ["ranks_cuda", "ranks_device_ops", "ranks_device_stress"], {"HOROVOD_BACKEND": "nccl", **THOUSANDS}),
    "nccl-4": (4, ["ranks_device_stress"], {"HOROVOD_BACKEND": "nccl", "HVD_TEST_TURNS": "300"}),
    # Only the device's table is used: the operations are those of a backend for host memory.
    "tcp-2": (2, ["ranks_device_ops", "ranks_device_stress"], {"HOROVOD_BACKEND": "cuda=tcp", "HVD_TEST_TURNS": "500"}),
    "shm-2": (2, ["ranks_device_stress"], {"HOROVOD_BACKEND": "cuda=shm", "HVD_TEST_TURNS": "500"}),
}  # fmt: skip
CASES = [
    (job, module, check)
    for job, (_, modules, _) in JOBS.items()
    for module in modules
    for check in checks_of(module, HERE)
]


@functools.cache
def report(job):
    ranks, modules, env = JOBS[job]
    env = gpu_machine.environment(ranks, **env)
    return Report(modules, ranks, env, timeout=280, wrap=HERE / "own_number.py")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("job", "module", "check"), CASES, ids=["-".join(case) for case in CASES])
def test_check(job, module, check):
    report(job).verify(module, check)


@pytest.mark.timeout(400)
def test_over_mpi_through_host_memory(tmp_path):
    """An MPI that cannot read the device's memory is served through pinned memory; one that can, directly."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("no mpirun on the PATH")
    if subprocess.run([sys.executable, "-c", "import hvd_backend_mpi"], capture_output=True).returncode:
        pytest.skip("hvd-backend-mpi is not installed")
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60).stdout
    words = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in said else []
    env = gpu_machine.environment(2, HOROVOD_BACKEND="cuda=mpi", HVD_TEST_TURNS="300")
    launcher = [mpirun, *words, "-np", "2"]
    done = Report(["ranks_device_stress"], 2, env, 300, launcher, HERE / "own_number.py")
    for check in checks_of("ranks_device_stress"):
        done.verify("ranks_device_stress", check)


@pytest.mark.timeout(300)
def test_the_death_of_a_rank_is_told_to_who_waits_for_a_gpu():
    command = [sys.executable, str(HERE / "own_number.py"), str(TORCH_TESTS / "rank_device_dies.py")]
    with pytest.raises(subprocess.CalledProcessError) as died:
        launch(2, command, gpu_machine.environment(2, HOROVOD_BACKEND="nccl"), timeout=200)
    told = [line for line in died.value.output.splitlines() if "told:" in line]
    assert len(told) == 1 and "rank 1" in told[0], died.value.output
