"""Failures in the gloo backend: abort, deadlines, dead peers, ranks that disagree; and leaks.

Gloo itself cannot end a collective that another rank never joins. Upper limits of time are generous on purpose: what
they tell apart is an end and none.
"""

import gc
import os
import signal
import threading
import time

import numpy as np
import pytest

from abi_ctypes import (
    ABORTED,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    COMM_DEAD,
    INVALID,
    REMOTE,
    TIMEOUT,
)
from busy_abort import busy_abort
from table_driver import Backend, BackendFailure, Comm, failure

pytestmark = pytest.mark.timeout(300)
SOON = 30


def aborted_while_blocked(comm, count):
    """Rank 1 never joins; rank 0 sleeps in Gloo until another thread aborts."""
    a = np.ones(count, np.float32)
    comm.run(ALLREDUCE, [a], [a])
    if comm.rank == 1:
        # Learns of it from its connections, once the other has closed them.
        return failure(comm.run, BARRIER).code if comm.size == 2 else None
    returned = []

    def abort():
        started = time.monotonic()
        comm.abort()
        comm.abort()
        returned.append(time.monotonic() - started)

    timer = threading.Timer(0.3, abort)
    timer.start()
    started = time.monotonic()
    error = failure(comm.run, ALLREDUCE, [a], [a])
    assert time.monotonic() - started < SOON
    timer.join()
    assert returned[0] < SOON / 2, "abort blocked"
    assert error.flags & COMM_DEAD and "aborted" in error.text
    assert failure(comm.run, BARRIER).code == ABORTED
    assert failure(comm.backend.call, comm.api, "async_error", comm.handle).code == ABORTED
    started = time.monotonic()
    comm.destroy()
    assert time.monotonic() - started < SOON / 2, "destroy waited"
    return error.code


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("count", [1, 3_000_000])
def test_abort_brings_back_a_collective_that_a_rank_never_joins(gloo_ranks, count, threads):
    assert gloo_ranks(2, aborted_while_blocked, count, threads=threads) == [ABORTED, REMOTE]


def test_abort_in_flight_reaches_the_peers(gloo_ranks):
    assert min(gloo_ranks(3, busy_abort, REMOTE)) > 0


def bereaved(comm, count):
    a = np.ones(count, np.float32)
    comm.run(ALLREDUCE, [a], [a])
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    error = failure(comm.run, ALLREDUCE, [a], [a], seconds=60)
    assert time.monotonic() - started < SOON
    assert error.code == REMOTE and error.flags & COMM_DEAD and "Gloo: " in error.text, str(error)
    assert ".cc:" not in error.text, "the text names the folder in which Gloo was built"
    assert failure(comm.run, ALLREDUCE, [a], [a]).code == REMOTE


@pytest.mark.parametrize("count", [1, 3_000_000])
def test_a_peer_that_dies_is_told_long_before_the_deadline(gloo_ranks, count):
    gloo_ranks(3, bereaved, count, lost=[1])


def wait_for_file(path):
    end = time.monotonic() + SOON
    while not path.exists():
        assert time.monotonic() < end, f"no rank made {path}"
        time.sleep(0.01)


def late(comm, given_up):
    a = np.ones(1000, np.float32)
    comm.run(ALLREDUCE, [a], [a])
    if comm.rank == 1:
        wait_for_file(given_up)
        return failure(comm.run, ALLREDUCE, [a], [a]).code
    assert not comm.start(ALLREDUCE, [a], [a], seconds=3)
    assert not comm.wait(time.monotonic_ns() + 50_000_000), "a wait may end before the operation"
    error = failure(comm.wait)
    given_up.touch()
    comm.free()
    assert error.flags & COMM_DEAD
    return error.code


@pytest.mark.parametrize("threads", [False, True])
def test_deadline_of_an_operation(gloo_ranks, tmp_path, threads):
    assert gloo_ranks(2, late, tmp_path / "given up", threads=threads) == [TIMEOUT, REMOTE]


def impatient(comm, given_up):
    """HOROVOD_GLOO_TIMEOUT_SECONDS, and the option before it: how long a message is waited for."""
    if comm.rank == 1:
        wait_for_file(given_up)
        return failure(comm.run, BARRIER).code
    error = failure(comm.run, BARRIER, seconds=60)
    given_up.touch()
    return error.code


@pytest.mark.parametrize("by_option", [True, False])
def test_patience_is_an_option(gloo_ranks, tmp_path, monkeypatch, by_option):
    monkeypatch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", "30" if by_option else "1")
    options = {"timeout_s": 1} if by_option else {}
    assert gloo_ranks(2, impatient, tmp_path / "given up", options=options) == [TIMEOUT, REMOTE]


def disagreeing(comm):
    """Ranks that disagree about anything get an error in time: never each other's bytes, and never a success."""
    codes = []
    mine = np.full(100, 1.0 + comm.rank, np.float32)
    out = np.zeros(100 + comm.rank, np.float32)
    try:
        comm.run(ALLREDUCE, [np.ones(100 + comm.rank, np.float32)], [out], seconds=0.5)
    except BackendFailure as error:
        codes.append(error.code)
    assert codes and codes[0] in (TIMEOUT, REMOTE), codes
    assert not out[:100].any() or (out[:100] == 1).all()
    assert (mine == 1.0 + comm.rank).all()


def test_ranks_that_disagree_end_at_the_deadline(gloo_ranks):
    gloo_ranks(2, disagreeing)


def misused(comm):
    a = np.ones(8, np.float32)
    for root in (-1, 2):
        error = failure(comm.start, BROADCAST, [a], [a], root=root)
        assert error.code == INVALID and not error.flags & COMM_DEAD and f"root {root}" in error.text
    error = failure(comm.start, ALLTOALL, [a], [np.ones(8, np.float32)], in_counts=[4, 4], out_counts=[3, 3])
    assert error.code == INVALID and not error.flags & COMM_DEAD
    comm.run(ALLREDUCE, [a], [a])
    assert (a == 2).all()


def test_misuse_is_told_locally_and_leaves_the_communicator(gloo_ranks):
    gloo_ranks(2, misused)


def leaves_early(comm):
    """The root is done, and gone, long before the others have read what it sent."""
    value = np.arange(500_000, dtype=np.float32)
    a = value.copy() if comm.rank == 0 else np.zeros_like(value)
    if comm.rank != 0:
        time.sleep(0.5)
    comm.run(BROADCAST, [a], [a])
    comm.destroy()
    assert np.array_equal(a, value)


def test_a_graceful_end_does_not_cut_off_what_was_sent(gloo_ranks):
    gloo_ranks(3, leaves_early)


def resources():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def made_again_and_again(comm):
    """Every third time with a failure: a communicator that was aborted must leave as little."""
    comm.destroy()
    end = time.monotonic() + SOON
    while resources()[1] > 1 and time.monotonic() < end:
        time.sleep(0.05)  # as below; a forked process has one thread of its own
    gc.collect()  # nor may what the tests before have left be closed meanwhile
    before, a = resources(), np.ones(100, np.float32)
    for number in range(2, 52):
        again = Comm(comm.backend, comm.rank, comm.size, number)
        again.run(ALLREDUCE, [a], [a])
        if number % 3 == 0:
            again.run(BARRIER)
            again.abort()
        again.destroy()
    end = time.monotonic() + SOON
    while resources() != before and time.monotonic() < end:
        time.sleep(0.05)  # a device's thread ends with the last communicator
    assert resources() == before
    return before


def test_fifty_communicators_leave_nothing(gloo_ranks, tmp_path):
    gloo_ranks(2, made_again_and_again)
    assert list(tmp_path.iterdir()) == [], "keys were left in the store"


def test_create_ends_at_its_deadline_and_names_who_is_missing(gloo_library, tmp_path):
    backend = Backend(gloo_library, tmp_path)
    started = time.monotonic()
    error = failure(Comm, backend, 0, 2, seconds=0.5)
    assert 0.4 < time.monotonic() - started < SOON
    assert error.code == TIMEOUT and "rank 1 did not come" in error.text
    # A rank that comes now is told, and does not wait for a deadline of its own.
    error = failure(Comm, backend, 1, 2, seconds=60)
    assert error.code == REMOTE and "rank 0 gave up: rank 1 did not come" in error.text


def test_an_interface_that_is_not_there(gloo_library, tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "nosuch0")
    error = failure(Comm, Backend(gloo_library, tmp_path), 0, 2, seconds=5)
    assert error.code == INVALID
    assert (
        "HOROVOD_GLOO_IFACE = 'nosuch0' matches no network interface" in error.text and "lo (" in error.text
    )
