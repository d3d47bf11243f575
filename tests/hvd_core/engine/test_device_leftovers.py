"""Work that a device still has when Python has gone on: copies on the caller's own stream at the end, forked children."""

import os
import threading

import numpy as np

import device_jobs
import hvd_core as hvd
from harness.rank import expect
from hvd_core import _core
from hvd_core._runtime import runtime


def _the_end_waits_for_a_copy_on_the_callers_stream(face):
    engine = runtime.engine()
    device = face.device
    put = face.put
    x = put(np.ones((3, 4), np.float32))
    h = engine.allgather([x.ref], "g", 0)
    engine.wait(h)
    y = face.empty((6, 4), np.dtype(np.float32))
    go = device.hold()
    engine.copy_output(h, 0, y.ref)
    engine.release(h)
    threading.Timer(0.3, lambda: setattr(go, "value", 1)).start()
    hvd.shutdown()
    del engine
    assert y.numpy().sum() == 24


def test_the_end_waits_for_a_copy_on_the_callers_stream():
    output = device_jobs.run_on_device(2, _the_end_waits_for_a_copy_on_the_callers_stream).output
    assert "left as they are" not in output, output


def _a_forked_child_gets_no_result_from_the_parents_device(face):
    engine = runtime.engine()
    device = face.device
    put = face.put
    x = put(np.ones(4, np.float32))
    h = engine.allgather([x.ref], "g", 0)
    engine.wait(h)
    y = face.empty((4,), np.dtype(np.float32))
    ref = _core.TensorRef(y.address, [4], 7, device.type, device.ordinal, None)
    child = os.fork()
    if child == 0:
        print("child:", expect(hvd.HorovodInternalError, lambda: engine.copy_output(h, 0, ref)), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    engine.copy_output(h, 0, ref)
    assert (y.numpy() == 1).all()


def test_a_forked_child_gets_no_result_from_the_parents_device():
    output = device_jobs.run_on_device(1, _a_forked_child_gets_no_result_from_the_parents_device).output
    assert "child: this process is a fork" in output, output
