"""The device table of backends/nccl on simulated CUDA: what it does to the threads that call it, captures into graphs,
launches, and devices that there is no machine code for. The kit asks for the rest (test_nccl_simulated_kit.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import simulated_cuda

CHECKS = Path(__file__).with_name("kernels") / "device_checks.py"


@pytest.mark.parametrize(
    ("checks", "variables"),
    [
        (["contexts"], {}),
        (["captures"], {}),
        (["batches"], {}),
        (["text"], {"SIM_CUDA_ARCH": "61"}),
        (["nothing"], {"SIM_CUDA_ARCH": "52"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_on_simulated_cuda(checks, variables, nccl_library):
    command = [sys.executable, str(CHECKS), nccl_library, *checks]
    env = {**os.environ, **simulated_cuda.environment(**variables)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[:-1] == [f"{check} passed" for check in checks]
