"""Some tests for TensorFlow and Keras with the oldest TensorFlow that is supported, and with the same compiled modules.
`make test` installs it into an environment of its own. run_matrix.sh runs all tests.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = "tests/horovod/tensorflow/test_tf_programs.py"
# Tests that the library loads, that a graph of TensorFlow 1 and a function of TensorFlow 2 train, and that Keras 2 does.
PARTS = {
    "a program of each kind": [
        f"{PROGRAMS}::test_monitored_session_of_tensorflow_1",
        f"{PROGRAMS}::test_keras_tutorial_of_tensorflow_2",
        "tests/horovod/keras/test_keras_keras2.py",  # only here: what Keras 2 alone has
    ],
    "all programs": [PROGRAMS, "tests/system/examples/test_tf_examples.py::test_keras_trains_on_tensorflow"],
}


def oldest_python():
    """The interpreter of that environment: HVD_TEST_TF_OLDEST, or the one that `make test` has made. Skips if there is no
    such file."""
    told = os.environ.get("HVD_TEST_TF_OLDEST")
    python = Path(told) if told else Path(sys.prefix) / "tensorflow-2.15" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no TensorFlow 2.15 in an environment of its own ({python}); `make test` makes it")
    return python


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "part", ["a program of each kind", pytest.param("all programs", marks=pytest.mark.slow)]
)
def test_oldest_tensorflow_passes_a_part_of_the_tests(part):
    python = oldest_python()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON"))}
    env["PYTHONPATH"] = str(ROOT)
    env["PATH"] = f"{python.parent}{os.pathsep}{env['PATH']}"
    command = [str(python), "-m", "pytest", *PARTS[part], "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1150,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-6000:]
    version = subprocess.run(
        [str(python), "-c", "import importlib.metadata as m; print(m.version('tensorflow-cpu'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert version.startswith("2.15.")
