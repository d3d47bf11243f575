"""The tests of horovod.jax with older versions of JAX and with the same compiled library: 0.8 and the oldest that calls
its handlers, and one for which operations in programs are callbacks. `make test-all` makes an environment of each.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULES = ("ops", "programs", "refusals", "training")
# With callbacks all operations of one program would wait for each other.
MATRIX = ("test_jit", "test_grad", "test_vmap")
# What only the handlers refuse, and a mesh by means that JAX 0.5 does not have.
NOT_WITH_CALLBACKS = (
    "test_programs_on_a_gpu",
    "test_programs_that_the_compiler_divides",
    "test_a_mesh_of_several_devices_is_refused",
)


def python_of(version):
    """The interpreter of an environment. Skips if there is no such file."""
    python = Path(sys.prefix) / f"jax-{version}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no JAX {version} in an environment of its own ({python}); `make test-all` makes it")
    return python


def selection(version):
    """The words for pytest that select the tests for a version: those on two ranks, and of the matrix a part."""
    words = [f"tests/horovod/jax/test_jax_{module}.py" for module in MODULES]
    if version == "0.5":
        return [*words, "-k", f"[2 and not ({' or '.join(NOT_WITH_CALLBACKS)})"]
    return [
        *words,
        *(f"tests/horovod/jax/test_jax_matrix.py::{name}" for name in MATRIX),
        "-k",
        "[2 or test_jax_matrix",
    ]


def run(python, words, timeout):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON"))}
    env |= {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{python.parent}{os.pathsep}{env['PATH']}",
        "JAX_PLATFORMS": "cpu",
    }
    return subprocess.run(
        [str(python), *words],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )


@pytest.mark.slow
@pytest.mark.timeout(1900)
@pytest.mark.parametrize("version", ["0.5", "0.6", "0.8"])
def test_tests_of_jax_pass(version):
    python = python_of(version)
    said = run(python, ["-c", "import importlib.metadata as m; print(m.version('jaxlib'))"], 100).stdout
    assert said.startswith(f"{version}.")
    done = run(python, ["-m", "pytest", *selection(version), "-q", "-p", "no:cacheprovider"], 1850)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-6000:]
