"""The tcp backend when something goes wrong: dead and silent peers, deadlines, abort, an early end."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from abi_ctypes import (
    ABORTED,
    ALLREDUCE,
    BARRIER,
    BROADCAST,
    COMM_DEAD,
    REMOTE,
    TIMEOUT,
)
from busy_abort import busy_abort
from table_driver import failure

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def backend_name():
    return "tcp"


def bereaved(comm, count, poll):
    """Rank 1 is killed between two operations, or in the middle of one."""
    a = np.ones(count, np.float32)
    comm.run(ALLREDUCE, [a], [a])
    if comm.rank == 1:
        if count > 1:
            comm.start(ALLREDUCE, [a], [a])
            for _ in range(3):
                comm.test()
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()

    def until_it_fails():
        # The dying may have got so far that this rank has all it needs of them.
        for _ in range(2):
            comm.run(ALLREDUCE, [a], [a], poll=poll)

    error = failure(until_it_fails)
    assert time.monotonic() - started < 20
    assert error.code == REMOTE and error.flags & COMM_DEAD, str(error)
    kept = a.copy()
    time.sleep(0.05)
    again = failure(comm.run, ALLREDUCE, [a], [a])
    assert again.code == REMOTE and again.flags & COMM_DEAD
    assert failure(comm.backend.call, comm.api, "async_error", comm.handle).code == REMOTE
    assert kept.tobytes() == a.tobytes(), "a buffer was touched after the failure"
    return error.text


@pytest.mark.parametrize("poll", [False, True])
@pytest.mark.parametrize("count", [1, 3_000_000])
@pytest.mark.parametrize("size", [2, 3])
def test_killed_peer_is_named_at_once(ranks, size, count, poll):
    texts = ranks(size, bereaved, count, poll, lost=[1])
    # One of two survivors may hear of the other's leaving before it hears of the cause.
    assert len([t for t in texts if t]) == size - 1 and any("rank 1 (" in t for t in texts if t), texts


def late(comm, count):
    a = np.ones(count, np.float32)
    comm.run(ALLREDUCE, [a], [a])
    if comm.rank == 1:
        comm.await_told("gave up")

        def until_it_fails():
            # All that a small operation needs may have been sent before the other's deadline passed.
            for _ in range(2):
                comm.run(ALLREDUCE, [a], [a])

        error = failure(until_it_fails)
        assert error.code == REMOTE and "rank 0 (" in error.text
    else:
        started = time.monotonic()
        error = failure(comm.run, ALLREDUCE, [a], [a], seconds=0.3)
        comm.tell("gave up")
        assert 0.25 < time.monotonic() - started < 20
        assert error.code == TIMEOUT and "waited for rank 1 (" in error.text
    assert error.flags & COMM_DEAD
    return error.text


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("count", [1, 3_000_000])
def test_deadline_of_an_operation(ranks, count, threads):
    texts = ranks(2, late, count, threads=threads)
    # What the first says before it leaves reaches the other, unless a message was half sent.
    assert count > 1 or "gave up: the deadline passed" in texts[1]


def aborted(comm, count, aborter):
    """One aborts while it sleeps in the operation (0), or without having entered it (2)."""
    a = np.ones(count, np.float32)
    comm.run(ALLREDUCE, [a], [a])
    if comm.rank == 1:
        comm.await_told("aborted")  # keeps the operation from completing
    timer = threading.Timer(0.2, comm.abort)
    if comm.rank == aborter:
        timer.start()
        if aborter == 2:
            timer.join()
    error = failure(comm.run, ALLREDUCE, [a], [a])
    assert error.code == (ABORTED if comm.rank == aborter else REMOTE) and error.flags & COMM_DEAD, str(error)
    if comm.rank == aborter:
        timer.join()
        comm.tell("aborted")
        assert "aborted" in error.text
    else:
        assert "rank" in error.text
    comm.abort()  # idempotent, and changes nothing
    assert failure(comm.run, BARRIER).code == error.code
    assert failure(comm.finalize).code == error.code
    started = time.monotonic()
    comm.destroy()
    assert time.monotonic() - started < 10
    return error.code


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("count", [1, 3_000_000])
@pytest.mark.parametrize("aborter", [0, 2])
def test_abort_reaches_everybody(ranks, count, aborter, threads):
    wanted = [ABORTED if r == aborter else REMOTE for r in range(3)]
    assert ranks(3, aborted, count, aborter, threads=threads) == wanted


@pytest.mark.parametrize("size", [2, 3])
def test_abort_in_flight(ranks, size):
    assert min(ranks(size, busy_abort, REMOTE)) > 0


def leaves_early(comm):
    """The root is done, and gone, long before the others have read what it sent."""
    value = np.arange(2_000_000, dtype=np.float32)
    a = value.copy() if comm.rank == 0 else np.zeros_like(value)
    if comm.rank != 0:
        time.sleep(0.7)
    comm.run(BROADCAST, [a], [a])
    small = np.full(8, comm.rank, np.float32)
    comm.run(BROADCAST, [small], [small])
    comm.destroy()
    assert np.array_equal(a, value) and (small == 0).all()


@pytest.mark.parametrize("size", [2, 3])
def test_graceful_end_does_not_cut_off_what_was_sent(ranks, size):
    ranks(size, leaves_early)


def slow_reader(comm):
    a = np.ones(8_000_000, np.float32)
    if comm.rank == 1:
        time.sleep(4)
    comm.run(ALLREDUCE, [a], [a])
    assert (a == 2).all()


def test_a_slow_peer_is_not_taken_for_a_dead_one(ranks):
    """Twice the peer timeout with full windows: its host answers, so it counts as alive."""
    ranks(2, slow_reader, options={"peer_timeout_s": 2})


def threads():
    return len(os.listdir("/proc/self/task"))


def idle(comm):
    before_all = threads()
    for _ in range(5):
        comm.run(BARRIER)
    before = time.process_time()
    if comm.rank == 0:
        time.sleep(1)
    else:
        assert not comm.start(BARRIER)
        while not comm.wait(time.monotonic_ns() + 200_000_000):
            pass
        comm.free()
        return time.process_time() - before
    used = time.process_time() - before
    comm.run(BARRIER)
    assert threads() <= before_all
    return used


def test_neither_idling_nor_waiting_uses_a_processor(ranks):
    assert max(ranks(3, idle)) < 0.2


def no_threads(comm):
    a = np.ones(1_000_000, np.float32)
    comm.run(ALLREDUCE, [a], [a])
    return threads()


def test_no_threads_of_its_own(ranks):
    one, two = ranks(1, no_threads, alone=True), ranks(2, no_threads, alone=True)
    assert two == one * 2
