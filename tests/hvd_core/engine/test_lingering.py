"""Memory that a backend does not let go of: a library that blocks may write to tensors long after the job was aborted.

The handle fails at once. The tensor stays even when the program drops it, so that the library writes to no memory that
now belongs to something else.
"""

import gc
import threading
import time
import weakref

import numpy as np
import pytest

import hvd_core as hvd
from harness import run_on_ranks
from harness.rank import expect, meet
from hvd_core import _core
from hvd_core._runtime import runtime
from hvd_core.backends import PythonBackend, PythonCommunicator

over, begun, let_go = [], threading.Event(), threading.Event()


class Stubborn(PythonCommunicator):
    def __init__(self, key, store, ranks, hosts, rank, size, deadline):
        self.aborted = threading.Event()

    def allreduce(self, inputs, outputs, op, prescale, postscale, call):
        begun.set()
        (self.aborted if len(inputs[0]) < 100 else let_go).wait(60)
        outputs[0][:] = 77  # also after the abort, where the tensor is a large one
        over.append(1)
        if len(inputs[0]) < 100:
            raise ConnectionError(
                "woken by the abort"
            )  # else the operation may count as done before it has failed

    broadcast = allgather = allreduce

    def abort(self):
        self.aborted.set()

    def destroy(self):
        pass


class StubbornBackend(PythonBackend):
    name = "stubborn"
    communicator = Stubborn


class Owner:  # what a framework has in place of an array
    pass


def job(count, way):
    for thing in (over, begun, let_go):
        thing.clear()
    hvd.init(backend=StubbornBackend)
    engine = runtime.engine()
    x = np.zeros(count, np.float32)
    watch, address = weakref.ref(x), x.ctypes.data
    if way == "group":
        y = np.zeros(count, np.float32)
        tensors = [x, y]
        handle = engine.allreduce(tensors, tensors, "x", 0)
        tensors.clear()
        del y
    elif way == "reference":
        owner = Owner()
        owner.array = x
        watch = weakref.ref(owner)
        ref = _core.TensorRef(address, [count], 7, owner=owner)
        handle = engine.allreduce(ref, ref, "x", 0)
        del ref, owner
    else:
        handle = engine.allreduce(x, x, "x", 0)
    del x
    assert begun.wait(60)
    meet(f"{count} {way}")
    if hvd.rank() == 0:
        engine.abort("enough")
    expect(hvd.HorovodInternalError, lambda: engine.wait(handle), "enough")
    lingers = not over
    engine.release(handle)
    gc.collect()
    let_go.set()
    hvd.shutdown()
    while not over:
        time.sleep(0.05)
    return watch(), lingers


def _tensors_stay():
    for way in ("one", "group", "reference"):
        there, lingers = job(100_000, way)
        assert lingers and there is not None, way
        array = there.array if way == "reference" else there
        # A group travels in memory of the engine's.
        assert set(array) == {0.0 if way == "group" else 77.0}, (
            "nothing was written late: this test shows nothing"
        )
    there, lingers = job(10, "one")
    assert not lingers and there is None, "what the backend has let go of is kept"


@pytest.mark.timeout(180)
def test_tensors_stay_that_a_backend_still_writes_to():
    output = run_on_ranks(2, _tensors_stay, init=None, timeout=120).output
    assert "the backend still uses the tensors of aborted operations" in output


@pytest.mark.ranks(2)
def test_the_engine_ends_with_shutdown():
    """No cycle of references keeps it, and with it streams and memory of devices, until a garbage collection."""
    gc.disable()
    try:
        engine = weakref.ref(runtime.engine())
        hvd.allreduce(np.ones(4), op=hvd.Sum)
        hvd.shutdown()
        assert engine() is None
    finally:
        gc.enable()
