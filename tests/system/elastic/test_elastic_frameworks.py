"""Elastic jobs on PyTorch, TensorFlow, Keras and JAX: a rank is killed, the others go on, and a new rank joins them."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest

from worlds import wait_for_ranks

pytest.importorskip("hvd_core._core", reason="the engine is not built")

HERE = Path(__file__).parent
FIRST_ALONE = [
    ("tensorflow", "elastic_tensorflow.py", "functions", {}),
    ("jax", "elastic_jax.py", "programs", {}),
]
JOBS = [
    pytest.param("torch", "elastic_torch.py", "everything", {}, marks=pytest.mark.slow),
    pytest.param("jax", "elastic_jax.py", "programs", {}, marks=pytest.mark.slow),
    pytest.param("tensorflow", "elastic_tensorflow.py", "functions", {}, marks=pytest.mark.slow),
    *(
        pytest.param(
            of, "elastic_keras.py", "fit", {"KERAS_BACKEND": of}, marks=pytest.mark.slow, id=f"keras-{of}"
        )
        for of in ("tensorflow", "torch", "jax")
    ),
]
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "OMP_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework, file, function, env", JOBS)
def test_a_rank_is_killed_and_a_new_one_joins(launcher, framework, file, function, env):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    command = [sys.executable, str(HERE / file), function]
    process = launcher.start("-np", 2, "--min-np", 1, *command, env={**QUIET, **env})
    _, killed = wait_for_ranks(launcher, process, 2)
    for noted in launcher.folder.glob("in.2.*"):
        noted.unlink()
    os.kill(killed, signal.SIGKILL)
    wait_for_ranks(launcher, process, 2)  # perhaps after a world of one
    (launcher.folder / "enough").touch()
    out, err = (data.decode() for data in process.communicate(timeout=250))
    assert process.returncode == 0, err
    assert sorted(line.partition(":")[2] for line in out.splitlines()) == [
        f"rank {rank} of 2 is done, some steps" for rank in (0, 1)
    ]
    assert "killed by SIGKILL" in err
    assert launcher.wait_for_none() == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework, file, function, env", FIRST_ALONE)
def test_functions_of_one_rank_reduce_when_there_are_two(launcher, framework, file, function, env):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    (launcher.folder / "hosts").write_text("localhost:1\n")
    words = ("-np", 1, "--min-np", 1, "--max-np", 2, "--host-discovery-script", "cat hosts")
    command = [sys.executable, str(HERE / file), function]
    process = launcher.start(*words, *command, env={**QUIET, **env})
    wait_for_ranks(launcher, process, 1)
    (launcher.folder / "hosts.new").write_text("localhost:2\n")
    (launcher.folder / "hosts.new").rename(launcher.folder / "hosts")
    wait_for_ranks(launcher, process, 2)
    (launcher.folder / "enough").touch()
    out, err = (data.decode() for data in process.communicate(timeout=250))
    assert process.returncode == 0, err
    assert out.count("of 2 is done, some steps") == 2
