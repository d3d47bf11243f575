"""Memory that runs out at any allocation of the compiled part, for a moment or for long: the call raises or the job ends, and
no process does."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compiled import ROOT, compiled, cxx

import hvd_core as hvd
from harness import run_to_the_end
from harness.rank import tell

NATIVE = Path(__file__).parent / "native"


def library(name="failing_memory"):
    command = [cxx(), "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread"]
    return compiled(f"lib{name}.so", command, [NATIVE / f"{name}.cc"], [ROOT / "hvd_core"])


def short_of_memory(path, turns):
    """In turn k rank 1 has no memory at its k-th allocation and at some after it, while it submits and waits."""
    memory = ctypes.CDLL(path)
    failing = int(os.environ["HOROVOD_RANK"]) == 1
    arrays = [np.ones(16, np.float32) for _ in range(3)]
    outcomes = set()
    for later, count in turns:
        hvd.init()
        handles, outcome = [], "done"
        try:
            hvd.barrier()
            if failing:
                memory.memory_runs_out(ctypes.c_long(later), ctypes.c_long(count))
            for i, array in enumerate(arrays):
                handles.append(hvd.allreduce_async_(array, name=f"a name that needs memory of its own.{i}"))
            for handle in handles:
                hvd.synchronize(handle)
        except (MemoryError, hvd.HorovodInternalError) as error:
            outcome = type(error).__name__
        memory.memory_is_back()
        hvd.shutdown()
        outcomes.add(outcome)
    hvd.init()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum, name="again") == 2
    tell(f"ended.{hvd.rank()}")
    if failing:
        print("outcomes:", *sorted(outcomes))


def check(turns):
    out = run_to_the_end(
        2, short_of_memory, str(library()), turns, init=None, env={"LD_PRELOAD": str(library())}, timeout=300
    )
    assert "terminate called" not in out, out
    assert "outcomes: JobEndedError MemoryError" in out, out


def test_memory_runs_out_for_good_or_for_a_moment():
    check([(later, count) for later in range(0, 30, 5) for count in (1, 1000)])


@pytest.mark.slow
def test_memory_runs_out_at_each_allocation():
    check([(later, count) for later in range(30) for count in (1, 2, 4, 10, 30, 1000)])


def test_a_thread_without_memory_for_its_first_steps_is_not_started():
    code = (
        "import ctypes, sys; call = ctypes.CDLL(sys.argv[1]).start_a_thread_without_memory; "
        "call.restype = ctypes.c_char_p; print(call().decode())"
    )
    command = [sys.executable, "-c", code, library("thread_without_memory")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "St9bad_alloc\n", "")
