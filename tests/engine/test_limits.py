"""Limits of the operating system: init() names the limit and what it needs."""

import contextlib
import errno
import itertools
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hvd_core as hvd
from harness import run_to_the_end
from harness.rank import await_told, expect, tell
from hvd_core._base.sockets import BootstrapError
from hvd_core._bootstrap import limits
from hvd_core._bootstrap.store import StoreClient, StoreServer
from hvd_core._config.settings import read_environment


def open_descriptors():
    """Their numbers, without that of the folder which is read for this."""
    numbers = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            os.fstat(int(name))
            numbers.add(int(name))
    return numbers


def init_with_few_descriptors():
    me = int(os.environ["HOROVOD_RANK"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hvd.init()
    hvd.shutdown()
    kept = open_descriptors()
    for few, spare in itertools.product((1, 0), range(11)):
        if me == few:
            # The threads of an init() that has failed close theirs a little later: these must not count.
            while not open_descriptors() <= kept:
                time.sleep(0.01)
            # A new descriptor gets the lowest free number, and the limit is one of numbers.
            numbers = {int(fd) for fd in os.listdir("/proc/self/fd")}
            free = [number for number in range(max(numbers) + 2 + spare) if number not in numbers]
            resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], hard))
        try:
            text = expect(Exception, hvd.init)
        except AssertionError as error:
            raise AssertionError(f"rank {few} had {spare} to spare: {error}") from None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "(ulimit -n)" in text or (me != few and "Too many open files" in text), (
            f"rank {few} has {spare} to spare: {text}"
        )
        tell(f"{few}.{spare}.{me}")
        await_told(f"{few}.{spare}.{1 - me}")
    hvd.init()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == 2


def test_init_with_few_descriptors_names_the_limit_on_all_ranks(tmp_path):
    # In processes of its own: what an earlier check has left to the garbage collector or to a thread would count.
    run_to_the_end(2, init_with_few_descriptors, folder=tmp_path, init=None)


def test_limits_are_told_from_other_errors():
    for error, part in (
        (OSError(errno.EMFILE, "Too many open files"), "(ulimit -n)"),
        (OSError(errno.ENFILE, "Too many open files in system"), "file-max"),
        (OSError(errno.EFBIG, "File too large"), "(ulimit -f)"),
        (RuntimeError("can't start new thread"), "(ulimit -u)"),
        (OSError(errno.EAGAIN, "the thread hvd-engine cannot be started"), "(ulimit -u)"),
    ):
        found = limits.explained(error)
        assert isinstance(found, BootstrapError) and part in str(found), found
    for error in (OSError(errno.EAGAIN, "try again"), RuntimeError("no"), ValueError("x"), found):
        assert limits.explained(error) is None


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


def store_without_a_thread():
    """The address space has room for the memory of a second store, and not for the stack of its thread (8 MiB)."""
    first = StoreServer(secret=b"s" * 32)
    # While the first thread makes its memory arena, the address space is up to 64 MiB larger than it is afterwards.
    StoreClient(first.address, b"s" * 32).set("answered", b"")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (4 << 20), -1))
    try:
        with pytest.raises(OSError) as error:
            StoreServer(secret=b"s" * 32)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    first.close()
    print(f"explained: {limits.explained(error.value)}")


def test_the_store_without_a_thread_names_the_limit():
    out = run_to_the_end(1, store_without_a_thread, init=None)
    assert "explained: this process cannot start a thread" in out and "(ulimit -v)" in out, out


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
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    environment["PYTHONPATH"] = paths
    loud = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    assert "horovod DEBUG" in loud, "this test needs a log line"
    closed = ["sh", "-c", 'exec "$0" "$@" 2>&-', *command]
    subprocess.run(closed, env=environment, check=True)
    assert path.read_text() == "2\n"
