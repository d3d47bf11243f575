"""Wheels are all that a machine needs: without a compiler on PATH, from an empty environment to the first allreduce.

What the wheels require is linked, not downloaded, so the seconds that are printed are those of hvd-core itself; `make
test-pythons` measures an installation from the package index.
"""

import importlib.util
import shutil
import time
from pathlib import Path

import pytest

from clean_environment import CleanEnvironment

PROGRAMS = str(Path(__file__).with_name("installed_programs.py"))

pytestmark = pytest.mark.timeout(900)


def run(environment, *command, **variables):
    """The output of a command of the environment, which finds no other commands."""
    path = str(environment.folder / "bin")
    found = [
        name for name in ("cc", "c++", "gcc", "g++", "clang", "ld", "cmake") if shutil.which(name, path=path)
    ]
    assert not found
    return environment.run(*command, PATH=path, **variables)


def two_ranks(environment, program):
    return run(environment, "horovodrun", "-np", "2", str(environment.python), PROGRAMS, program)


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A new environment with hvd-core, and the time at which its making began."""
    begun = time.monotonic()
    made = CleanEnvironment(tmp_path_factory.mktemp("bare") / "venv")
    made.install(wheel)
    return made, begun


@pytest.mark.slow
def test_numpy_on_two_ranks(environment, capsys):
    made, begun = environment
    assert two_ranks(made, "sum_of_ranks").count("of 2 has the sum") == 2
    with capsys.disabled():
        print(f"\n{time.monotonic() - begun:.1f} s from an empty environment to the first allreduce")


@pytest.mark.slow
def test_torch_on_two_ranks(environment):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    made, _ = environment
    made.borrow("torch")
    assert two_ranks(made, "torch_sum_of_ranks").count("of 2 has the sum") == 2


@pytest.mark.slow
def test_plugin_of_a_vendor(installed):
    """`installed` has the wheel of a backend that was made from the template eccl_stub."""
    said = run(installed, "hvd", "plugin", "check", "acme", "-np", "2", "--quick", "--case", "L2.allreduce")
    assert "L2.allreduce" in said and "FAIL" not in said
