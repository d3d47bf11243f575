"""`pytest TEST --rank-debug RANK`: pytest's own process is that rank; the others are new processes beside it.

The processes are a job of a static environment (docs/launch.md), so no launcher is between the terminal and the rank.
"""

import importlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from . import frameworks, rank
from .launch import RANK_ONCE, write_call
from .rank_main import set_variables
from .run import DEFAULT, module_to_initialize

_STARTED = "HVD_TEST_RANK_DEBUG"
# Who sits in a debugger is late, not lost.
_PATIENCE = {"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_START_TIMEOUT": "3600"}


def start_with_variables(items, job_of) -> None:
    """Starts pytest anew with the variables that the test's ranks have from their start, unless it has them."""
    jobs = [job for item in items if (job := job_of(item)) is not None]
    if len(items) != 1 or len(jobs) != 1:
        raise pytest.UsageError(
            f"--rank-debug takes one test that has the mark `ranks`; {len(items)} were selected, {len(jobs)} of them "
            "with the mark. Name one, with its parameters: "
            "pytest 'tests/horovod/torch/test_torch_ops.py::test_factors[3]' --rank-debug 1"
        )
    framework = jobs[0].get("framework", "")
    if frameworks.python_of(framework) != sys.executable:
        raise pytest.UsageError(
            f"the tests of {framework} run in another interpreter, {frameworks.python_of(framework)}"
        )
    if _STARTED not in os.environ:
        variables = {**frameworks.environment_of(framework, jobs[0].get("process_env")), _STARTED: "1"}
        print("pytest starts again with the variables of the test's ranks")
        capture = items[0].config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.stop_global_capturing()  # the terminal is the standard input again
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **variables})


def run_here(me: int, job: dict, function, arguments) -> None:
    """Calls the function in this process, which becomes rank `me`, and in new processes for the other ranks."""
    ranks, framework = job["ranks"], job.get("framework", "")
    if not 0 <= me < ranks:
        raise pytest.UsageError(f"--rank-debug {me}: the test has the ranks 0 to {ranks - 1}")
    init = module_to_initialize(framework, job.get("init", DEFAULT))
    folder = Path(tempfile.mkdtemp(prefix="hvd-ranks-"))
    call = write_call(folder, function, arguments, init, job.get("init_options"))
    # Those of horovod have been taken from pytest's environment since the start.
    started = frameworks.environment_of(framework, job.get("process_env"))
    set_variables({**_PATIENCE, **started, **_identity(ranks), **job.get("env", {})})
    others = {
        other: subprocess.Popen(
            [sys.executable, str(RANK_ONCE), str(call)],
            env={**os.environ, "HOROVOD_RANK": str(other), "PYTHONBREAKPOINT": "0"},
            stdin=subprocess.DEVNULL,
            stdout=(folder / f"output.{other}").open("w"),
            stderr=subprocess.STDOUT,
        )
        for other in range(ranks)
        if other != me
    }
    print(f"\nrank {me} is this process, {os.getpid()}")
    for other, process in others.items():
        print(
            f"rank {other} is process {process.pid} (gdb -p {process.pid}), its output: {folder}/output.{other}"
        )
    os.environ["HOROVOD_RANK"] = str(me)
    rank.folder = folder
    try:
        if init is not None:
            importlib.import_module(init).init(**job.get("init_options", {}))
        function(*arguments)
    except BaseException:
        for process in others.values():
            process.kill()
        raise
    if init is not None:
        importlib.import_module("hvd_core").shutdown()
    failed = [
        other for other, process in others.items() if not _has_returned(process, folder / f"returned.{other}")
    ]
    assert not failed, f"ranks {failed} failed; what they printed is in {folder}"


def _has_returned(process: subprocess.Popen, mark: Path) -> bool:
    """Waits until a rank has returned from the function, or its process has ended. Not for the end alone: rank 0 serves
    the job's store until the other ranks, this process among them, have ended."""
    while not mark.exists():
        if process.poll() is not None:
            return mark.exists()
        time.sleep(0.05)
    return True


def _identity(ranks: int) -> dict[str, str]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    return {
        "HOROVOD_SIZE": str(ranks),
        "HOROVOD_STORE": f"rank0://127.0.0.1:{port}",
        "HOROVOD_SECRET_KEY": secrets.token_hex(32),
    }
