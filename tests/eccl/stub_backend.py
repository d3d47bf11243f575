"""Where eccl_stub's library is, and programs that use it in a process of their own.

A process of its own, because the simulator reads its settings when it is loaded, and a fork of a process that has
loaded it has no devices.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "backends" / "eccl_stub"
PACKAGE = FOLDER / "src" / "hvd_backend_eccl_stub"

# What a program finds ready: a loaded backend, and how to call its slots.
PREAMBLE = """
import ctypes as C, os, sys
from hvd_core.conformance import abi
from hvd_core.conformance.abi import Buf, CollArgs, CollCaps, CommArgs, new
from hvd_core.conformance.backend import Backend, BackendFailure, deadline

class Empty:  # the store of a job that needs none
    def delete(self, key): pass

backend = Backend("eccl_stub", {library!r}, Empty())
vendor = C.CDLL({simulator!r})

def refusal(call, *args):
    try:
        call(*args)
    except BackendFailure as failure:
        return failure
    raise AssertionError("that was not refused")

def made(slot, *args):
    handle = C.c_void_p()
    backend.call("device", slot, *args, C.byref(handle))
    return handle
"""


def library(name="hvd_backend_eccl_stub"):
    """The shared object as it was built with the checkout, by hand or by `make`."""
    path = PACKAGE / "lib" / f"lib{name}.so"
    assert path.is_file(), (
        f"{path} is not built: pip install --no-build-isolation -e {FOLDER}, or cmake --build"
    )
    return path


def run(program, *args, **environment):
    """Runs the program after the preamble and returns what it printed."""
    text = PREAMBLE.format(library=str(library()), simulator=str(library("eccl_sim"))) + program
    return python(text, *args, **environment)


def python(text, *args, **environment):
    """Runs a program and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, args)],
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
