"""The shm backend when something goes wrong: disagreement, misuse, deadlines, dead peers, abort, create."""

import ctypes as C
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from abi_ctypes import (
    ABORTED,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    AVG,
    BARRIER,
    BROADCAST,
    COMM_DEAD,
    FLOAT8,
    INVALID,
    MAX,
    REMOTE,
    SEND,
    SUM,
    TIMEOUT,
    UNSUPPORTED,
    Buf,
    CollArgs,
    CollCaps,
    new,
)
from table_driver import Backend, BackendFailure, Comm, deadline

pytestmark = pytest.mark.timeout(120)


def failure(call, *args, **kwargs):
    with pytest.raises(BackendFailure) as caught:
        call(*args, **kwargs)
    return caught.value


def disagree(comm, kind):
    a, big = np.ones(8, np.float32), np.ones(400_000, np.float32)
    first = comm.rank == 0
    split = [big[:5], big[5:]] if first else [big[:6], big[6:]]
    parts = [4] * comm.size
    if comm.rank != comm.size - 1:
        parts[-1] += 1 + comm.rank
    gets = [1] * (comm.size - 1) + [2 if first else 1]

    def sized(this, other):
        x = this if first else other
        comm.run(ALLREDUCE, [x], [x])

    cases = {
        "dtype": lambda: comm.run(ALLREDUCE, [a if first else a.view(np.int32)], [np.zeros_like(a)]),
        "op": lambda: comm.run(ALLREDUCE, [a], [a], op=SUM if first else MAX),
        "count": lambda: sized(a, a[:7]),
        "size": lambda: sized(a, big),
        "big": lambda: sized(big[1:], big),
        "collective": lambda: comm.run(BARRIER) if first else comm.run(BROADCAST, [big], [big]),
        "root": lambda: comm.run(BROADCAST, [a], [a], root=comm.rank % 2),
        "factor": lambda: comm.run(ALLREDUCE, [a], [a], pre=1.0 + comm.rank),
        "split": lambda: comm.run(ALLREDUCE, split, split),
        "parts": lambda: comm.run(ALLGATHER, [a[:4]], [big[: sum(parts)]], counts=[4], out_counts=parts),
        "sizes": lambda: comm.run(
            ALLTOALL, [a[: comm.size]], [big[: sum(gets)]], in_counts=[1] * comm.size, out_counts=gets
        ),
    }
    error = failure(cases[kind])
    assert error.code == INVALID and error.flags == 0, str(error)
    assert "rank" in error.text
    # The communicator is as good as before.
    for n in (3, 50_000):
        x = np.full(n, comm.rank, np.float32)
        comm.run(ALLREDUCE, [x], [x])
        assert (x == comm.size * (comm.size - 1) / 2).all()
    return error.text


KINDS = ["dtype", "op", "count", "size", "big", "collective", "root", "factor", "split", "parts", "sizes"]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_disagreement_fails_on_all_ranks_and_harms_nothing(ranks, kind, size):
    texts = ranks(size, disagree, kind)
    if kind == "op":
        assert "allreduce sum" in texts[0] and "allreduce max" in texts[0]


def misuse(comm):
    a = np.ones(8, np.float32)
    assert failure(comm.start, ALLREDUCE, [a], [a], op=9).code == INVALID
    assert failure(comm.start, 77, [a], [a]).code == INVALID
    assert failure(comm.start, ALLREDUCE, [a], [a], dtype=40).code == INVALID
    assert failure(comm.start, BROADCAST, [a], [a], root=5).code == INVALID
    assert failure(comm.start, BROADCAST, [a], [a], root=-1).code == INVALID
    assert failure(comm.start, SEND, [a], [a]).code == UNSUPPORTED
    assert failure(comm.start, ALLREDUCE, [a.view(bool)], [a.view(bool)], op=AVG).code == INVALID
    assert failure(comm.start, ALLREDUCE, [a], [a], dtype=FLOAT8 + 1).code == UNSUPPORTED
    short = failure(comm.start, ALLREDUCE, [a[:4]], [a[:4]], counts=[8])
    assert short.code == INVALID and "16 bytes" in short.text and "32" in short.text
    newer = new(CollArgs)
    grown = C.create_string_buffer(C.sizeof(CollArgs) + 8)
    newer.hdr.struct_size = len(grown) - 1
    newer.coll = BARRIER
    C.memmove(grown, C.byref(newer), C.sizeof(CollArgs))
    grown[C.sizeof(CollArgs) + 3] = b"\1"
    request = C.c_void_p()
    args = C.cast(grown, C.POINTER(CollArgs))
    wrong = failure(comm.backend.call, comm.api, "collective", comm.handle, args, C.byref(request))
    assert wrong.code == UNSUPPORTED
    # One operation at a time.
    if comm.rank == 0:
        assert not comm.start(BARRIER)
        again = failure(
            comm.backend.call, comm.api, "collective", comm.handle, new_barrier(), C.byref(C.c_void_p())
        )
        assert again.code == INVALID and "one at a time" in again.text
        time.sleep(0.1)
        assert comm.free() == INVALID
        assert comm.wait() and comm.free() == 0
    else:
        time.sleep(0.2)
        comm.run(BARRIER)
    return True


def new_barrier():
    args = new(CollArgs)
    args.coll = BARRIER
    return C.byref(args)


def test_misuse_is_told_at_once_and_locally(ranks):
    assert ranks(2, misuse) == [True, True]


def late_wait(comm):
    a = np.ones(100_000, np.float32)
    if comm.rank == 0:
        started = time.monotonic()
        assert not comm.start(ALLREDUCE, [a], [a])
        assert not comm.wait(deadline(0.1)), "the wait's own deadline leaves the operation in flight"
        assert 0.09 < time.monotonic() - started < 0.6
        assert not comm.test()
        assert comm.wait()
        comm.free()
    else:
        time.sleep(0.5)
        comm.run(ALLREDUCE, [a], [a])
    assert (a == comm.size).all()


@pytest.mark.parametrize("threads", [False, True])
def test_a_wait_may_end_before_the_operation(ranks, threads):
    ranks(2, late_wait, threads=threads)


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
    assert 0.2 < took < 2, took
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
    if comm.rank == aborter:
        # Not in the operation at all, or from another thread while this one sleeps in it.
        timer = threading.Timer(0.2, comm.abort)
        timer.start()
        if aborter != 0:
            timer.join()
            return ABORTED
    if comm.rank == 1:
        time.sleep(3.0 if aborter == 0 else 0)
        return ABORTED
    started = time.monotonic()
    error = failure(comm.run, ALLREDUCE, [a], [a])
    assert 0.1 < time.monotonic() - started < 1.5
    assert f"by rank {aborter}" in error.text and error.flags & COMM_DEAD
    comm.abort()
    assert failure(comm.run, BARRIER).code == ABORTED
    assert failure(comm.finalize).code == ABORTED
    if comm.rank == aborter:
        timer.join()  # it may still be inside abort, waking the others
    started = time.monotonic()
    comm.destroy()
    assert time.monotonic() - started < 0.5
    return error.code


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("count", [1, 1_000_000])
@pytest.mark.parametrize("aborter", [0, 2])
def test_abort_reaches_everybody(ranks, count, aborter, threads):
    assert ranks(3, aborted, count, aborter, threads=threads) == [ABORTED] * 3


def busy_abort(comm):
    """Operations back to back while another thread aborts: every one either completes or says ABORTED."""
    a = np.ones(200_000, np.float32)
    timer = threading.Timer(0.3, comm.abort)
    if comm.rank == 0:
        timer.start()
    done = 0
    try:
        while True:
            comm.run(ALLREDUCE, [a], [a], op=AVG)
            done += 1
            assert (a == 1).all()
    except BackendFailure as error:
        assert error.code == ABORTED, str(error)
    if comm.rank == 0:
        timer.join()  # it may still be inside abort, and destroy comes next
    return done


def test_abort_in_flight(ranks):
    assert min(ranks(2, busy_abort)) > 0


def test_create_honours_its_deadline(shm_library, tmp_path):
    backend = Backend(shm_library, tmp_path)
    for rank in (0, 1):
        started = time.monotonic()
        error = failure(Comm, backend, rank, 2, number=10 + rank, seconds=0.3)
        assert error.code == TIMEOUT and time.monotonic() - started < 1.5


def test_create_refuses_two_hosts_and_no_rank(shm_library, tmp_path):
    backend = Backend(shm_library, tmp_path)
    assert failure(Comm, backend, 2, 2).code == INVALID
    assert failure(Comm, backend, 0, 0).code == INVALID


def subsets(comm, library, store):
    """A second communicator over some of the ranks, in another order, beside the first one."""
    members = [2, 0]
    if comm.rank in members:
        inner = Comm(comm.backend, members.index(comm.rank), 2, number=2)
        x = np.full(60_000, comm.rank, np.float32)
        inner.run(ALLREDUCE, [x], [x])
        assert (x == 2).all()
        comm.run(BARRIER)
        inner.run(ALLREDUCE, [x], [x])
        inner.destroy()
    else:
        comm.run(BARRIER)


def test_rank_subset(ranks, shm_library, tmp_path):
    ranks(3, subsets, shm_library, tmp_path)


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
    for mapped, inherited, after in ranks(2, leaves_nothing):
        assert mapped > 0 and inherited == 0 and after == 0
    assert set(os.listdir("/dev/shm")) <= before
    assert list(tmp_path.iterdir()) == [], "keys of the rendezvous are deleted after use"


def test_query_is_a_pure_function(shm_library, tmp_path):
    backend = Backend(shm_library, tmp_path)
    for coll, dtype, op, support in (
        (ALLREDUCE, 7, SUM, 1),
        (ALLREDUCE, 9, AVG, 0),
        (ALLREDUCE, FLOAT8, SUM, 0),
        (BROADCAST, FLOAT8, SUM, 1),
        (SEND, 7, SUM, 0),
        (BARRIER, 0, 0, 1),
    ):
        args, caps = new(CollArgs), new(CollCaps)
        args.coll, args.dtype, args.op = coll, dtype, op
        backend.call(backend.comm_api, "query", None, C.byref(args), C.byref(caps))
        assert caps.support == support, (coll, dtype, op)
    caps = new(CollCaps)
    caps.hdr.struct_size, caps.max_count = 24, 12345
    backend.call(backend.comm_api, "query", None, C.byref(args), C.byref(caps))
    assert caps.support == 1 and caps.max_count == 12345, "an older caller's shorter struct is not overrun"


def test_buffers_with_an_offset(shm_library, tmp_path):
    comm = Comm(Backend(shm_library, tmp_path), 0, 1)
    a, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    args = new(CollArgs)
    args.coll, args.dtype, args.op, args.n_bufs = ALLREDUCE, 7, SUM, 1
    args.in_, args.out = (Buf * 1)(Buf(a.ctypes.data, 8, 16)), (Buf * 1)(Buf(out.ctypes.data, 4, 16))
    args.counts = (C.c_uint64 * 1)(4)
    comm.backend.call(comm.api, "collective", comm.handle, C.byref(args), C.byref(C.c_void_p()))
    assert out.tolist() == [0, 2, 3, 4, 5, 0, 0, 0]
    comm.destroy()
