"""Send and receive between two ranks: only these take part, over a backend's own messages or as a broadcast of the pair."""

import mmap
import os
import signal

import numpy as np
import pytest

import hvd_core as hvd
from harness import run_to_the_end
from harness.rank import await_told, expect, ignore_the_launcher, tell
from hvd_core import HorovodInternalError
from hvd_core.errors import ProcessSetRemovedError
from star_backend import MessengerBackend, MessengerCommunicator

DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64", "bool", "uint32")


@pytest.mark.ranks(3)
def test_two_ranks_need_no_third():
    me = hvd.rank()
    if me == 2:
        await_told("both have their messages")  # without an operation of its own
    else:
        for dtype in DTYPES:
            for shape in ((), (1,), (0,), (3, 5), (20_000,)):
                sent = (np.arange(np.prod(shape, dtype=int)) % 100).reshape(shape).astype(dtype)
                if me == 0:
                    assert hvd.send(sent, 1) is None
                else:
                    got = np.zeros(shape, dtype)
                    assert hvd.recv(got, 0) is got
                    assert np.array_equal(got, sent), (dtype, shape)
        if me == 1:
            tell("both have their messages")
    hvd.barrier()


@pytest.mark.ranks(3)
def test_a_ring_and_the_order_of_names():
    me, size = hvd.rank(), hvd.size()
    after, before = (me + 1) % size, (me - 1) % size
    for turn in range(3):
        # Each rank sends before it receives, and waits for neither: no rank holds up another one.
        handles = [hvd.send_async(np.full(4, 10.0 * me + turn), after)]
        got = np.empty(4)
        handles.append(hvd.recv_async(got, before))
        for handle in handles:
            hvd.synchronize(handle)
        assert got.tolist() == [10.0 * before + turn] * 4
    if me == 2:
        hvd.send(np.array([1]), 0, name="first")
        hvd.send(np.array([2]), 0, name="second")
    elif me == 0:
        second, first = np.array([0]), np.array([0])
        later = hvd.recv_async(second, 2, name="second")
        assert hvd.recv(first, 2, name="first")[0] == 1 and hvd.synchronize(later)[0] == 2
    # Both directions of one pair at once, and many messages under way.
    if me < 2:
        other = 1 - me
        out = [hvd.send_async(np.full(3, i), other) for i in range(20)]
        arrays = [np.zeros(3, int) for _ in range(20)]
        into = [hvd.recv_async(array, other) for array in arrays]
        for handle in into + out:
            hvd.synchronize(handle)
        assert [array[0] for array in arrays] == list(range(20))
    hvd.barrier()


@pytest.mark.ranks(3, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})
def test_messages_within_process_sets():
    me = hvd.rank()
    ends = hvd.add_process_set([0, 2])
    if me == 1:
        expect(ValueError, lambda: hvd.send(np.ones(1), 0, process_set=ends), "rank 1")
    else:
        x = np.zeros(2)
        # The unnamed messages of a set are counted apart from those of the job.
        if me == 0:
            job, own = (
                hvd.send_async(np.array([1.0, 1]), 2),
                hvd.send_async(np.array([2.0, 2]), 2, process_set=ends),
            )
            hvd.synchronize(own)
            hvd.synchronize(job)
        else:
            assert hvd.recv(x, 0, process_set=ends)[0] == 2
            assert hvd.recv(x, 0)[0] == 1
        expect(ValueError, lambda: hvd.send(x, 1, process_set=ends), "rank 1 is not a member")
    hvd.barrier()
    # No user sees the sets that carry the messages.
    assert hvd.remove_process_set(ends)
    assert hvd.add_process_set([1, 2]).process_set_id == 1


@pytest.mark.ranks(3)
def test_a_mistake_fails_on_both_ranks():
    me = hvd.rank()
    if me < 2:
        array = np.ones(2 + me)
        text = expect(
            HorovodInternalError,
            lambda: hvd.send(array, 1) if me == 0 else hvd.recv(array, 0),
            "Mismatched SEND",
        )
        assert "from rank 0" in text, text
        # A call that is refused on one rank, here at the first message of ranks 0 and 2 too.
    if me == 0:
        expect(Exception, lambda: hvd.send(np.array(["text"]), 2))
        expect(
            HorovodInternalError, lambda: hvd.recv(np.ones(1), 1, name="x"), "failed before it was submitted"
        )
    elif me == 2:
        expect(
            HorovodInternalError, lambda: hvd.recv(np.ones(1), 0), "failed before it was submitted on rank 0"
        )
    else:
        expect(Exception, lambda: hvd.send(object(), 0, name="x"))
    expect(ValueError, lambda: hvd.send(np.ones(1), me), "itself")
    expect(ValueError, lambda: hvd.send(np.ones(1), 7), "rank 7 is not a member")
    expect(TypeError, lambda: hvd.recv(np.ones(1), "one"), "src must be a rank")
    # All of them go on.
    x = np.full(1, float(me))
    if me == 0:
        hvd.send(x, 1)
    elif me == 1:
        assert hvd.recv(x, 0)[0] == 0
    assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == 3


@pytest.mark.ranks(3)
def test_a_rank_that_has_joined_sends_and_receives_nothing():
    me = hvd.rank()
    if me == 0:
        expect(HorovodInternalError, lambda: hvd.send(np.ones(1), 1), "rank 1 has joined")
    hvd.join()
    x = np.full(1, float(me))
    if me == 0:
        hvd.send(x, 1)
    elif me == 1:
        assert hvd.recv(x, 0)[0] == 0
    hvd.barrier()


@pytest.mark.ranks(2)
def test_the_end_of_the_job_ends_messages():
    handle = hvd.send_async(np.ones(1), 1 - hvd.rank())
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    expect(ValueError, lambda: hvd.synchronize(handle))
    x = np.full(1, float(hvd.rank()))
    if hvd.rank() == 0:
        hvd.send(x, 1)
    else:
        assert hvd.recv(x, 0)[0] == 0


@pytest.mark.ranks(3)
def test_a_backend_with_messages_gets_them():
    me = hvd.rank()
    hvd.shutdown()
    hvd.init(backend=MessengerBackend)
    if me != 1:
        for dtype in ("float32", "int16"):  # it has no messages of int16
            arrays = [
                np.arange(5).astype(dtype) * (i + 1) if me == 0 else np.zeros(5, dtype) for i in range(3)
            ]
            for handle in [hvd.send_async(a, 2) if me == 0 else hvd.recv_async(a, 0) for a in arrays]:
                hvd.synchronize(handle)
            assert [a[1] for a in arrays] == [1, 2, 3]
        assert (MessengerCommunicator.sent, MessengerCommunicator.received) == ((3, 0) if me == 0 else (0, 3))
    hvd.barrier()


@pytest.mark.ranks(3)
def test_a_join_comes_after_messages_that_were_sent_before():
    """Ranks 0 and 1 have no set for their messages yet when rank 0 joins."""
    if hvd.rank() == 0:
        handle = hvd.send_async(np.arange(3), 1)
        tell("is about to join")
    elif hvd.rank() == 1:
        await_told("is about to join")
        assert hvd.recv(np.zeros(3, int), 0).tolist() == [0, 1, 2]
    hvd.join()
    if hvd.rank() == 0:
        hvd.synchronize(handle)


@pytest.mark.ranks(3)
def test_memory_that_a_sender_cannot_write_to():
    me = hvd.rank()
    if me < 2:
        arrays = [np.frombuffer(mmap.mmap(-1, 4096, prot=mmap.PROT_READ), np.uint8) for _ in range(3)]
        if me == 1:
            arrays = [np.ones(4096, np.uint8) for _ in arrays]
        for handle in [hvd.send_async(a, 1) if me == 0 else hvd.recv_async(a, 0) for a in arrays]:
            hvd.synchronize(handle)
        assert not any(array.any() for array in arrays)
    hvd.barrier()


@pytest.mark.ranks(4, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})
def test_messages_end_with_the_set_that_they_were_given_to():
    """Ranks 0 and 2 have a set for their messages when this set ends, ranks 0 and 1 have not."""
    me = hvd.rank()
    x = np.zeros(2)
    three = hvd.add_process_set([0, 1, 2])
    if me in (0, 2):
        hvd.synchronize(hvd.send_async(x, 2) if me == 0 else hvd.recv_async(x, 0))
    handles = []
    if me == 0:
        handles = [hvd.send_async(x, other, process_set=three) for other in (1, 2)]
        job = hvd.send_async(x + 5, 2)  # a message of the job is not concerned
    hvd.barrier()
    assert hvd.remove_process_set(three)
    for handle in handles:
        expect(ProcessSetRemovedError, lambda handle=handle: hvd.synchronize(handle), "removed")
    if me == 0:
        hvd.synchronize(job)
        hvd.send(x + 7, 1)
    elif me in (1, 2):
        assert hvd.recv(x, 0)[0] == (7 if me == 1 else 5)
    hvd.barrier()
    # A set of the same ranks has messages of its own.
    three = hvd.add_process_set([0, 1, 2])
    if me == 1:
        hvd.send(x, 0, process_set=three)
    elif me == 0:
        assert hvd.recv(x, 1, process_set=three)[0] == 7
    hvd.barrier()


@pytest.mark.ranks(3)
def test_a_join_after_a_first_message_that_is_never_received():
    me = hvd.rank()
    if me == 0:
        handle = hvd.send_async(np.zeros(2), 1)
        later = hvd.recv_async(np.zeros(2), 2)
    hvd.join()
    if me == 0:
        expect(HorovodInternalError, lambda: hvd.synchronize(handle), "rank 1 has joined")
        expect(HorovodInternalError, lambda: hvd.synchronize(later), "rank 2 has joined")
    hvd.barrier()


def send_to_a_rank_that_dies():
    me = hvd.rank()
    ignore_the_launcher()
    if me == 2:
        await_told("0 waits")
        await_told("1 waits")
        os.kill(os.getpid(), signal.SIGKILL)
    # Rank 2 makes no set with them, since it neither sends nor receives.
    x = np.zeros(1)
    handles = [hvd.send_async(x + me, 2), hvd.recv_async(x, 1 - me, name="never sent")]
    hvd.synchronize(hvd.send_async(x, 1 - me) if me == 0 else hvd.recv_async(np.zeros(1), 0))
    tell(f"{me} waits")
    for handle in handles:
        expect(HorovodInternalError, lambda handle=handle: hvd.synchronize(handle), "rank 2", "died")
    expect(HorovodInternalError, lambda: hvd.send(x, 2), "rank 2", "died")
    print("heard of it", flush=True)
    os._exit(1)


def test_the_death_of_a_rank_ends_messages_for_it():
    assert run_to_the_end(3, send_to_a_rank_that_dies, code=137).count("heard of it") == 2
