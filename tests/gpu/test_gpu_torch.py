"""horovod.torch on CUDA tensors: all operations, streams under stress, captures, over NCCL and through host memory.

The checks are those that tests/torch and tests/torch_distributed run on a simulated device (ranks_device*.py there), and
what only CUDA has (ranks_cuda.py here). Each row of JOBS has processes of its own, which stay alive for its checks.
"""

import gpu_machine

gpu_machine.require()

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import run_on_ranks, run_to_the_end
from harness.checks import check_names

HERE = Path(__file__).resolve().parent
THOUSANDS = {"HVD_TEST_TURNS": "3000"}
# Ranks, modules, environment.
JOBS = {
    "nccl-1": (1, ["ranks_cuda", "ranks_device_ops", "ranks_device_stress"], {"HOROVOD_BACKEND": "nccl", **THOUSANDS}),
    "nccl-2": (
        2, ["ranks_cuda", "ranks_device_ops", "ranks_device_stress", "ranks_staging_training"],
        {"HOROVOD_BACKEND": "nccl", **THOUSANDS},
    ),
    "nccl-4": (4, ["ranks_device_stress"], {"HOROVOD_BACKEND": "nccl", "HVD_TEST_TURNS": "300"}),
    # Only the device's table is used: the operations are those of a backend for host memory.
    "tcp-2": (2, ["ranks_device_ops", "ranks_device_stress"], {"HOROVOD_BACKEND": "cuda=tcp", "HVD_TEST_TURNS": "500"}),
    # No backend has the device: PyTorch copies.
    "no-backend-2": (
        2, ["ranks_device_ops", "ranks_device_stress", "ranks_staging", "ranks_staging_training"],
        {"HOROVOD_BACKEND": "shm", "HVD_TEST_TURNS": "500"},
    ),
    "shm-2": (2, ["ranks_device_stress"], {"HOROVOD_BACKEND": "cuda=shm", "HVD_TEST_TURNS": "500"}),
    "distributed-2": (2, ["ranks_devices"], {"HOROVOD_BACKEND": "nccl"}),
}  # fmt: skip


def folder_of(module):
    return next(
        f for f in ("gpu", "torch", "torch_distributed") if (HERE.parent / f / f"{module}.py").exists()
    )


CASES = [
    (job, module, check)
    for job, (_, modules, _) in JOBS.items()
    for module in modules
    for check in check_names(f"{folder_of(module)}/{module}.py")
]


def run(ranks, module, check, env, launcher=None):
    """Runs a check on living ranks, which `launcher` starts (horovodrun) with the devices of `env`."""
    launcher = launcher or [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks)]
    run_on_ranks(
        ranks,
        "harness/framework_rank.py::call_check",
        folder_of(module),
        module,
        check,
        init="horovod.torch",
        process_env=gpu_machine.environment(ranks, HOROVOD_START_TIMEOUT="200", **env),
        command=[*launcher, sys.executable, str(HERE / "own_number.py")],
        kind="torch",
        timeout=280,
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("job", "module", "check"), CASES, ids=["-".join(case) for case in CASES])
def test_check(job, module, check):
    ranks, _, env = JOBS[job]
    run(ranks, module, check, env)


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
    if words and not (shutil.which("ssh") or shutil.which("rsh")):
        words += ["--mca", "plm", "isolated"]  # Open MPI 4 wants one of them, for this machine alone too
    env = {"HOROVOD_BACKEND": "cuda=mpi", "HVD_TEST_TURNS": "300"}
    for check in check_names("torch/ranks_device_stress.py"):
        run(2, "ranks_device_stress", check, env, launcher=[mpirun, *words, "-np", "2"])


@pytest.mark.timeout(300)
def test_the_death_of_a_rank_is_told_to_who_waits_for_a_gpu():
    output = run_to_the_end(
        2,
        "torch/rank_device_dies.py::last_rank_dies",
        env=gpu_machine.environment(2, HOROVOD_BACKEND="nccl", HOROVOD_START_TIMEOUT="200"),
        command=[
            sys.executable,
            "-m",
            "horovod.runner.launch",
            "-np",
            "2",
            sys.executable,
            str(HERE / "own_number.py"),
        ],
        init="horovod.torch",
        timeout=200,
        code=137,
    )
    told = [line for line in output.splitlines() if "told:" in line]
    assert len(told) == 1 and "rank 1" in told[0], output
