"""Misuse, deadlines of create and of waits, and other rules for every backend, however it moves bytes."""

import ctypes as C
import time

import numpy as np
import pytest

from abi_ctypes import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    AVG,
    BARRIER,
    BROADCAST,
    FLOAT8,
    INVALID,
    REDUCESCATTER,
    SEND,
    SUM,
    TIMEOUT,
    UNSUPPORTED,
    Buf,
    CollArgs,
    CollCaps,
    Error,
    new,
)
from table_driver import Backend, Comm, deadline, failure

pytestmark = pytest.mark.timeout(120)


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
    # Counts of other ranks, whose sum wraps to what the buffer holds.
    for coll, more in (
        (ALLGATHER, {"out_counts": [8, 2**64 - 4] if comm.rank == 0 else [2**64 - 4, 8]}),
        (ALLTOALL, {"in_counts": [4, 4], "out_counts": [2**64 - 4, 8]}),
        (ALLTOALL, {"in_counts": [2**64 - 4, 12], "out_counts": [4, 4]}),
        (REDUCESCATTER, {"out_counts": [2**64 - 4, 12]}),
    ):
        wraps = failure(comm.start, coll, [a], [np.ones(8, np.float32)], counts=[8], **more)
        assert wraps.code == INVALID and str(2**64 - 4) in wraps.text, wraps.text
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
        comm.tell("looked")
        assert comm.wait() and comm.free() == 0
    else:
        comm.await_told("looked")
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
        assert 0.09 < time.monotonic() - started < 20
        assert not comm.test()
        comm.tell("looked")
        assert comm.wait()
        comm.free()
    else:
        comm.await_told("looked")
        comm.run(ALLREDUCE, [a], [a])
    assert (a == comm.size).all()


@pytest.mark.parametrize("threads", [False, True])
def test_a_wait_may_end_before_the_operation(ranks, threads):
    ranks(2, late_wait, threads=threads)


def test_create_honours_its_deadline(library, tmp_path):
    backend = Backend(library, tmp_path)
    for rank in (0, 1):
        started = time.monotonic()
        error = failure(Comm, backend, rank, 2, number=10 + rank, seconds=0.3)
        assert error.code == TIMEOUT and time.monotonic() - started < 20


def subsets(comm):
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


def test_rank_subset(ranks):
    ranks(3, subsets)


def test_query_is_a_pure_function(library, tmp_path):
    backend = Backend(library, tmp_path)
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


def test_buffers_with_an_offset(library, tmp_path):
    comm = Comm(Backend(library, tmp_path), 0, 1)
    a, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    args = new(CollArgs)
    args.coll, args.dtype, args.op, args.n_bufs = ALLREDUCE, 7, SUM, 1
    args.in_, args.out = (Buf * 1)(Buf(a.ctypes.data, 8, 16)), (Buf * 1)(Buf(out.ctypes.data, 4, 16))
    args.counts = (C.c_uint64 * 1)(4)
    comm.backend.call(comm.api, "collective", comm.handle, C.byref(args), C.byref(C.c_void_p()))
    assert out.tolist() == [0, 2, 3, 4, 5, 0, 0, 0]
    comm.destroy()


def test_null_places_for_results_are_refused(library, tmp_path):
    """A caller without a place for the result gets an error, and no crash."""
    backend = Backend(library, tmp_path)
    args = new(CollArgs)
    args.coll = BARRIER
    refused = failure(backend.call, backend.comm_api, "query", None, C.byref(args), None)
    assert refused.code == INVALID and "NULL" in refused.text
    error = new(Error)
    entry = backend.library.hvd_backend_entry_v1
    assert entry(C.byref(backend.host), None, C.byref(error)) == INVALID
    assert b"NULL" in error.text
