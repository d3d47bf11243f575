"""The checks of horovod.jax with older versions of JAX and with the same compiled library: 0.8 and the oldest that calls
its handlers, and one for which operations in programs are callbacks. `make test-all` makes an environment of each.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.checks import check_names

ROOT = Path(__file__).resolve().parents[2]
RANKS = "tests/jax/test_jax_ranks.py::test_check"
# What only the handlers refuse, and a mesh by means that JAX 0.5 does not have.
NOT_WITH_CALLBACKS = {
    "check_programs_on_a_gpu",
    "check_programs_that_the_compiler_divides",
    "check_a_mesh_of_several_devices_is_refused",
}
# Of the matrix. With callbacks all operations of one program would wait for each other.
MATRIX = ("check_jit", "check_grad", "check_vmap")


def python_of(version):
    """The interpreter of an environment. Skips if there is no such file."""
    python = Path(sys.prefix) / f"jax-{version}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no JAX {version} in an environment of its own ({python}); `make test-all` makes it")
    return python


def checks(version):
    """The identifiers of the checks for a version, all on two ranks."""
    found = []
    for module in ("ops", "programs", "refusals", "training"):
        name = f"ranks_jax_{module}"
        found += [(name, check) for check in check_names(f"jax/{name}.py")]
    if version == "0.5":
        found = [(name, check) for name, check in found if check not in NOT_WITH_CALLBACKS]
    else:
        found += [("ranks_jax_matrix", check) for check in MATRIX]
    return [f"{RANKS}[{name}-2-{check}]" for name, check in found]


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
def test_checks_pass(version):
    python = python_of(version)
    said = run(python, ["-c", "import importlib.metadata as m; print(m.version('jaxlib'))"], 100).stdout
    assert said.startswith(f"{version}.")
    wanted = checks(version)
    done = run(python, ["-m", "pytest", *wanted, "-q", "-p", "no:cacheprovider"], 1850)
    assert done.returncode == 0 and f"{len(wanted)} passed" in done.stdout, done.stdout[-6000:]
