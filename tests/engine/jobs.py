"""Starts small programs on several ranks through the real launcher, for the engine's tests.

A program is Python text; it runs with ``hvd`` (the NumPy face), ``np``, ``rank`` and ``size`` at hand, after init().
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from launchers import finish

import hvd_core

PRELUDE = """
import os, signal, sys, time
import numpy as np
import hvd_core as hvd
from hvd_core import runtime

def expect(kind, call, *parts):
    try:
        call()
    except kind as error:
        for part in parts:
            assert part in str(error), (part, str(error))
        return str(error)
    raise AssertionError(f"{kind.__name__} was expected, nothing was raised")

hvd.init()
rank, size = hvd.rank(), hvd.size()
"""


def has_backend(name: str) -> bool:
    """Whether this build embeds the backend."""
    return any((Path(hvd_core.__file__).parent / "lib").glob(f"*{name}*.so"))


def write_program(folder: Path, text: str) -> Path:
    path = Path(folder) / "program.py"
    path.write_text(PRELUDE + textwrap.dedent(text))
    return path


def start(ranks: int, program: Path, env=None, arguments=(), **popen) -> subprocess.Popen:
    """The launcher, running; its output is one stream of text."""
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks)]
    return subprocess.Popen(
        [*command, sys.executable, str(program), *arguments],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **popen,
    )


def run(ranks: int, folder: Path, text: str, env=None, timeout=60, code=0) -> str:
    """Run a program given as text to its end and return what it printed; asserts on the exit code."""
    return finish(start(ranks, write_program(folder, text), env), timeout, code)
