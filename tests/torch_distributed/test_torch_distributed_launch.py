"""init_process_group("hvd") in programs without an import of horovod: under launchers, and in ranks that they start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.installed import need

need("torch")

HERE = Path(__file__).parent
PROGRAM = str(HERE / "launched_program.py")
COMMANDS = {
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2", PROGRAM],
    "horovodrun": ["-m", "horovod.runner.launch", "-np", "2", sys.executable, PROGRAM],
    "spawn": [PROGRAM, "spawn"],
}


def run(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOROVOD_START_TIMEOUT": "200"}
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "way",
    ["torchrun", *(pytest.param(way, marks=pytest.mark.slow) for way in ("horovodrun", "spawn"))],
)
def test_a_program_of_torch(way):
    assert "hvd on 2 ranks: done" in run(*COMMANDS[way])


@pytest.mark.slow
def test_the_example_with_sharded_weights():
    example = HERE.parents[1] / "examples" / "pytorch_fsdp_digits.py"
    output = run("-m", "torch.distributed.run", "--nproc-per-node", "2", str(example), "--epochs", "6")
    accuracy = float(output.split("test accuracy ")[1].split(";")[0])
    assert accuracy > 0.9
