"""libeccl_sim.so between processes: every operation is really computed, and every ending is seen by all ranks."""

import ctypes as c
import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest
from forked import FORK

from sim_vendor import (
    AVG,
    BFLOAT16,
    DTYPES,
    FLOAT16,
    INVALID_USAGE,
    KERNEL,
    MAX,
    MIN,
    PROD,
    REMOTE_ERROR,
    SUM,
    UniqueId,
    run,
)

NUMPY = {SUM: np.add, PROD: np.multiply, MAX: np.maximum, MIN: np.minimum}


def data(rank, count, dtype, seed=0):
    """Integers small enough for sums in the type's own arithmetic to be exact, except for float16's rounding."""
    noise = np.random.default_rng([seed, rank, count])
    return noise.integers(-8, 8, count).astype(dtype)


def reduced(op, sources):
    if op == AVG:
        wide = np.sum([s.astype(np.float64) for s in sources], axis=0) / len(sources)
        return (wide if sources[0].dtype.kind == "f" else np.trunc(wide)).astype(sources[0].dtype)
    # float16 is computed in float32 and rounded once.
    dtype = np.dtype(np.float32) if sources[0].dtype == np.float16 else sources[0].dtype
    return NUMPY[op].reduce(sources, dtype=dtype).astype(sources[0].dtype)


class Buffers:
    """Device memory for one operation, with a border on both sides that must stay as it was."""

    BORDER = 64

    def __init__(self, r, array):
        self.r, self.dtype, self.count = r, array.dtype, array.size
        self.padded = np.full(array.nbytes + 2 * self.BORDER, 0xA5, np.uint8)
        self.padded[self.BORDER : self.BORDER + array.nbytes] = array.view(np.uint8)
        self.base = r.v.device(self.padded)
        self.pointer = r.v.out("topsSimSubBuffer", self.base, self.BORDER, array.nbytes)

    def read(self):
        self.r.v.topsStreamSynchronize(self.r.stream)
        got = self.r.v.host(self.base, np.uint8, self.padded.size)
        self.r.v.topsFree(self.base)
        inside = slice(self.BORDER, got.size - self.BORDER)
        assert (got[: self.BORDER] == 0xA5).all() and (got[inside.stop :] == 0xA5).all()
        return got[inside].view(self.dtype)


def call(r, name, send, recv, *rest):
    """One operation from `send` to memory like `recv` (in place where it is None); what is there afterwards."""
    source = Buffers(r, send)
    target = source if recv is None else Buffers(r, recv)
    getattr(r.v, f"eccl{name}")(source.pointer, target.pointer, *rest, r.comm, r.stream)
    result = target.read()
    if recv is not None:
        assert (source.read() == send).all()  # the source is left alone
    return result


def every_operation(r, dtypes, counts):
    n = r.size
    for dtype, count in itertools.product(dtypes, counts):
        number = DTYPES[dtype]
        sources = [data(k, count, dtype) for k in range(n)]
        mine = sources[r.rank]
        if dtype not in ("int64", "uint64", "float64"):
            for op in (SUM, PROD, MAX, MIN, AVG):
                want = reduced(op, sources)
                for recv in (np.zeros_like(mine), None):
                    got = call(r, "AllReduce", mine, recv, count, number, op)
                    np.testing.assert_array_equal(got, want, f"{dtype} {count} {op}")
                root = (count + op) % n
                got = call(r, "Reduce", mine, np.zeros_like(mine), count, number, op, root)
                assert (got == (want if r.rank == root else 0)).all()
            blocks = [data(k, count * n, dtype, seed=1) for k in range(n)]
            want = reduced(SUM, blocks)[r.rank * count :][:count]
            got = call(r, "ReduceScatter", blocks[r.rank], np.zeros_like(mine), count, number, SUM)
            assert (got == want).all()
            root = count % n
            all_at_root = np.concatenate(sources) if r.rank == root else np.zeros(count * n, dtype)
            got = call(r, "Gather", mine, np.zeros(count * n, dtype), count, number, root)
            assert (got == all_at_root).all()
            got = call(r, "Scatter", blocks[r.rank], np.zeros_like(mine), count, number, root)
            assert (got == blocks[root][r.rank * count :][:count]).all()
        for root in range(n):
            for recv in (np.zeros_like(mine), None):
                assert (call(r, "Broadcast", mine, recv, count, number, root) == sources[root]).all()
        got = call(r, "AllGather", mine, np.zeros(count * n, dtype), count, number)
        assert (got == np.concatenate(sources)).all()


@pytest.mark.parametrize("memory, size", [("address", 3), ("handle", 2)])
def test_every_operation(simulator, memory, size):
    dtypes = ["int8", "uint8", "int32", "float16", "float32", "int64"] if memory == "address" else ["float32"]
    run(simulator, size, every_operation, dtypes, [0, 1, 17, 5000], environment={"TOPS_SIM_MEMORY": memory})


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_every_operation_and_type(simulator, size):
    run(simulator, size, every_operation, list(DTYPES), [0, 1, 17, 1023, 5000, 70001], timeout=300)


def test_half_precision_is_rounded_once(simulator):
    def body(r):
        sources = [(data(k, 3000, np.float32) / 7 * 10.0**k).astype(np.float32) for k in range(r.size)]
        halves = [s.astype(np.float16) for s in sources]
        want = np.add.reduce([h.astype(np.float32) for h in halves], dtype=np.float32).astype(np.float16)
        got = call(r, "AllReduce", halves[r.rank], None, 3000, FLOAT16, SUM)
        np.testing.assert_array_equal(got, want)
        # bfloat16 is the upper half of a float32.
        cut = [s.view(np.uint32) & 0xFFFF0000 for s in sources]
        total = np.add.reduce([x.view(np.float32) for x in cut], dtype=np.float32).view(np.uint32)
        want = ((total + 0x7FFF + ((total >> 16) & 1)) >> 16).astype(np.uint16)
        got = call(r, "AllReduce", (cut[r.rank] >> 16).astype(np.uint16), None, 3000, BFLOAT16, SUM)
        np.testing.assert_array_equal(got, want)
        odd = np.array([6e4, 1e-7, np.nan, np.inf, -0.0, 6.2e-5], np.float16)
        mine = odd if r.rank == 1 else np.zeros_like(odd)
        np.testing.assert_array_equal(call(r, "AllReduce", mine, None, 6, FLOAT16, SUM), odd)
        assert np.isnan(call(r, "AllReduce", mine, None, 6, FLOAT16, MAX)[2])
        big = np.full(2, 6e4, np.float16)
        assert (call(r, "AllReduce", big, None, 2, FLOAT16, AVG) == big).all()  # the sum does not overflow
        assert np.isinf(call(r, "AllReduce", big, None, 2, FLOAT16, SUM)).all()

    run(simulator, 3, body)


def test_sums_of_scaled_values(simulator):
    def body(r):
        v, f32 = r.v, DTYPES["float32"]
        sources = [data(k, 100, np.float32) for k in range(r.size)]
        factors = [0.5, -2.0]
        want = factors[0] * sources[0] + factors[1] * sources[1]
        factor = np.array([factors[r.rank]], np.float32)
        immediate = v.out("ecclRedOpCreatePreMulSum", factor.ctypes.data, f32, 1, r.comm, type=c.c_int)
        assert (call(r, "AllReduce", sources[r.rank], None, 100, f32, immediate) == want).all()
        there = v.device(np.zeros(1, np.float32))
        later = v.out("ecclRedOpCreatePreMulSum", there, f32, 0, r.comm, type=c.c_int)
        assert later != immediate
        v.topsMemcpyAsync(there, factor.ctypes.data, 4, 1, r.stream)  # read when the operation runs
        v.ecclRedOpDestroy(immediate, r.comm)
        assert (call(r, "AllReduce", sources[r.rank], None, 100, f32, later) == want).all()
        assert v.refusal("ecclAllReduce", there, there, 1, f32, immediate, r.comm, r.stream)[0] == 4
        assert v.refusal("ecclAllReduce", there, there, 1, FLOAT16, later, r.comm, r.stream)[0] == 4

    run(simulator, 2, body)


def test_groups_are_launched_together(simulator):
    def body(r):
        v, f32, n = r.v, DTYPES["float32"], r.size
        tensors = [v.device(np.full(k + 1, r.rank + k, np.float32)) for k in range(20)]
        v.ecclGroupStart()
        v.ecclGroupStart()
        for k, p in enumerate(tensors):
            v.ecclAllReduce(p, p, k + 1, f32, SUM, r.comm, r.stream)
        v.ecclGroupEnd()
        assert v.call("topsStreamQuery", r.stream) == 0  # nothing starts before the outermost end
        v.ecclGroupEnd()
        v.topsStreamSynchronize(r.stream)
        for k, p in enumerate(tensors):
            assert (v.host(p, np.float32, k + 1) == sum(rank + k for rank in range(n))).all()

        # An all-to-all of sends and receives, the own part included, larger than sockets hold.
        count = 300_000
        out = v.device(np.repeat(np.arange(n, dtype=np.float32) + 10 * r.rank, count))
        back = v.device(np.zeros(n * count, np.float32))
        v.ecclGroupStart()
        for peer in range(n):
            v.ecclSend(
                v.out("topsSimSubBuffer", out, peer * count * 4, 1), count, f32, peer, r.comm, r.stream
            )
            v.ecclRecv(
                v.out("topsSimSubBuffer", back, peer * count * 4, 1), count, f32, peer, r.comm, r.stream
            )
        v.ecclGroupEnd()
        v.topsStreamSynchronize(r.stream)
        want = np.repeat(np.arange(n, dtype=np.float32) * 10 + r.rank, count)
        assert (v.host(back, np.float32, n * count) == want).all()

    run(simulator, 3, body)


def test_communicators_and_streams_beside_each_other(simulator):
    def body(r):
        v, f32 = r.v, DTYPES["float32"]
        # A second communicator, of ranks 2 and 0; its id goes over the first one.
        ids = np.zeros(128, np.uint8)
        if r.rank == 2:
            ids[:] = np.frombuffer(bytes(v.out("ecclGetUniqueId", type=UniqueId)), np.uint8)
        ids = call(r, "Broadcast", ids, None, 128, DTYPES["uint8"], 2)
        pair = None
        if r.rank != 1:
            pair = v.out("ecclCommInitRank", 2, UniqueId.from_buffer_copy(ids), 0 if r.rank == 2 else 1)
        second = v.out("topsStreamCreate")
        p, q = v.device(np.ones(1000, np.float32)), v.device(np.ones(1000, np.float32))
        # Two streams take turns on one communicator, in the order of the calls, with nothing else between them.
        for turn in range(50):
            v.ecclAllReduce(p, p, 1000, f32, AVG, r.comm, [r.stream, second][turn % 2])
            if pair:
                v.ecclAllReduce(q, q, 1000, f32, SUM, pair, [second, r.stream][turn % 2])
                if turn < 40:
                    v.ecclBroadcast(q, q, 1, f32, 0, pair, second)
            if turn % 10 == 9:
                v.topsStreamSynchronize(r.stream)
                v.topsStreamSynchronize(second)
                v.topsMemset(q, 0, 4000)
        assert (v.host(p, np.float32, 1000) == 1).all()
        for comm in (pair, r.comm):
            if comm:
                v.ecclCommDestroy(comm)

    run(simulator, 3, body)


def until_failed(r, deadline=20):
    end = time.monotonic() + deadline
    while r.error()[0] == 0:
        assert time.monotonic() < end, "no error"
        time.sleep(0.002)
    r.v.topsStreamSynchronize(r.stream)  # the stream is not stuck
    return r.error()


@pytest.mark.parametrize("difference", ["count", "type", "kind", "root", "order"])
def test_ranks_that_disagree_all_learn_it(simulator, difference):
    def body(r):
        v, f32, odd = r.v, DTYPES["float32"], r.rank == 1
        p = v.device(np.zeros(100_000, np.float32))
        count = 50_000 + (odd and difference == "count")
        dtype = DTYPES["int32"] if odd and difference == "type" else f32
        if difference == "root":
            v.ecclBroadcast(p, p, count, f32, int(odd), r.comm, r.stream)
        elif odd and difference == "kind":
            v.ecclReduce(p, p, count, f32, SUM, 0, r.comm, r.stream)
        elif odd and difference == "order":
            v.ecclRecv(p, 1, f32, 0, r.comm, r.stream)
        else:
            v.ecclAllReduce(p, p, count, dtype, SUM, r.comm, r.stream)
        code, text = until_failed(r)
        assert code == REMOTE_ERROR
        again = v.refusal("ecclAllReduce", p, p, 1, f32, SUM, r.comm, r.stream)
        assert again == (REMOTE_ERROR, text)
        v.ecclCommAbort(r.comm)
        return text

    texts = run(simulator, 3, body)
    # Who notices first ends the connections, so that another rank may only see it go away.
    noticed = [text for text in texts if " does " in text]
    assert noticed, texts
    if difference == "count":
        assert "AllReduce of 50001 float32" in noticed[0] and "AllReduce of 50000 float32" in noticed[0]


@pytest.mark.parametrize("what", ["killed", "aborted"])
def test_the_end_of_a_peer_is_seen_by_all(simulator, what):
    def body(r, seen):
        v, f32 = r.v, DTYPES["float32"]
        p = v.device(np.zeros(1000, np.float32))
        for _ in range(3):
            v.ecclAllReduce(p, p, 1000, f32, SUM, r.comm, r.stream)
        v.topsStreamSynchronize(r.stream)
        if r.rank == 1:
            time.sleep(0.2)  # the others are waiting by now
            if what == "killed":
                # A data loader's worker that outlives its parent does not keep the connections open.
                if os.fork() == 0:
                    for _ in range(2):
                        seen.acquire(timeout=25)
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGKILL)
            v.ecclCommAbort(r.comm)
            return None
        for _ in range(5):
            v.call("ecclAllReduce", p, p, 1000, f32, SUM, r.comm, r.stream)
        code, text = until_failed(r)
        seen.release()
        assert code == REMOTE_ERROR and "went away" in text
        v.ecclCommAbort(r.comm)
        assert v.refusal("ecclCommGetAsyncError", r.comm, c.byref(c.c_int()))[0] == 4

    run(simulator, 3, body, FORK.Semaphore(0), lost=[1] if what == "killed" else [])


def test_abort_unblocks_at_once(simulator):
    def body(r, barrier):
        v, f32 = r.v, DTYPES["float32"]
        p = v.device(np.zeros(10, np.float32))
        if r.rank == 0:
            v.ecclAllReduce(p, p, 10, f32, SUM, r.comm, r.stream)  # rank 1 never comes

            def abort():
                time.sleep(0.1)
                v.topsSetDevice(0)
                v.ecclCommAbort(r.comm)

            thread = threading.Thread(target=abort)
            thread.start()
            v.topsStreamSynchronize(r.stream)  # would last for ECCL_SIM_TIMEOUT_S
            thread.join()
        barrier.wait(30)

    run(simulator, 2, body, FORK.Barrier(2), timeout=40)


def test_a_silent_peer_is_an_error_after_the_limit(simulator):
    def body(r, barrier):
        p = r.v.device(np.zeros(10, np.float32))
        if r.rank == 0:
            r.v.ecclAllReduce(p, p, 10, DTYPES["float32"], SUM, r.comm, r.stream)
            code, text = until_failed(r)
            assert (code, text) == (REMOTE_ERROR, "nothing came from rank 1 before the time limit")
        barrier.wait(30)

    run(simulator, 2, body, FORK.Barrier(2), environment={"ECCL_SIM_TIMEOUT_S": "4"})


def test_missing_synchronisation_gives_wrong_data(simulator):
    def body(r):
        v, f32 = r.v, DTYPES["float32"]
        p, q = v.device(np.ones(10, np.float32)), v.device(np.zeros(10, np.float32))
        other, event = v.out("topsStreamCreate"), v.out("topsEventCreate")
        go = threading.Event()
        held = KERNEL(lambda _: go.wait(40) and None)
        v.topsLaunchHostFunc(r.stream, held, None)  # takes its time
        v.ecclAllReduce(p, q, 10, f32, SUM, r.comm, r.stream)
        hasty, orderly = np.empty(10, np.float32), np.empty(10, np.float32)
        v.topsMemcpyAsync(hasty.ctypes.data, q, 40, 2, other)
        v.topsStreamSynchronize(other)
        go.set()
        v.topsEventRecord(event, r.stream)
        v.topsStreamWaitEvent(other, event, 0)
        v.topsMemcpyAsync(orderly.ctypes.data, q, 40, 2, other)
        v.topsStreamSynchronize(other)
        assert (orderly == 2).all()
        return hasty.tolist()

    assert run(simulator, 2, body) == [[0] * 10] * 2


@pytest.mark.netns
def test_ranks_on_several_hosts(simulator, hosts):
    network = hosts(2)

    def enter(rank):
        # Join the namespace of one of the hosts, whose abstract sockets and addresses are its own.
        descriptor = os.open(f"/run/netns/{network[rank % 2].name}", os.O_RDONLY)
        libc = c.CDLL(None, use_errno=True)
        assert libc.setns(descriptor, 0x40000000) == 0, os.strerror(c.get_errno())

    run(simulator, 3, every_operation, ["float32"], [1, 70_000], enter=enter)


def test_misuse_of_messages_to_oneself(simulator):
    def body(r):
        p = r.v.device(np.zeros(4, np.float32))
        r.v.ecclSend(p, 4, DTYPES["float32"], r.rank, r.comm, r.stream)
        return until_failed(r)[0]

    assert run(simulator, 1, body) == [INVALID_USAGE]
