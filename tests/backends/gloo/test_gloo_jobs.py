"""Whole jobs over the gloo backend: started by horovodrun and by mpirun, and the example that trains."""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from launchers import first_by

pytest.importorskip("hvd_core._core", reason="the engine is not built")
pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("gloo_library")]

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "pytorch_digits.py"
HOROVODRUN = [sys.executable, "-m", "horovod.runner.launch"]
PROGRAM = Path(__file__).with_name("gloo_rank.py")


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    if not list(entry_points(group="hvd_core.backends", name="gloo")):
        pytest.skip("hvd-backend-gloo is not installed: pip install --no-build-isolation -e backends/gloo")
    monkeypatch.setenv("HOROVOD_BACKEND", "gloo")


def said(command, cwd, timeout=100):
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
        env=os.environ,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.mpi
@first_by("openmpi")
def test_a_job_of_mpirun(mpirun, tmp_path):
    out = said([*mpirun, "--bind-to", "numa", "-np", 2, sys.executable, PROGRAM], tmp_path)
    assert re.search(r"allreduce +cpu +gloo .*libgloo 0\.", out), out


def test_an_algorithm_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("HOROVOD_BACKEND_GLOO_ALGORITHM", "rng")
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert "HOROVOD_BACKEND_GLOO_ALGORITHM" in done.stderr
    assert "must be one of auto, ring, bcube, but is 'rng'" in done.stderr


@pytest.mark.slow
@pytest.mark.mpi
def test_training_in_a_job_of_mpirun(mpirun, tmp_path):
    out = said([*mpirun, "--bind-to", "numa", "-np", 2, sys.executable, EXAMPLE], tmp_path, 280)
    assert trained(out)


@pytest.mark.slow
def test_training_in_a_job_of_horovodrun(tmp_path):
    assert trained(said([*HOROVODRUN, "-np", 2, sys.executable, EXAMPLE], tmp_path, 280))


def trained(out):
    (accuracy,) = re.findall(r"test accuracy ([\d.]+) %.*backend gloo", out)
    return float(accuracy) > 95
