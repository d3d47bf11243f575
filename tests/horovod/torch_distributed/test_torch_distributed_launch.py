"""init_process_group("hvd") in programs without an import of horovod: under launchers, and in ranks that they start.

PyTorch finds hvd when it is imported.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from harness.frameworks import horovodrun, torchrun
from harness.installed import is_installed, need
from older_torch import need_fully_shard

HERE = Path(__file__).parent
PROGRAM = str(HERE / "launched_program.py")
COMMANDS = {
    "horovodrun": [*horovodrun(2), PROGRAM],
    "spawn": [sys.executable, PROGRAM, "spawn"],
}


def run(*words, **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOROVOD_START_TIMEOUT": "200", **variables}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_program_of_torch_under_torchrun():
    assert "hvd on 2 ranks: done" in run(*torchrun(), PROGRAM)


@pytest.mark.slow
@pytest.mark.parametrize("way", COMMANDS)
def test_a_program_of_torch(way):
    assert "hvd on 2 ranks: done" in run(*COMMANDS[way])


@pytest.mark.slow
@pytest.mark.skipif(version("torch").startswith("2.4."), reason="PyTorch 2.4 loads no entry points")
@pytest.mark.parametrize("text", ["cpu:hvd,cuda:gloo,xpu:gloo", "gloo"])
def test_horovodrun_with_any_backend(text):
    output = run(*COMMANDS["horovodrun"], HVD_TEST_BACKEND=text)
    assert " on 2 ranks: done" in output


def test_the_ranks_meet_where_the_name_of_the_first_host_means_nothing():
    """As with an alias of ssh, or the name of a container."""
    words = ["-H", "no-such-host.invalid:1,localhost:1", "--network-interfaces", "lo"]
    words += ["--remote-shell", "sh -c 'exec {command}' {host}"]
    assert "hvd on 2 ranks: done" in run(*horovodrun(2, *words), PROGRAM)


@pytest.mark.skipif(version("torch").startswith("2.4."), reason="PyTorch 2.4 loads no entry points")
def test_a_program_without_hvd_is_untouched():
    words = [sys.executable, str(HERE / "untouched_program.py")]
    with_hvd = run(*words, OMPI_COMM_WORLD_RANK="0")
    assert with_hvd == run(*words, OMPI_COMM_WORLD_RANK="0", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "environment variable RANK expected" in with_hvd


@pytest.mark.slow
@pytest.mark.skipif(version("torch").startswith("2.4."), reason="PyTorch 2.4 loads no entry points")
def test_variables_of_the_program_count_under_horovodrun():
    output = run(*COMMANDS["horovodrun"], "alone")
    assert output.count("gloo on 1 ranks") == 2


@pytest.mark.slow
def test_the_example_with_sharded_weights():
    need_fully_shard()
    example = HERE.parents[2] / "examples" / "pytorch_fsdp_digits.py"
    output = run(*torchrun(), str(example), "--epochs", "6")
    accuracy = float(output.split("test accuracy ")[1].split(";")[0])
    assert accuracy > 0.9


@pytest.mark.slow
def test_detailed_debugging():
    """PyTorch checks more then, and DDP logs; hvd's own checks of each call are always there."""
    output = run(*torchrun(), str(HERE / "trained_program.py"), TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert output.count("trained") == 2


@pytest.mark.slow
@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_libraries_above(library):
    if library == "lightning" and not is_installed(library):
        need("pytorch_lightning", reason="neither lightning nor pytorch_lightning is installed")
    elif library != "lightning":
        need(library)
    assert run(*torchrun(), str(HERE / "library_programs.py"), library).count("trained") == 2
