"""Memory that a backend does not let go of: a library that blocks may write to tensors long after the job was aborted.

The handle fails at once; the tensor stays, whoever forgets it, so that nobody else's memory is written to.
"""

import jobs

PROGRAM = """
import gc, os, sys, time, weakref
import numpy as np
import hvd_core as hvd
from hvd_core import _core, runtime
from hvd_core.backends import PythonBackend, PythonCommunicator

LATE = 1.5
over = []

class Stubborn(PythonCommunicator):
    def __init__(self, key, store, ranks, hosts, rank, size, deadline):
        self.aborted = False

    def allreduce(self, inputs, outputs, op, prescale, postscale, call):
        until = time.monotonic() + LATE
        while time.monotonic() < until and not (self.aborted and len(inputs[0]) < 100):
            time.sleep(0.01)
        outputs[0][:] = 77  # also after the abort, where the tensor is a large one
        over.append(1)

    broadcast = allgather = allreduce

    def abort(self):
        self.aborted = True

    def destroy(self):
        pass

class StubbornBackend(PythonBackend):
    name = "stubborn"
    communicator = Stubborn

class Owner:  # what a framework has in place of an array
    pass

def fails(call):
    try:
        call()
    except hvd.HorovodInternalError as error:
        return str(error)
    raise AssertionError("it did not fail")

def job(count, way):
    over.clear()
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
    while not (hvd.rank() == 1 or engine.poll(handle)):
        time.sleep(0.2)  # until the operation is under way
        if not engine.poll(handle):
            engine.abort("enough")
    assert "enough" in fails(lambda: engine.wait(handle))
    lingers = not over
    engine.release(handle)
    hvd.shutdown()
    gc.collect()
    while not over:
        time.sleep(0.05)
    return watch(), lingers

for way in ("one", "group", "reference"):
    there, lingers = job(100_000, way)
    assert lingers and there is not None, way
    array = there.array if way == "reference" else there
    # A group travels in memory of the engine's.
    assert set(array) == {0.0 if way == "group" else 77.0}, "nothing was written late: this test shows nothing"
there, lingers = job(10, "one")
assert not lingers and there is None, "what the backend has let go of is kept"
print("through", flush=True)
"""


def test_tensors_stay_that_a_backend_still_writes_to(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    output = jobs.finish(jobs.start(2, program), 120)
    assert output.count("through") == 2
    assert "the backend still uses the tensors of what was aborted" in output
