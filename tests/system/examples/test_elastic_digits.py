"""The elastic examples under horovodrun: a rank is killed, and the discovery script prints other slots meanwhile."""

import importlib.util
import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest

from launchers import Launcher

pytest.importorskip("hvd_core._core", reason="the engine is not built")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
JOBS = [
    pytest.param("tensorflow", "tensorflow2_elastic_digits.py", {}, id="tensorflow2"),
    *(
        pytest.param(of, "keras_elastic_digits.py", {"KERAS_BACKEND": of}, id=f"keras-{of}")
        for of in ("tensorflow", "torch", "jax")
    ),
]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def launcher(tmp_path):
    made = Launcher(tmp_path)
    yield made
    made.clean_up()


def write(folder, slots):
    """Writes the file that the discovery script prints, as a whole."""
    (folder / "hosts.new").write_text(f"localhost:{slots}\n")
    (folder / "hosts.new").rename(folder / "hosts")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("framework, example, env", JOBS)
def test_trains_while_ranks_come_and_go(launcher, framework, example, env):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    write(launcher.folder, 2)
    words = ["-np", 2, "--min-np", 1, "--max-np", 3, "--host-discovery-script", "cat hosts"]
    command = [sys.executable, str(EXAMPLES / example), "--epochs", "60"]
    options = ("--blacklist-cooldown-range", 1, 2)
    process = launcher.start(*words, *options, *command, env={**QUIET, **env})
    errors = []
    reader = threading.Thread(target=lambda: errors.extend(process.stderr))
    reader.start()
    pids, lines = {}, []
    for line in map(bytes.decode, process.stdout):
        lines.append(line)
        if begins := re.search(r"rank (\d) of 2, process (\d+)", line):
            pids[int(begins[1])] = int(begins[2])
        if "epoch 2: loss" in line and 1 in pids:
            write(launcher.folder, 3)
            os.kill(pids.pop(1), signal.SIGKILL)
    reader.join()
    out, err = "".join(lines), b"".join(errors).decode()
    assert process.wait(timeout=60) == 0, err
    assert "killed by SIGKILL" in err and "world 2: " in err
    ends = [int(n) for n in re.findall(r"epoch (\d+): loss", out)]
    assert ends[-1] == 60 and set(ends) == set(
        range(1, 61)
    )  # an epoch whose end was not committed is repeated
    assert float(re.search(r"test accuracy ([\d.]+) %", out)[1]) >= 96
    assert launcher.wait_for_none() == []
