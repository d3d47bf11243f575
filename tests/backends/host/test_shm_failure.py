"""The shm backend when something goes wrong: deadlines, dead peers, abort, create."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from abi_ctypes import ABORTED, ALLREDUCE, BARRIER, COMM_DEAD, INVALID, REMOTE, TIMEOUT
from busy_abort import busy_abort
from launchers import left_in_shared_memory
from table_driver import Backend, Comm, failure

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def backend_name():
    return "shm"


def lonely(comm, count, poll):
    a = np.ones(count, np.float32)
    if comm.rank == 1:
        comm.run(ALLREDUCE, [a], [a])
        os.kill(os.getpid(), signal.SIGKILL)
    comm.run(ALLREDUCE, [a], [a])
    started = time.monotonic()
    error = failure(comm.run, ALLREDUCE, [a], [a], seconds=0.4, poll=poll)
    took = time.monotonic() - started
    assert error.code in (TIMEOUT, REMOTE) and error.flags & COMM_DEAD, str(error)
    # The other survivor's timeout may come before this rank has begun.
    assert took < 20 and (took > 0.2 or error.code == REMOTE), took
    again = failure(comm.run, ALLREDUCE, [a], [a])
    assert again.code in (TIMEOUT, REMOTE) and again.flags & COMM_DEAD
    assert failure(comm.backend.call, comm.api, "async_error", comm.handle).code == again.code
    return error.code, error.text


@pytest.mark.parametrize("poll", [False, True])
@pytest.mark.parametrize("count", [1, 1_000_000])
def test_killed_peer_means_timeout(ranks, count, poll):
    code, text = ranks(2, lonely, count, poll, lost=[1])[0]
    assert code == TIMEOUT and "waited for rank 1" in text


def test_the_other_survivors_learn_of_a_timeout(ranks):
    codes = [r[0] for r in ranks(3, lonely, 1_000_000, False, lost=[1]) if r]
    assert len(codes) == 2 and TIMEOUT in codes


def aborted(comm, count, aborter):
    a = np.ones(count, np.float32)
    comm.run(ALLREDUCE, [a], [a])

    def abort():
        for r in {0, 2} - {aborter if aborter != 0 else None}:
            comm.await_told(f"in the operation.{r}")
        time.sleep(0.2)
        comm.abort()

    if comm.rank == aborter:
        # Not in the operation at all, or from another thread while this one sleeps in it.
        thread = threading.Thread(target=abort)
        thread.start()
        if aborter != 0:
            thread.join()
            return ABORTED
    if comm.rank == 1:
        if aborter == 0:
            comm.await_told("aborted")
        return ABORTED
    started = time.monotonic()
    comm.tell(f"in the operation.{comm.rank}")
    error = failure(comm.run, ALLREDUCE, [a], [a])
    assert 0.1 < time.monotonic() - started < 20
    comm.tell("aborted")
    assert f"by rank {aborter}" in error.text and error.flags & COMM_DEAD
    comm.abort()
    assert failure(comm.run, BARRIER).code == ABORTED
    assert failure(comm.finalize).code == ABORTED
    if comm.rank == aborter:
        thread.join()  # it may still be inside abort, waking the others
    started = time.monotonic()
    comm.destroy()
    assert time.monotonic() - started < 10
    return error.code


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("count", [1, 1_000_000])
@pytest.mark.parametrize("aborter", [0, 2])
def test_abort_reaches_everybody(ranks, count, aborter, threads):
    assert ranks(3, aborted, count, aborter, threads=threads) == [ABORTED] * 3


def test_abort_in_flight(ranks):
    assert min(ranks(2, busy_abort, ABORTED)) > 0


def test_create_refuses_two_hosts_and_no_rank(library, tmp_path):
    backend = Backend(library, tmp_path)
    assert failure(Comm, backend, 2, 2).code == INVALID
    assert failure(Comm, backend, 0, 0).code == INVALID


def leaves_nothing(comm):
    a = np.ones(100_000, np.float32)
    comm.run(ALLREDUCE, [a], [a])
    descriptors = {
        os.readlink(f"/proc/self/fd/{n}")
        for n in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{n}")
    }
    assert not [d for d in descriptors if "memfd" in d], "the descriptor is not needed once mapped"
    mapped = Path("/proc/self/maps").read_text().count("memfd:hvd-shm")
    child = os.fork()
    if child == 0:
        os._exit(Path("/proc/self/maps").read_text().count("memfd:hvd-shm"))
    inherited = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    comm.destroy()
    return mapped, inherited, Path("/proc/self/maps").read_text().count("memfd:hvd-shm")


def test_nothing_is_left_behind(ranks, tmp_path):
    before = set(os.listdir("/dev/shm"))
    for mapped, inherited, after in ranks(2, leaves_nothing, alone=True):
        assert mapped > 0 and inherited == 0 and after == 0
    assert left_in_shared_memory(before) == []
    assert list(tmp_path.iterdir()) == [], "keys of the rendezvous are deleted after use"
