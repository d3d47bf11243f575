"""horovodrun on this machine."""

import functools
import shlex
import sys

import pytest

import horovod
from horovod._runner.environment import python_path
from launchers import Launcher


@pytest.fixture
def launcher(tmp_path):
    made = Launcher(tmp_path)
    yield made
    made.clean_up()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """horovod.run() whose processes are forked, for tests of what becomes of the function and its result.

    The program that stands for Python is not this process's Python, so horovod.run() hands no import path to it.
    """
    program = tmp_path / "forked-python"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable])} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", python_path())
    return functools.partial(horovod.run, executable=str(program))
