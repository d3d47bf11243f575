"""The table with tensors on a made-up device (tests/backends/fake_stream): in the order of the caller's stream, or at the end of
the work where there is none.
"""

import sys
from pathlib import Path

sys.path[1:1] = [str(Path(__file__).parents[1] / "engine")]
import device_jobs  # noqa: E402

TABLE = f"""
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import ctypes, threading
        import native_table as nt
        table = nt.Table(hvd.frontend_table())

        def native(array, stream=True):
            shape = (ctypes.c_int64 * max(len(array.shape), 1))(*array.shape)
            t = nt.Tensor(array.address, shape, len(array.shape), nt.NUMBERS[array.dtype], name.encode(),
                          device.ordinal, int(stream), device.stream if stream else None)
            return t, (array, shape)

        class Gather(nt.Pending):
            stream = True
            def take(self, pointer):
                r = pointer.contents
                for i in range(r.n_outputs):
                    t = r.outputs[i]
                    assert t.device_type == name.encode()
                    array = face.empty(tuple(t.shape[: t.ndim]), nt.DTYPES[t.dtype])
                    target, kept = native(array, self.stream)
                    assert r.copy(pointer, i, ctypes.byref(target)) == nt.OK
                    other = native(face.empty((99,), np.int8))
                    assert r.copy(pointer, i, ctypes.byref(other[0])) == nt.INVALID_ARGUMENT
                    assert r.copy(pointer, r.n_outputs, ctypes.byref(target)) == nt.INVALID_ARGUMENT
                    self.outputs.append(array)
        nt.Pending = Gather
        assert (table.raw.serves(name.encode()), table.raw.serves(b"other")) == (1, 0)
"""


def test_frontend_on_a_device(tmp_path):
    device_jobs.run(
        2,
        tmp_path,
        TABLE
        + """
        for turn in range(60):
            verb = ("submit", "run")[turn % 2]
            x = put(np.arange(1000, dtype=np.float32) + rank + turn)  # not there yet: the stream takes its time
            y = face.empty((1000,), np.float32)
            table.call(verb, nt.ALLREDUCE, [native(x)], [native(y)], "sum", urgent=turn % 3 == 0).ok()
            p = table.call(verb, nt.ALLGATHER, [native(put(np.full(rank + 1, turn + rank, np.int32)))], name="g").ok()
            s = table.call(verb, nt.REDUCESCATTER, [native(y)], name="s").ok()
            t = table.call(verb, nt.ALLTOALL, [native(x)], name="t", splits=[400, 600]).ok()
            total = 2 * np.arange(1000) + 1.0 + 2 * turn
            assert (y.numpy() == total).all()
            assert list(p.outputs[0].numpy()) == [turn] + [turn + 1] * 2
            assert (s.outputs[0].numpy() == 2 * total[500 * rank :][:500]).all()
            mine = slice(0, 400) if rank == 0 else slice(400, 1000)
            expected = np.concatenate([(np.arange(1000) + r + turn)[mine] for r in range(2)])
            assert (t.outputs[0].numpy() == expected).all() and t.received == [(400, 600)[rank]] * 2
            b = put(np.full(3, rank, np.int64))
            table.call(verb, nt.BROADCAST, [native(b)], [native(b)], "b", root=1).ok()
            assert list(b.numpy()) == [1] * 3

        # done() does not wait for the device where the caller's stream can be behind the work...
        for verb in ("submit", "run"):
            go = device.hold()
            x = put(np.full(4, 1.0 + rank, np.float32))
            table.call(verb, nt.ALLREDUCE, [native(x)], [native(x)], "held").ok()
            assert go.value == 0
            go.value = 1
            assert list(x.numpy()) == [3] * 4

        # ... and does where there is no stream.
        x, y = put(np.full(4, 1.0 + rank, np.float32)), face.empty((4,), np.float32)
        device.sync()
        for verb in ("submit", "run"):
            raw = np.empty(4, np.float32)
            p = table.call(verb, nt.ALLREDUCE, [native(x, False)], [native(y, False)], "bare").ok()
            assert list(y.numpy()) == [3] * 4
            nt.Pending.stream = False
            p = table.call(verb, nt.ALLGATHER, [native(x, False)], name="bare").ok()
            nt.Pending.stream = True
            assert list(p.outputs[0].numpy()) == [1] * 4 + [2] * 4

        # Without a stream the end is waited for: the work before it is held in another call's stream.
        go = device.hold()
        h = put(np.full(4, 1.0 + rank, np.float32))
        held = table.submit(nt.ALLREDUCE, [native(h)], [native(h)], "h").ok()  # the engine's stream stands still
        bare = table.submit(nt.ALLREDUCE, [native(x, False)], [native(y, False)], "bare")
        host = np.full(2, 1.0 + rank)
        table.submit(nt.ALLREDUCE, [host], [host], "host").ok()  # nobody else waits
        assert not bare.over.wait(0.5) and list(host) == [3, 3]
        go.value = 1
        bare.ok()
        assert list(y.numpy()) == [3] * 4 and list(h.numpy()) == [3] * 4
        device.sync()
        """,
    )


def test_frontend_on_a_device_that_dies_with_a_peer(tmp_path):
    output = device_jobs.run(
        2,
        tmp_path,
        TABLE
        + """
        # The launcher ends who has not said within a second that it has heard; that may be too short here.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        x = put(np.full(4, 1.0 + rank, np.float32))
        table.submit(nt.ALLREDUCE, [native(x)], [native(x)], "first").ok()
        device.sync()
        if rank == 1:
            hvd.allreduce(np.ones(1), name="both are here")
            os.kill(os.getpid(), signal.SIGKILL)
        p = table.submit(nt.ALLREDUCE, [native(x)], [native(x)], "second")
        q = table.submit(nt.ALLREDUCE, [native(x, False)], [native(x, False)], "third")
        hvd.allreduce(np.ones(1), name="both are here")
        for call in (p, q):
            call.result(20)
            assert (call.times, call.status) == (1, nt.UNKNOWN), (call.status, call.message)
        print("told", flush=True)
        """,
        code=137,
    )
    assert "[0]<stdout>:told" in output
