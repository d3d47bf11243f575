"""The table with tensors on a made-up device (tests/backends/host/fake_stream): in the order of the caller's stream, or
at the end of the work if the caller gives no stream.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

import numpy as np

sys.path[1:1] = [str(Path(__file__).parents[2] / "hvd_core/engine")]
import device_jobs  # noqa: E402
import hvd_core as hvd  # noqa: E402
import native_table as nt  # noqa: E402
from harness import finish  # noqa: E402
from harness.rank import ignore_the_launcher  # noqa: E402


def native(face, array, stream=True):
    """The table's tensor for an array on the device, and the objects that must live as long."""
    shape = (ctypes.c_int64 * max(len(array.shape), 1))(*array.shape)
    device = face.device
    where = (device.type.encode(), device.ordinal, int(stream), device.stream if stream else None)
    return nt.Tensor(array.address, shape, len(array.shape), nt.NUMBERS[array.dtype], *where), (array, shape)


class Gather(nt.Pending):
    """A call whose results are copied into arrays on the device."""

    face = None
    stream = True

    def take(self, pointer):
        r = pointer.contents
        for i in range(r.n_outputs):
            t = r.outputs[i]
            assert t.device_type == self.face.device.type.encode()
            array = self.face.empty(tuple(t.shape[: t.ndim]), nt.DTYPES[t.dtype])
            target, _kept = native(self.face, array, self.stream)
            assert r.copy(pointer, i, ctypes.byref(target)) == nt.OK
            other = native(self.face, self.face.empty((99,), np.int8))
            assert r.copy(pointer, i, ctypes.byref(other[0])) == nt.INVALID_ARGUMENT
            assert r.copy(pointer, r.n_outputs, ctypes.byref(target)) == nt.INVALID_ARGUMENT
            self.outputs.append(array)


def table_of(face):
    """The table of this process, whose calls are Gather from here on."""
    nt.Pending, Gather.face = Gather, face
    table = nt.Table(hvd.frontend_table())
    assert (table.raw.serves(face.device.type.encode()), table.raw.serves(b"other")) == (1, 0)
    return table


def _every_operation(face):
    rank, device, table = hvd.rank(), face.device, table_of(face)
    for turn in range(60):
        verb = ("submit", "run")[turn % 2]
        x = face.put(
            np.arange(1000, dtype=np.float32) + rank + turn
        )  # not there yet: the stream takes its time
        y = face.empty((1000,), np.float32)
        table.call(verb, nt.ALLREDUCE, [native(face, x)], [native(face, y)], "sum", urgent=turn % 3 == 0).ok()
        p = table.call(
            verb, nt.ALLGATHER, [native(face, face.put(np.full(rank + 1, turn + rank, np.int32)))], name="g"
        ).ok()
        s = table.call(verb, nt.REDUCESCATTER, [native(face, y)], name="s").ok()
        t = table.call(verb, nt.ALLTOALL, [native(face, x)], name="t", splits=[400, 600]).ok()
        total = 2 * np.arange(1000) + 1.0 + 2 * turn
        assert (y.numpy() == total).all()
        assert list(p.outputs[0].numpy()) == [turn] + [turn + 1] * 2
        assert (s.outputs[0].numpy() == 2 * total[500 * rank :][:500]).all()
        mine = slice(0, 400) if rank == 0 else slice(400, 1000)
        expected = np.concatenate([(np.arange(1000) + r + turn)[mine] for r in range(2)])
        assert (t.outputs[0].numpy() == expected).all() and t.received == [(400, 600)[rank]] * 2
        b = face.put(np.full(3, rank, np.int64))
        table.call(verb, nt.BROADCAST, [native(face, b)], [native(face, b)], "b", root=1).ok()
        assert list(b.numpy()) == [1] * 3

    # done() does not wait for the device where the caller's stream can be behind the work...
    for verb in ("submit", "run"):
        go = device.hold()
        x = face.put(np.full(4, 1.0 + rank, np.float32))
        table.call(verb, nt.ALLREDUCE, [native(face, x)], [native(face, x)], "held").ok()
        assert go.value == 0
        go.value = 1
        assert list(x.numpy()) == [3] * 4

    # ... and does where there is no stream.
    x, y = face.put(np.full(4, 1.0 + rank, np.float32)), face.empty((4,), np.float32)
    device.sync()
    for verb in ("submit", "run"):
        table.call(verb, nt.ALLREDUCE, [native(face, x, False)], [native(face, y, False)], "bare").ok()
        assert list(y.numpy()) == [3] * 4
        Gather.stream = False
        p = table.call(verb, nt.ALLGATHER, [native(face, x, False)], name="bare").ok()
        Gather.stream = True
        assert list(p.outputs[0].numpy()) == [1] * 4 + [2] * 4

    # Without a stream the end is waited for: the work before it is held in another call's stream.
    go = device.hold()
    h = face.put(np.full(4, 1.0 + rank, np.float32))
    table.submit(
        nt.ALLREDUCE, [native(face, h)], [native(face, h)], "h"
    ).ok()  # the engine's stream stands still
    bare = table.submit(nt.ALLREDUCE, [native(face, x, False)], [native(face, y, False)], "bare")
    host = np.full(2, 1.0 + rank)
    table.submit(nt.ALLREDUCE, [host], [host], "host").ok()  # no other call waits
    assert not bare.over.wait(0.5) and list(host) == [3, 3]
    go.value = 1
    bare.ok()
    assert list(y.numpy()) == [3] * 4 and list(h.numpy()) == [3] * 4
    device.sync()


def test_frontend_on_a_device(tmp_path):
    finish(device_jobs.launch_on_device(2, tmp_path, _every_operation), 150)


def _a_peer_dies(face):
    rank, device, table = hvd.rank(), face.device, table_of(face)
    ignore_the_launcher()
    x = face.put(np.full(4, 1.0 + rank, np.float32))
    table.submit(nt.ALLREDUCE, [native(face, x)], [native(face, x)], "first").ok()
    device.sync()
    if rank == 1:
        hvd.allreduce(np.ones(1), name="both are here")
        os.kill(os.getpid(), signal.SIGKILL)
    p = table.submit(nt.ALLREDUCE, [native(face, x)], [native(face, x)], "second")
    q = table.submit(nt.ALLREDUCE, [native(face, x, False)], [native(face, x, False)], "third")
    hvd.allreduce(np.ones(1), name="both are here")
    for call in (p, q):
        call.result(20)
        assert (call.times, call.status) == (1, nt.UNKNOWN), (call.status, call.message)
    print("told", flush=True)


def test_frontend_on_a_device_that_dies_with_a_peer(tmp_path):
    output = finish(device_jobs.launch_on_device(2, tmp_path, _a_peer_dies), 150, 137)
    assert "[0]<stdout>:told" in output
