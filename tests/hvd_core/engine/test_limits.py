"""Limits of the operating system: init() names the limit and what it needs."""

import errno
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hvd_core as hvd
from harness import run_to_the_end
from harness.rank import await_told, expect, tell
from hvd_core._base.sockets import BootstrapError
from hvd_core._config.settings import read_environment
from hvd_core._runtime import runtime


def init_with_few_descriptors():
    """Rank 0 has room for a few descriptors, and not for all that init() needs. Later both have enough."""
    me = int(os.environ["HOROVOD_RANK"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for spare in (0, 6):
        if me == 0:
            # A new descriptor gets the lowest free number, and the limit is one of numbers.
            numbers = {int(fd) for fd in os.listdir("/proc/self/fd")}
            free = [number for number in range(max(numbers) + 2 + spare) if number not in numbers]
            resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], hard))
        try:
            text = expect(Exception, hvd.init)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert ("(ulimit -n)" if me == 0 else "Too many open files") in text, text
        tell(f"{spare}.{me}")
        await_told(f"{spare}.{1 - me}")
    hvd.init()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == 2


def test_init_with_few_descriptors_names_the_limit_on_all_ranks(tmp_path):
    # In processes of its own: what an earlier check has left to the garbage collector or to a thread would count.
    run_to_the_end(2, init_with_few_descriptors, folder=tmp_path, init=None)


@pytest.mark.parametrize(
    "error, part",
    [
        (OSError(errno.EMFILE, "Too many open files"), "(ulimit -n)"),
        (RuntimeError("can't start new thread"), "(ulimit -u)"),
        (OSError(errno.EAGAIN, "the thread hvd-engine cannot be started"), "(ulimit -u)"),
    ],
)
def test_limits_are_told_from_other_errors(error, part):
    with pytest.raises(BootstrapError, match=re.escape(part)):
        runtime._explain_limit(error)
    runtime._explain_limit(OSError(errno.EAGAIN, "try again"))


def test_settings_out_of_range_name_their_range():
    for name, value, most in (
        ("HOROVOD_CACHE_CAPACITY", 1 << 32, (1 << 32) - 1),
        ("HOROVOD_CACHE_CAPACITY", -1, (1 << 32) - 1),
        ("HOROVOD_FUSION_THRESHOLD", 1 << 62, (1 << 62) - 1),
    ):
        with pytest.raises(
            ValueError, match=f"{name}='{value}' is out of range: it must be between 0 and {most}"
        ):
            read_environment({name: str(value)})


def log_to_a_closed_stderr(path):
    """This process was started without stderr: the first file that it opens gets its descriptor."""
    with open(path, "w", buffering=1) as file:
        file.write(f"{file.fileno()}\n")
        hvd.init()
        hvd.allreduce(np.ones(1))
        hvd.shutdown()


def test_log_lines_do_not_go_into_a_file_of_the_program(tmp_path):
    path = tmp_path / "file"
    environment = {**os.environ, "HOROVOD_LOG_LEVEL": "trace"}
    command = [sys.executable, "-c", f"import test_limits; test_limits.log_to_a_closed_stderr({str(path)!r})"]
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    environment["PYTHONPATH"] = paths
    loud = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    assert "horovod DEBUG" in loud, "this test needs a log line"
    closed = ["sh", "-c", 'exec "$0" "$@" 2>&-', *command]
    subprocess.run(closed, env=environment, check=True)
    assert path.read_text() == "2\n"
