"""The examples for Flax and Equinox train to at least 97 % on two processes, which end with equal weights. They run in an
environment that `make test-all` makes, as Flax brings 100 MB."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from test_tf_examples import accuracy_in, example_and_output, expect_equal_weights, written

HERE = Path(__file__).resolve().parent
PYTHON = Path(sys.prefix) / "jax-0.8" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no {PYTHON}; `make test-all` makes it"),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("library", "file"), [("flax", "digits.npz"), ("equinox", "digits.eqx")])
def test_trains_on_two_processes_and_alone(tmp_path, library, file):
    output = run(tmp_path, library, [str(PYTHON), "-m", "horovod.runner.launch", "-np", "2", str(PYTHON)])
    assert accuracy_in(output) >= 97.0 and "2 process(es)" in output
    expect_equal_weights(tmp_path)
    assert written(tmp_path) == [library, f"{library}/{file}"]
    assert "1 process(es)" in run(tmp_path, library, [str(PYTHON)], "--epochs", "1")


def run(folder, library, interpreter, *options):
    """What the example has printed."""
    words = [*interpreter, str(HERE / "run_example.py"), str(folder)]
    words += [*example_and_output(folder, f"{library}_digits"), *options]
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[2]), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=800, cwd=folder, env=env)
    assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
