"""What test_nccl_device.py has a process of its own do: backends/nccl's device table on simulated CUDA.

python device_checks.py LIBRARY CHECK...       the simulator is told of in the environment
"""

import ctypes as C
import os
import sys

import numpy as np

from hvd_core.conformance import _abi
from hvd_core.conformance._abi import INVALID, UNSUPPORTED, Buf, CopyItem, P
from hvd_core.conformance._backend import Backend, BackendFailure, deadline

GLOBAL, ACTIVE, INVALIDATED = 0, 1, 2
FLOAT32 = 7


class Device:
    """The table's device 0, and the simulator beside it, as a user's program would call it."""

    def __init__(self, library):
        self.backend = Backend("nccl", library)
        self.sim = C.CDLL(os.environ["HOROVOD_BACKEND_NCCL_CUDA_LIBRARY"])
        self.sim.sim_count.restype = C.c_uint64
        self.handle, self.stream = P(), P()

    def open(self):
        self.call("open", 0, None, C.byref(self.handle))
        self.call("stream_create", self.handle, 0, C.byref(self.stream))
        return self

    def call(self, slot, *args, **more):
        return self.backend.call("device", slot, *args, **more)

    def calls(self, name):
        return self.sim.sim_count(name.encode())

    def good(self, name, *args):
        assert getattr(self.sim, name)(*args) == 0, name

    def current(self):
        context = C.c_void_p()
        self.good("cuCtxGetCurrent", C.byref(context))
        return context.value

    def allocate(self, nbytes, kind=_abi.MEM_DEVICE):
        mem, buf = P(), Buf()
        self.call("mem_alloc", self.handle, kind, nbytes, C.byref(mem), C.byref(buf))
        return buf

    def put(self, array, target):
        self.call("copy", self.stream, target, Buf(array.ctypes.data, 0, array.nbytes), array.nbytes)
        self.sync()

    def get(self, like, source):
        out = np.zeros_like(like)
        self.call("copy", self.stream, Buf(out.ctypes.data, 0, out.nbytes), source, out.nbytes)
        self.sync()
        return out

    def sync(self):
        self.call("stream_sync", self.stream, deadline(60))

    def batch(self, rows):
        """rows: (source, target, count of float32, factor)."""
        items = (CopyItem * len(rows))()
        for item, (source, target, count, factor) in zip(items, rows, strict=True):
            item.hdr.struct_size, item.hdr.major = C.sizeof(CopyItem), 1
            item.src, item.dst, item.count, item.scale = source, target, count, factor
            item.src_dtype = item.dst_dtype = FLOAT32
        self.call("batched_copy_scale", self.stream, items, len(rows))

    def event(self, flags=0):
        made = P()
        self.call("event_create", self.handle, flags, C.byref(made))
        return made

    def refused(self, code, slot, *args):
        try:
            self.call(slot, *args)
        except BackendFailure as problem:
            assert problem.code == code, problem
            return problem.text
        raise AssertionError(f"{slot} answered OK")


def check_contexts(device):
    """Looking costs nothing; a call leaves the thread's context and capture mode as they were."""
    kind, ordinal, n = C.c_int32(), C.c_int32(), C.c_int32()
    device.call("mem_query", id(device), C.byref(kind), C.byref(ordinal))
    assert kind.value == _abi.MEM_HOST and device.calls("cuInit") == 0
    device.call("count", C.byref(n))
    assert n.value == 8 and device.calls("cuDevicePrimaryCtxRetain") == 0
    device.open()
    assert device.calls("cuDevicePrimaryCtxRetain") == 1 and device.current() is None
    other = C.c_void_p()
    device.good("cuDevicePrimaryCtxRetain", C.byref(other), 3)
    device.good("cuCtxSetCurrent", other)
    buf = device.allocate(4096)
    assert device.current() == other.value
    mode = C.c_int(GLOBAL)
    device.good("cuThreadExchangeStreamCaptureMode", C.byref(mode))
    assert mode.value == GLOBAL
    device.call("mem_query", buf.base, C.byref(kind), C.byref(ordinal))
    assert (kind.value, ordinal.value) == (_abi.MEM_DEVICE, 0)
    # Times are for events that were made for it.
    pair = [device.event(), device.event()]
    for event in pair:
        device.call("event_record", event, device.stream)
    device.sync()
    device.refused(INVALID, "event_elapsed_ns", *pair, C.byref(C.c_int64()))
    pair = [device.event(_abi.EVENT_TIMING), device.event(_abi.EVENT_TIMING)]
    for event in pair:
        device.call("event_record", event, device.stream)
    device.sync()
    device.call("event_elapsed_ns", *pair, C.byref(C.c_int64()))
    # Ended at the deadline, without the driver's own waiting.
    device.sync()
    waits = ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize")
    assert not any(device.calls(name) for name in waits)


def check_captures(device):
    """A thread captures its own stream and calls this backend meanwhile: all calls succeed, and nothing gets into the
    graph. Calls that would enqueue on the captured stream, or on the default one, are refused before they do harm."""
    device.open()
    context = C.c_void_p()
    device.good("cuDevicePrimaryCtxRetain", C.byref(context), 0)
    device.good("cuCtxSetCurrent", context)
    captured, graph, status = C.c_void_p(), C.c_void_p(), C.c_int(-1)
    value, buf = np.arange(1000, dtype=np.float32), device.allocate(4000)
    for flags, wrapped_native in ((1, None), (0, 0)):  # non-blocking; one that the default stream waits for
        device.good("cuStreamCreate", C.byref(captured), flags)
        native = captured if wrapped_native is None else None
        wrapped, ready = P(), device.event()
        device.call("stream_wrap", device.handle, native, C.byref(wrapped))
        device.call("event_record", ready, wrapped)
        device.good("cuStreamBeginCapture_v2", captured, GLOBAL)
        done = device.event()
        device.put(value, buf)
        device.batch([(buf, buf, 1000, 2.0)] * 1)
        device.call("event_record", done, device.stream)
        device.call("event_wait", done, deadline(60))
        device.call("event_wait", ready, deadline(60))
        device.call("event_query", ready)
        device.allocate(1 << 20)
        np.testing.assert_array_equal(device.get(value, buf), 2 * value)
        part = Buf(buf.base, 0, 16)
        for slot, args in (
            ("event_record", (ready, wrapped)),
            ("stream_wait_event", (wrapped, done)),
            ("copy", (wrapped, part, part, 16)),
            ("reduce_local", (wrapped, part, part, 4, FLOAT32, _abi.SUM)),
            ("stream_query", (wrapped,)),
            ("stream_sync", (wrapped, deadline(60))),
        ):
            text = device.refused(INVALID, slot, *args)
            assert "captured into a CUDA graph" in text and "a collective was called" in text, text
        device.good("cuStreamIsCapturing", captured, C.byref(status))
        assert status.value == ACTIVE, "the capture has been invalidated"
        device.good("cuStreamEndCapture", captured, C.byref(graph))


def check_batches(device):
    """One launch each, also of lists that the arguments have no room for; their tables are used again."""
    device.open()
    n, rounds = 300, 40
    value = np.arange(n, dtype=np.float32)
    source, target = device.allocate(4 * n), device.allocate(4 * n)
    device.put(value, source)
    before = {name: device.calls(name) for name in ("cuLaunchKernel", "cuMemcpyAsync", "cuMemAlloc_v2")}
    rows = [(Buf(source.base, 4 * i, 4), Buf(target.base, 4 * (n - 1 - i), 4), 1, 0.5) for i in range(n)]
    device.batch(rows[:150])
    device.batch(rows[150:])
    assert device.calls("cuLaunchKernel") == before["cuLaunchKernel"] + 2
    assert device.calls("cuMemcpyAsync") == before["cuMemcpyAsync"], "a short list needs no table"
    for _ in range(rounds):
        device.batch(rows)
        device.sync()
    assert device.calls("cuLaunchKernel") == before["cuLaunchKernel"] + 2 + rounds
    assert device.calls("cuMemcpyAsync") == before["cuMemcpyAsync"] + rounds
    assert device.calls("cuMemAlloc_v2") <= before["cuMemAlloc_v2"] + 1, (
        "each round has taken room of its own"
    )
    np.testing.assert_array_equal(device.get(value, target), value[::-1] / 2)
    too_much = [(Buf(source.base, 0, 4), target, 2, 1.0)]
    try:
        device.batch(too_much)
    except BackendFailure as problem:
        assert problem.code == INVALID and "item 0: 2 elements" in problem.text
    else:
        raise AssertionError("an item beyond its buffer was taken")


def check_text(device):
    """No machine code for this device: the driver compiles the text, and all is as usual."""
    check_batches(device)
    assert device.backend.host.logged == []


def check_nothing(device):
    """Not even that: lists of copies go one by one, factors are refused, which the engine takes for an answer."""
    device.open()
    (level, text), *rest = device.backend.host.logged
    assert (
        level == 3 and not rest and "the kernels cannot be loaded" in text and "simulated JIT: error" in text
    ), text
    value = np.arange(100, dtype=np.float32)
    source, target = device.allocate(400), device.allocate(400)
    device.put(value, source)
    device.batch([(Buf(source.base, 0, 200), Buf(target.base, 200, 200), 50, 0.0)] * 1)
    np.testing.assert_array_equal(device.get(value, target)[50:], value[:50])
    try:
        device.batch([(source, target, 100, 0.5)])
    except BackendFailure as problem:
        assert problem.code == UNSUPPORTED and "there are no kernels for this device" in problem.text
    else:
        raise AssertionError("a factor was taken without kernels")
    device.refused(UNSUPPORTED, "reduce_local", device.stream, source, target, 100, FLOAT32, _abi.SUM)
    assert device.calls("cuLaunchKernel") == 0


if __name__ == "__main__":
    for check in sys.argv[2:]:
        globals()[f"check_{check}"](Device(sys.argv[1]))
        print(f"{check} passed", flush=True)
