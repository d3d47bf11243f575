"""Streams under stress on CUDA tensors over MPI: an MPI that cannot read the device's memory is served through pinned
memory; one that can, directly."""

import gpu_machine

gpu_machine.require()

import shutil
import subprocess
import sys

import pytest

import test_torch_device_stress
from harness import run_on_ranks

MPIRUN = shutil.which("mpirun")
BODIES = [body for name, body in vars(test_torch_device_stress).items() if name.startswith("test_")]


@pytest.mark.skipif(MPIRUN is None, reason="no mpirun on the PATH")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("body", BODIES)
def test_over_mpi_through_host_memory(body):
    if subprocess.run([sys.executable, "-c", "import hvd_backend_mpi"], capture_output=True).returncode:
        pytest.skip("hvd-backend-mpi is not installed")
    said = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, timeout=60).stdout
    words = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in said else []
    if words and not (shutil.which("ssh") or shutil.which("rsh")):
        words += ["--mca", "plm", "isolated"]  # Open MPI 4 wants one of them, for this machine alone too
    run_on_ranks(
        2,
        body,
        framework="torch",
        process_env=gpu_machine.environment(2, HOROVOD_BACKEND="cuda=mpi", HVD_TEST_TURNS="300"),
        command=gpu_machine.command(MPIRUN, *words, "-np", "2"),
        timeout=280,
    )
