"""Things a program should not do, or does at a bad moment: they end in an error, never in a crash or a hang."""

import os
import sys
import threading
import time

import numpy as np
import pytest

import hvd_core as hvd
from harness.rank import await_asleep, await_told, expect, expect_ctrl_c, tell
from hvd_core._runtime import runtime


@pytest.mark.ranks(2)
def test_array_dies_after_ctrl_c():
    rank = hvd.rank()
    if rank == 0:
        x = np.ones(4_000_000)
        expect_ctrl_c(lambda: hvd.allreduce_(x, name="x"))
        del x
        tell("the array is gone")  # the peer joins in now; the engine still has the memory
        await_told("the peer is through")
    else:
        await_told("the array is gone")
        hvd.allreduce_(np.ones(4_000_000), name="x")
        tell("the peer is through")
    hvd.barrier()


@pytest.mark.ranks(2)
def test_read_only_results():
    x = np.frombuffer(b"12345678", dtype="f8")
    for call in (lambda: hvd.allreduce_(x, name="x"), lambda: hvd.broadcast_(x, 0, name="y")):
        expect(ValueError, call, "read-only")
    assert hvd.allreduce(x).shape == (1,)


@pytest.mark.ranks(2)
def test_one_array_twice_in_a_group():
    """In place it would be reduced twice. The other rank, whose arrays are right, must not wait."""
    rank = hvd.rank()
    w, three = np.ones(4), np.ones(6)
    same = "lie in the same memory"
    wrong = {
        "twice": [w, w],
        "overlap": [three[:4], three[2:]],
        "far": [w, np.ones(2), three, w[1:3], np.ones(1)],
    }

    def reduce(arrays, name):
        return hvd.grouped_allreduce_(arrays, name=name, op=hvd.Sum)

    for name, arrays in wrong.items():
        expect(ValueError, lambda: reduce(arrays, name), same)
        apart = [np.ones_like(array) for array in arrays]
        assert [x[0] for x in reduce(apart, name)] == [2] * len(arrays)
        # Now the engine knows the signature.
        if rank == 0:
            expect(ValueError, lambda: reduce(arrays, name), same)
        else:
            expect(hvd.HorovodInternalError, lambda: reduce(apart, name), same)
    assert w.tolist() == [1] * 4 and three.tolist() == [1] * 6
    # Neighbours, an empty part, and inputs that are only read.
    hvd.grouped_allreduce_([three[:3], three[3:], three[2:2]], name="parts", op=hvd.Sum)
    assert three.tolist() == [2] * 6
    assert [x.tolist() for x in hvd.grouped_allreduce([w, w[1:]], op=hvd.Sum)] == [[2] * 4, [2] * 3]


@pytest.mark.ranks(2)
def test_unknown_process_set():
    engine = runtime.engine()
    x = np.ones(2)
    for number in (1, 5, -1, 2**31 - 1):
        expect(
            ValueError, lambda: engine.allreduce(x, x, "x", 0, 1.0, 1.0, number), "has not been registered"
        )
        engine.poison("x", "text", number)
    assert hvd.allreduce(x, op=hvd.Sum)[0] == 2


@pytest.mark.ranks(2)
def test_a_name_like_an_unnamed_one():
    rank = hvd.rank()
    if rank == 0:
        time.sleep(0.3)
    first = hvd.allreduce_async(np.ones(2), name="noname.0", op=hvd.Sum)
    second = hvd.allreduce_async(np.ones(2), op=hvd.Sum)
    results = []
    for handle in (first, second):
        try:
            results.append(hvd.synchronize(handle).tolist())
        except hvd.HorovodInternalError as error:
            assert "same name as another tensor" in str(error)
            results.append("failed")
    assert results[0] == [2, 2], results
    hvd.barrier()


@pytest.mark.ranks(2)
def test_waiting_in_a_forked_child():
    rank = hvd.rank()
    hvd.shutdown()
    hvd.init()
    if rank == 0:
        handle = hvd.allreduce_async(np.ones(2), name="x", op=hvd.Sum)
        child = os.fork()
        if child == 0:
            for call in (lambda: hvd.poll(handle), lambda: hvd.synchronize(handle), hvd.join, hvd.barrier):
                expect(hvd.HorovodInternalError, call, "is a fork of one that runs the engine")
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    else:
        time.sleep(0.5)
        handle = hvd.allreduce_async(np.ones(2), name="x", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [2, 2]


@pytest.mark.ranks(2)
def test_handles_of_an_earlier_engine():
    old = hvd.allreduce_async(np.ones(2), op=hvd.Sum)
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    new = hvd.allreduce_async(np.zeros(3), op=hvd.Sum)
    assert old != new
    expect(ValueError, lambda: hvd.synchronize(old), "was not created or has been cleared")
    assert hvd.synchronize(new).tolist() == [0, 0, 0]


@pytest.mark.ranks(2)
def test_factors_that_would_spoil_a_joined_rank():
    rank = hvd.rank()
    if rank == 0:
        for op in (hvd.Min, hvd.Max, hvd.Product):

            def call():
                return hvd.allreduce(np.ones(2), op=op, prescale_factor=2.0)

            expect(hvd.HorovodInternalError, call, "is not supported while ranks have joined")
        assert hvd.allreduce(np.ones(2), op=hvd.Sum, prescale_factor=2.0).tolist() == [2, 2]
        expect(
            hvd.HorovodInternalError,
            lambda: hvd.broadcast(np.ones(2), 1),
            "has joined and has nothing to send",
        )
    assert hvd.join() == 0


@pytest.mark.ranks(2)
def test_submitting_after_join():
    rank = hvd.rank()
    if rank == 0:
        heard, engine = [], runtime.engine()

        def late():
            def call():
                return hvd.allreduce(np.ones(2), name="x")

            heard.append(expect(hvd.HorovodInternalError, call, "this rank has joined"))
            tell("refused")

        thread = threading.Thread(target=late)
        handle = engine.join()  # from here on this rank has joined, while the other thread has yet to begin
        thread.start()
        engine.wait(handle)
        engine.release(handle)
        thread.join()
        assert heard
    else:
        await_told("refused")
        hvd.join()
    assert hvd.allreduce(np.ones(2), name="x", op=hvd.Sum).tolist() == [2, 2]


@pytest.mark.ranks(2)
def test_shutdown_while_another_thread_waits():
    rank = hvd.rank()
    for _ in range(10):
        heard, begun = [], threading.Event()

        def waiter():
            handle = hvd.allreduce_async(np.ones(2), name=f"alone{rank}")
            begun.set()
            heard.append(expect(hvd.HorovodInternalError, lambda: hvd.synchronize(handle)))

        threads = [threading.Thread(target=waiter)]
        threads[0].start()
        begun.wait()
        hvd.barrier()  # or this rank may end the job before the other's thread has submitted anything
        await_asleep(threads[0].native_id)
        hvd.shutdown()
        for t in threads:
            t.join()
        assert "Horovod has been shut down." in heard[0]
        hvd.init()
