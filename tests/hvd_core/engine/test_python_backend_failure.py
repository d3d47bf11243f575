"""Backends written in Python when something goes wrong: exceptions, deadlines, aborts, deaths, creation."""

import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

from hvd_core.backends import PythonBackend, PythonCommunicator, register_python_backend
from hvd_core.backends.errors import BackendCallError
from launchers import program_words
from lone_programs import make_17_backends
from python_ranks import abi, failure, on_ranks, registry_as_it_was  # noqa: F401
from star_backend import ChaosBackend, StarBackend
from table_driver import Backend, Comm, deadline


def bad_day(comm, code, text):
    data = np.ones(4, np.float32)
    error = failure(comm.run, abi.ALLREDUCE, [data], [data])
    if comm.rank == 1:
        assert error.code == code and text in error.text and error.flags & abi.COMM_DEAD, error
        comm.test_later = failure(comm.backend.call, comm.api, "async_error", comm.handle)
        assert comm.test_later.code == code
        logged = "".join(line for _, line in comm.backend.logged)
        assert ("Traceback" in logged and "on purpose" in logged) == (code == abi.INTERNAL)
    else:
        assert error.code == abi.REMOTE, error


@pytest.mark.parametrize(
    "chaos, code, text",
    [
        ("raise", abi.INTERNAL, "ZeroDivisionError: a bug on purpose"),
        ("named", abi.DEVICE, "the card fell out"),
    ],
)
def test_exceptions_become_codes(monkeypatch, chaos, code, text):
    monkeypatch.setenv("CHAOS", chaos)
    on_ranks(ChaosBackend, 2, bad_day, code, text)


def short_of_time(comm):
    data = np.ones(4, np.float32)
    if comm.rank == 0:
        began = time.monotonic()
        error = failure(comm.run, abi.ALLREDUCE, [data], [data], seconds=0.3)
        comm.tell("over")
        assert error.code == abi.TIMEOUT and time.monotonic() - began < 20, error
    else:
        comm.await_told("over")


def test_deadline_of_a_collective():
    on_ranks(StarBackend, 2, short_of_time)


def waits_and_tests(comm):
    data = np.full(4, comm.rank, np.float32)
    began = time.monotonic()
    if comm.rank == 0:
        assert not comm.start(abi.ALLREDUCE, [data], [data])
        assert not comm.test()
        assert not comm.wait(deadline(0.05)), "the wait's deadline is not the operation's"
        comm.tell("not yet")
        assert comm.wait(abi.NO_DEADLINE) and comm.test()
        comm.free()
        assert time.monotonic() - began >= 0.29
    else:
        comm.await_told("not yet")
        comm.run(abi.ALLREDUCE, [data], [data])  # with a pause of 0.3 s
    assert (data == 1).all()


def test_a_slow_rank_is_waited_for(monkeypatch):
    monkeypatch.setenv("CHAOS", "sleep")
    on_ranks(ChaosBackend, 2, waits_and_tests)


def aborted(comm):
    data = np.ones(4, np.float32)
    assert not comm.start(abi.ALLREDUCE, [data], [data])
    timer = threading.Timer(0.2, comm.abort)
    timer.start()
    error = failure(comm.wait)
    assert error.code in ((abi.ABORTED,) if comm.rank == 1 else (abi.ABORTED, abi.REMOTE)), error
    comm.free()
    timer.join()
    comm.abort()  # once more does nothing
    assert failure(comm.start, abi.ALLREDUCE, [data], [data]).code == abi.ABORTED
    assert failure(comm.backend.call, comm.api, "async_error", comm.handle).code == abi.ABORTED


def test_abort_makes_a_hanging_method_return(monkeypatch):
    monkeypatch.setenv("CHAOS", "hang")
    on_ranks(ChaosBackend, 2, aborted)


def left_behind(comm):
    data = np.ones(4, np.float32)
    if comm.rank == 0:
        assert failure(comm.run, abi.ALLREDUCE, [data], [data], seconds=40).code == abi.REMOTE
        return
    assert not comm.start(abi.ALLREDUCE, [data], [data])
    assert ChaosBackend.communicator.began.wait(20)
    comm.abort()
    began = time.monotonic()
    comm.destroy()
    assert time.monotonic() - began < 30
    assert any("has not returned" in line for _, line in comm.backend.logged)


def test_destroy_is_bounded_when_the_class_never_returns(monkeypatch):
    monkeypatch.setenv("CHAOS", "forever")
    on_ranks(ChaosBackend, 2, left_behind)


def killed(comm):
    data = np.ones(4, np.float32)
    comm.run(abi.ALLREDUCE, [data], [data])
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    assert failure(comm.run, abi.ALLREDUCE, [data], [data]).code == abi.REMOTE


def test_a_dead_peer():
    on_ranks(StarBackend, 2, killed, lost=(1,))


class Unwilling(PythonBackend):
    name = "unwilling"

    def create(self, key, store, ranks, hosts, rank, size, deadline):
        if size == 1:
            raise BackendCallError("UNAVAILABLE", "no licence")
        if size == 2:
            return store.get("never", deadline)
        self.store = store
        return PythonCommunicator()


def test_creation_that_fails(tmp_path):
    backend = Backend(register_python_backend(Unwilling).path, tmp_path)
    error = failure(Comm, backend, 0, 1)
    assert (error.code, error.text) == (4, "no licence")
    began = time.monotonic()
    assert failure(Comm, backend, 0, 2, seconds=0.3).code == abi.TIMEOUT
    assert time.monotonic() - began < 20
    comm = Comm(backend, 0, 3)
    with pytest.raises(BackendCallError, match="while the communicator is created"):
        register_python_backend(Unwilling).backend.store.set("late", b"x")
    comm.destroy()


class Sleepy(PythonBackend):
    name = "sleepy"
    go_on, woke = threading.Event(), threading.Event()

    class communicator(PythonCommunicator):
        def __init__(self, *_):
            Sleepy.go_on.wait(40)

        def destroy(self):
            Sleepy.woke.set()


def test_creation_that_comes_too_late_is_taken_back(tmp_path):
    backend = Backend(register_python_backend(Sleepy).path, tmp_path)
    error = failure(Comm, backend, 0, 1, seconds=0.1)
    assert error.code == abi.TIMEOUT and "create() did not return" in error.text
    Sleepy.go_on.set()
    assert Sleepy.woke.wait(20), "what came too late was not destroyed"


def test_the_store_from_python(tmp_path):
    seen = {}

    class Stored(PythonBackend):
        name = "stored"

        def create(self, key, store, ranks, hosts, rank, size, deadline):
            assert (key, list(ranks), list(hosts), rank, size) == ("job/0/global/shm", [0], [0], 0, 1)
            assert 0 < deadline - time.monotonic() <= 20
            store.set("a", b"\0one\xff")
            seen["a"] = store.get("a")
            store.delete("a")
            with pytest.raises(BackendCallError) as caught:
                store.get("a", time.monotonic() + 0.1)
            seen["gone"] = caught.value.code
            return PythonCommunicator()

    Comm(Backend(register_python_backend(Stored).path, tmp_path), 0, 1).destroy()
    assert seen == {"a": b"\0one\xff", "gone": abi.TIMEOUT}


def test_sixteen_classes_to_a_process():
    done = subprocess.run(program_words(make_17_backends), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.startswith("BackendCallError a process can register 16 backends")
