"""docs/migrate.md: its diffs apply, and the scripts of both sides train."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.installed import need

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "migrate.md"
FOLDER = ROOT / "examples" / "one_to_many"
NAMES = ("pytorch", "keras", "tensorflow1")


@pytest.mark.skipif(shutil.which("patch") is None, reason="the command patch is not installed")
@pytest.mark.parametrize("name", NAMES)
def test_the_diff_of_the_page_makes_the_second_script(name, tmp_path):
    blocks = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (diff,) = (block for block in blocks if f"{name}_one.py" in block)
    script = tmp_path / "train.py"
    shutil.copy(FOLDER / f"{name}_one.py", script)
    subprocess.run(["patch", "-s", script], input=diff, text=True, check=True, timeout=60)
    assert script.read_text() == (FOLDER / f"{name}_many.py").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_both_scripts_train(name, tmp_path):
    need("sklearn", *(("torch",) if name == "pytorch" else ("tensorflow", "keras")))
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    horovodrun = [sys.executable, "-m", "horovod.runner.launch", "-np", "2"]
    for side, words in (("one", []), ("many", horovodrun)):
        folder = tmp_path / side
        folder.mkdir()
        command = [*words, sys.executable, FOLDER / f"{name}_{side}.py"]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        # Two processes carry out half of the steps, with the doubled rate: about the same accuracy.
        found = re.findall(r"test accuracy ([\d.]+) %", done.stdout)
        assert float(found[-1]) > 85, done.stdout
        assert len(os.listdir(folder)) == 1, "rank 0 alone writes"
