"""The README's example trains on GPUs: with one rank, and with two (on one GPU they pass for two hosts)."""

import gpu_machine

gpu_machine.require()

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NEEDED = ("sklearn", "matplotlib", "tqdm")
MISSING = [module for module in NEEDED if importlib.util.find_spec(module) is None]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"the example needs {', '.join(MISSING)}"),
    pytest.mark.timeout(400),
]


def train(ranks, folder, *options):
    env = {**os.environ, **gpu_machine.sharing(ranks), "HOROVOD_BACKEND": "nccl"}
    if ranks > gpu_machine.count():
        # A process takes the device of its local rank, which is 0 on both "hosts".
        env["HOROVOD_SIMULATED_HOSTS"] = ",".join(str(rank) for rank in range(ranks))
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks), sys.executable]
    command += [str(Path(__file__).with_name("own_number.py")), str(ROOT / "examples" / "pytorch_digits.py")]
    command += ["--device", "cuda", "--output", str(folder), *options]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=380, cwd=folder)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    accuracy = float(re.search(r"test accuracy ([0-9.]+) %", said).group(1))
    return said, accuracy


@pytest.mark.parametrize("ranks", [1, 2])
def test_example_trains(tmp_path, ranks):
    said, accuracy = train(ranks, tmp_path)
    assert accuracy >= 97.0
    assert f"{ranks} process(es) on cuda, backend nccl" in said


def test_compressed_gradients(tmp_path):
    _, accuracy = train(2, tmp_path, "--fp16-allreduce", "--epochs", "15")
    assert accuracy >= 94.0
