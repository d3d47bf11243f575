"""Where eccl_stub's library is, programs that use it (eccl_programs.py), and the kit on it."""

import os
import subprocess
import sys
from pathlib import Path

from compiled import cc, compiled

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "backends" / "eccl_stub"
SIMULATOR = ROOT / "simulators" / "eccl"
PACKAGE = FOLDER / "src" / "hvd_backend_eccl_stub"
PROGRAMS = Path(__file__).with_name("eccl_programs.py")


def library(name="hvd_backend_eccl_stub"):
    """The shared object as it was built with the checkout, by hand or by `make`."""
    path = PACKAGE / "lib" / f"lib{name}.so"
    assert path.is_file(), (
        f"{path} is not built: pip install --no-build-isolation -e {FOLDER}, or cmake --build"
    )
    return path


def program_side():
    """The program's side of the device, linked with the simulator that the backend opens."""
    simulator = library("eccl_sim")
    return compiled(
        "libprogram_side.so",
        [cc(), "-shared", "-fPIC", "-Wall", "-Werror"],
        [Path(__file__).with_name("program_side.c")],
        [SIMULATOR / "include"],
        [f"-Wl,-rpath,{simulator.parent}", simulator],
    )


def run(program, *arguments, python=None, **environment):
    """Runs a function of eccl_programs.py in a process of its own and returns what it printed.

    python: the interpreter; default: a child of a process that has imported the kit.
    """
    words = [PROGRAMS, program.__name__, *arguments]
    done = subprocess.run(
        [*([python] if python else [sys.executable]), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def conformance(*args, ranks=2, **environment):
    """Runs the kit on the library; (exit status, everything it printed)."""
    command = [sys.executable, "-m", "hvd_core.conformance", "eccl_stub", "--library", str(library())]
    done = subprocess.run(
        [*command, "-np", str(ranks), "--quick", *args],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout + done.stderr
