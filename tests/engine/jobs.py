"""Starts small programs on several ranks through the real launcher, for the engine's tests.

A program is Python text; it runs with ``hvd`` (the NumPy face), ``np``, ``rank`` and ``size`` at hand, after init().
Where one rank must not go on before another has come so far, and the engine is not to be asked: ``tell("x")`` and
``await_told("x")``, or ``meet("x")`` on all ranks. They use the program's folder, once per name and job.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from launchers import finish

import hvd_core

PRELUDE = """
import os, signal, sys, threading, time
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

def expect_ctrl_c(call, seconds):
    '''Ctrl-C comes so long after the call has begun.'''
    begun = threading.Event()
    def interrupt():
        begun.wait()
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    expect(KeyboardInterrupt, lambda: (begun.set(), call()))

def tell(what):
    open(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"told.{what}"), "w").close()

def is_told(what):
    return os.path.exists(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"told.{what}"))

def await_told(what, seconds=40):
    end = time.monotonic() + seconds
    while not is_told(what):
        assert time.monotonic() < end, f"nobody has told {what}"
        time.sleep(0.005)

def meet(what):
    tell(f"{what}.{rank}")
    for r in range(size):
        await_told(f"{what}.{r}")

hvd.init()
rank, size = hvd.rank(), hvd.size()
"""


def has_backend(name: str) -> bool:
    """Whether this build embeds the backend."""
    return any((Path(hvd_core.__file__).parent / "lib").glob(f"*{name}*.so"))


def write_program(folder: Path, text: str) -> Path:
    for left in Path(folder).glob("told.*"):  # by an earlier job of the same test
        left.unlink()
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


def run(ranks: int, folder: Path, text: str, env=None, timeout=100, code=0) -> str:
    """Run a program given as text to its end and return what it printed; asserts on the exit code."""
    return finish(start(ranks, write_program(folder, text), env), timeout, code)
