"""Operations whose data come later: a front end copies a device's tensors to host memory, and lets the operation begin when
the copy is made. Here the ranks play the front end, with NumPy arrays as the copies."""

import threading

import numpy as np
import pytest

import hvd_core as hvd
from harness.rank import expect
from hvd_core._runtime import runtime
from hvd_core.errors import HorovodInternalError

SUM = 0
FLOAT64 = 8


def ref(array, kind="device"):
    from hvd_core._core import TensorRef

    assert array.dtype == np.float64
    return TensorRef(array.ctypes.data, array.shape, FLOAT64, owner=array, staged_from=kind)


def submit(array, name, kind="device"):
    """The handle of a sum over all ranks that has not begun."""
    taken = ref(array, kind)
    return runtime.engine().allreduce(taken, taken, name, SUM)


def finish(handle):
    engine = runtime.engine()
    engine.wait(handle)
    engine.release(handle)


@pytest.mark.ranks(2)
def test_an_operation_begins_when_it_is_told():
    engine, x = runtime.engine(), np.zeros(3)
    for name in ("x", None):
        handle = submit(x, name)
        assert not engine.poll(handle)
        x[:] = hvd.rank() + 1
        hvd.barrier()
        assert not engine.poll(handle)
        engine.begin(handle)
        finish(handle)
        assert x.tolist() == [3.0] * 3
        expect(ValueError, lambda handle=handle: engine.begin(handle), "not created")


@pytest.mark.ranks(2)
def test_a_waiting_thread_hears_of_the_begin():
    engine, x = runtime.engine(), np.ones(3)
    handle = submit(x, "x")
    began = threading.Timer(0.05, engine.begin, [handle])
    began.start()
    finish(handle)
    began.join()
    assert x[0] == 2


@pytest.mark.ranks(2)
def test_unnamed_operations_are_numbered_at_the_call():
    """Each rank lets them begin in another order, between operations that begin at once."""
    engine = runtime.engine()
    late = [np.full(4, float(i)) for i in range(6)]
    handles = [submit(x, None) for x in late]
    now = hvd.allreduce_async(np.full(4, 10.0), op=hvd.Sum)
    for handle in handles if hvd.rank() else reversed(handles):
        engine.begin(handle)
    assert hvd.synchronize(now)[0] == 20
    for i, handle in enumerate(handles):
        finish(handle)
        assert late[i].tolist() == [2.0 * i] * 4


@pytest.mark.ranks(2)
def test_a_name_is_taken_from_the_call_on():
    engine, x = runtime.engine(), np.ones(3)
    handle = submit(x, "allreduce.x")
    expect(ValueError, lambda: submit(np.ones(3), "allreduce.x"), "same name")
    expect(ValueError, lambda: hvd.allreduce(np.ones(3), name="x"), "same name")
    engine.begin(handle)
    finish(handle)  # the refused calls were later ones
    assert x[0] == 2
    for _ in range(2):  # they fail those of the other ranks, which were refused as well
        assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == 2


@pytest.mark.ranks(2)
def test_data_that_never_come_fail_the_call_of_all_ranks():
    engine, x = runtime.engine(), np.ones(3)
    for name in ("x", None):
        handle = submit(x, name)
        if hvd.rank() == 0:
            engine.give_up(handle, "the copy has failed")
        else:
            engine.begin(handle)
        expect(HorovodInternalError, lambda handle=handle: engine.wait(handle), "the copy has failed")
        engine.release(handle)
        again = submit(x, name)
        engine.begin(again)
        finish(again)


@pytest.mark.ranks(2)
def test_a_join_comes_after_them():
    engine, x = runtime.engine(), np.ones(3)
    if hvd.rank() == 0:
        handle = submit(x, "x")
        began = threading.Timer(0.05, engine.begin, [handle])
        began.start()
        assert hvd.join() in (0, 1)
        finish(handle)
        began.join()
    else:
        finish_now(submit(x, "x"))
        hvd.join()
    assert x[0] == 2


def finish_now(handle):
    runtime.engine().begin(handle)
    finish(handle)


@pytest.mark.ranks(3, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})
def test_the_removal_of_a_set_comes_after_them():
    engine, x = runtime.engine(), np.ones(3)
    pair = hvd.add_process_set([0, 1])
    if hvd.rank() < 2:
        taken = ref(x)
        handle = engine.allreduce(taken, taken, "x", SUM, 1.0, 1.0, pair.process_set_id)
        began = threading.Timer(0.05, engine.begin, [handle])
        began.start()
    hvd.remove_process_set(pair)
    if hvd.rank() < 2:
        finish(handle)
        began.join()
        assert x[0] == 2


@pytest.mark.ranks(2)
def test_a_caller_that_lost_the_handle_finds_it_in_the_tensor():
    engine, x = runtime.engine(), np.ones(3)
    taken, other = ref(x), ref(np.ones(3))
    assert taken.deferred is None
    for inputs in (taken, [taken], (taken, other)):
        handle = engine.allreduce(inputs, inputs, "x", SUM)
        assert taken.deferred == handle
        engine.begin(handle)
        finish(handle)


@pytest.mark.ranks(2)
def test_the_end_of_the_job_fails_them():
    engine, x = runtime.engine(), np.ones(3)
    handles = [submit(x, "x"), submit(x, None)]
    hvd.barrier()
    hvd.shutdown()
    for handle in handles:
        expect(HorovodInternalError, lambda handle=handle: engine.wait(handle), "shut down")
        engine.begin(handle)
        engine.give_up(handle, "too late")
        engine.release(handle)
    taken = ref(x)
    expect(HorovodInternalError, lambda e=engine: e.allreduce(taken, taken, "y", SUM), "shut down")
    hvd.init()
    assert hvd.allreduce(x, op=hvd.Sum)[0] == 2


@pytest.mark.ranks(2)
def test_ranks_must_stage_alike():
    """A rank whose tensor is in host memory, or that stages from another type of device, is told from the others."""
    engine = runtime.engine()
    for mine, texts in (
        (["a", "b"], ("on staged a", "on staged b", "Mismatched ALLREDUCE device selection")),
        (["a", None], ("on staged a", "on cpu")),
    ):
        x, kind = np.ones(3), mine[hvd.rank()]
        if kind is None:
            handle = engine.allreduce(x, x, "x", SUM)
        else:
            handle = submit(x, "x", kind)
            engine.begin(handle)
        expect(HorovodInternalError, lambda handle=handle: engine.wait(handle), *texts)
        engine.release(handle)


@pytest.mark.ranks(2)
def test_a_rank_that_has_joined_serves_them():
    if hvd.rank() == 0:
        x = np.ones(3)
        finish_now(submit(x, "x"))
        assert x[0] == 1
    hvd.join()
