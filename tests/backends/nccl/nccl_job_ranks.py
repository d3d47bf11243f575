"""One rank of test_nccl_simulated_jobs.py: the calls to CUDA and NCCL that a job over the backend makes, counted
by their simulator. All checks run in one job, as starting ranks takes most of the time. Argument "kill": rank 1 dies;
"join": it has no tensor; "staged": the data go over a backend of the host's.
"""

from __future__ import annotations

import ctypes as c
import functools
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hvd_core/engine"))

import device_face
import hvd_core as hvd
import matrix_ranks
import simulated_cuda
from hvd_core import _core
from hvd_core._runtime import runtime

SIDE = os.environ["HOROVOD_BACKEND_NCCL_LIBRARY"]
# Calls that make the host wait for the device, openly or not, or take memory.
WAITS = ("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "implicit synchronisations")
MEMORY = ("cuMemAlloc_v2", "cuMemHostAlloc", "cuMemAllocManaged", "cuMemFree_v2", "cuMemFreeHost")

sim = simulated_cuda.Simulator(SIDE)
hvd.init(process_sets="dynamic")
rank = hvd.rank()
assert sim.calls("cuInit") == sim.calls("contexts") == 0, "init() touches no device"
ordinal = hvd.local_rank()
if sys.argv[1:] == ["join"]:
    os.environ["CUDA_VISIBLE_DEVICES"], ordinal = str(ordinal), 0
sim.lib.device_set(ordinal)
contexts = sim.calls("contexts")
device = device_face.Device("cuda", SIDE, True)
device.ordinal = ordinal
face = device_face.DeviceFace(device)
engine = runtime.engine()
SUM = device_face.OPS[hvd.Sum]


class Calls:
    """How often functions were called since it was made."""

    def __init__(self, *names):
        self.names = names
        self.start = {name: sim.calls(name) for name in names}

    def __getitem__(self, name):
        return sim.calls(name) - self.start[name]


def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was expected")


def reduced(arrays, name, prescale=1.0):
    """In place, and without waiting."""
    refs = [a.ref for a in arrays]
    handle = engine.allreduce(refs, refs, name, SUM, prescale, 1.0, 0)
    engine.wait(handle)
    engine.order_after(handle, device.stream)
    return handle


def put(count, value, dtype=np.float32):
    return face.put(np.full(count, value, dtype))


def nobody_waits_in_steady_state():
    few, many = [put(1000, 1.0)], [put(100 + i, 1.0) for i in range(40)]
    for _ in range(3):
        for handle in (reduced(few, "few"), reduced(many, "many")):
            engine.order_after(handle, None)
            engine.release(handle)
    device.sync()
    go = device.hold()
    handles = []
    counted = Calls(*WAITS, *MEMORY, "collectives", "cuLaunchKernel", "cuMemcpyAsync", "contexts")
    for _ in range(20):
        handles += [reduced(few, "few"), reduced(many, "many")]
    assert not any(engine.poll(h) for h in handles)
    assert {name: counted[name] for name in (*WAITS, *MEMORY)} == dict.fromkeys((*WAITS, *MEMORY), 0)
    # One buffer is reduced where it lies; forty are packed by one launch, reduced at once, and unpacked by another.
    print("steady:", counted["collectives"], counted["cuLaunchKernel"], counted["cuMemcpyAsync"], flush=True)
    go.value = 1
    for handle in handles:
        engine.order_after(handle, None)
        engine.release(handle)
    assert set(few[0].numpy()) == set(many[7].numpy()) == {2.0**23}


def other_verbs_wait_for_nothing_either():
    """Results of the engine's own come from memory that it keeps: freeing would wait for the device."""
    own, other, part = put(1000, 1.0), put(1000, 1.0), put(500, 1.0)
    verbs = {
        "allgather": lambda: engine.allgather([own.ref], "allgather", 0),
        "alltoall": lambda: engine.alltoall([own.ref], [], "alltoall", 0),
        "broadcast": lambda: engine.broadcast(own.ref, other.ref, 0, "broadcast", 0),
        "reducescatter": lambda: engine.reducescatter(
            [own.ref], [part.ref], "reducescatter", SUM, 1.0, 1.0, 0
        ),
    }
    for name, call in verbs.items():
        for turn in range(13):
            if turn == 3:
                counted = Calls(*WAITS, *MEMORY)
            handle = call()
            engine.wait(handle)
            engine.order_after(handle, device.stream)
            engine.release(handle)
        counts = {known: counted[known] for known in counted.names if counted[known]}
        counts.pop("cuMemAlloc_v2", None)  # several results are in flight at once
        assert not counts, (name, counts)


def factors():
    """A factor is the reduction's own where the element's type can hold it, and else one of a copy."""
    for dtype in (np.float32, np.float16):
        counted = Calls("ncclRedOpCreatePreMulSum", "ncclRedOpDestroy", "cuLaunchKernel")
        array = put(1000, 3.0, dtype)
        handle = reduced([array], f"factor {np.dtype(dtype)}", 0.1)
        assert np.allclose(array.numpy(), 0.6, rtol=1e-3)
        engine.release(handle)
        print("factor:", np.dtype(dtype), *(counted[name] for name in counted.names), flush=True)


def large_tensors_are_not_packed():
    counted = Calls("collectives", "cuLaunchKernel", "cuMemcpyAsync")
    arrays = [put(2**21, 1.0), put(2**21 + 7, 2.0)]  # 8 MiB each
    engine.release(reduced(arrays, "large"))
    assert [set(a.numpy()) for a in arrays] == [{2.0}, {4.0}]
    print("large:", *(counted[name] for name in counted.names), flush=True)


def the_default_stream():
    """Stream NULL, which most of PyTorch's programs use, is ordered like any other."""
    array = put(1000, 1.0)
    device.sync()
    ref = _core.TensorRef(array.address, [1000], 7, "cuda", device.ordinal, 0)
    go, mine = device.hold(), np.full(1000, 5.0, np.float32)
    device.api.device_copy(
        None, array.address, mine.ctypes.data, 4000
    )  # behind the hold of a blocking stream
    handle = engine.allreduce([ref], [ref], "default", SUM, 1.0, 1.0, 0)
    engine.wait(handle)
    engine.order_after(handle, 0)
    assert not engine.poll(handle)
    go.value = 1
    device.api.device_copy(None, mine.ctypes.data, array.address, 4000)
    device.api.device_sync(None)
    engine.release(handle)
    assert set(mine) == {10.0}


def a_capture_beside_a_job():
    """A thread captures a graph, in the mode that forbids other threads' dangerous calls, while work is in flight."""
    context = sim.out("cuDevicePrimaryCtxRetain", device.ordinal)
    begun, over, ends = threading.Event(), threading.Event(), []

    def user():
        sim.good("cuCtxSetCurrent", context)
        stream, pointer = sim.out("cuStreamCreate", 1), sim.out("cuMemAlloc_v2", 64)
        sim.good("cuStreamBeginCapture_v2", stream, simulated_cuda.GLOBAL)
        begun.set()
        sim.good("cuMemsetD8Async", pointer, 1, 64, stream)
        over.wait()
        ends.append(sim("cuStreamEndCapture", stream, c.byref(c.c_void_p())))

    thread = threading.Thread(target=user)
    thread.start()
    begun.wait()
    go = device.hold()
    arrays = [put(100 + i, 1.0) for i in range(300)]  # more than fit a launch's parameters
    handle = reduced(arrays, "beside")
    time.sleep(0.1)  # the engine looks for the end meanwhile
    go.value = 1
    engine.order_after(handle, None)
    # A result of the engine's own takes memory, and gives it back.
    assert list(face.allgather(np.full(2, rank, np.float32), "gathered beside")) == [0, 0, 1, 1]
    hvd.barrier()
    over.set()
    thread.join()
    engine.release(handle)
    assert ends == [0], ends
    assert set(arrays[299].numpy()) == {2.0}
    sim.good("cuDevicePrimaryCtxRelease_v2", device.ordinal)


def a_collective_under_capture():
    array = put(10, 1.0)
    device.sync()
    ref = array.ref
    if rank == 0:
        stream = sim.out("cuStreamCreate", 1)
        sim.good("cuStreamBeginCapture_v2", stream, simulated_cuda.GLOBAL)
        caught = _core.TensorRef(array.address, [10], 7, "cuda", device.ordinal, stream)
        said = refused(
            Exception, lambda: engine.allreduce([caught], [caught], "captured", SUM, 1.0, 1.0, 0, True)
        )
        # The capture itself goes on.
        sim.good("cuStreamEndCapture", stream, c.byref(c.c_void_p()))
    else:
        said = refused(
            hvd.HorovodInternalError,
            lambda: engine.allreduce([ref], [ref], "captured", SUM, 1.0, 1.0, 0, True),
        )
    print("captured:", said.replace("\n", " "), flush=True)
    assert face.allreduce(np.ones(3, np.float32), "captured", hvd.Sum)[0] == 2


def a_process_set_comes_and_goes():
    """Also the threads that end a communicator do so on its device: elsewhere they would make a context."""
    some = hvd.add_process_set([1])
    if rank == 1:
        assert set(face.allreduce(np.ones(3, np.float32), "some", hvd.Sum, process_set=some)) == {1}
    hvd.remove_process_set(some)
    assert sim.calls("contexts") == contexts


def nothing_is_left():
    hvd.shutdown()
    assert sim.calls("ncclCommFinalize") == sim.calls("ncclCommDestroy") == 1 + rank
    assert sim.calls("ncclCommAbort") == 0
    assert sim.calls("contexts") == contexts
    assert sim.calls("ncclCommDeregister") == sim.calls("ncclCommRegister")


def killed():
    # The launcher ends who has not said within a second that it has heard; that may be too short on a busy machine.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert face.allreduce(np.ones(3, np.float32), "first", hvd.Sum)[0] == 2
    own = put(3, 1.0)
    if rank == 1:
        device.hold()  # submitted, so that the other's NCCL waits for it, and held up on the device
    handle = reduced([own], "second")
    hvd.barrier()
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    # The other rank's stream goes on with old data; a call that waits for the end, and the next call, fail.
    second = functools.partial(engine.order_after, handle, None)
    third = functools.partial(face.allreduce, np.ones(3, np.float32), "third", hvd.Sum)
    for name, call in (("second", second), ("third", third)):
        print(f"{name}: {refused(hvd.HorovodInternalError, call)}", flush=True)
    sys.exit(1)


def joins():
    """A rank that opens its device only because others use theirs, where each sees one, as number 0."""
    if rank == 0:
        assert face.allreduce(np.full(3, 5.0, np.float32), "alone", hvd.Sum)[0] == 5
    hvd.join()
    hvd.shutdown()
    sys.exit(0)


def staged():
    """A few cases of the engine's matrix, and who served them. Kept short: some of the hosts' libraries never sleep."""
    matrix_ranks.hvd = face
    cases = matrix_ranks.Matrix("staged", hvd.global_process_set, [0, 1])
    cases.reductions(np.dtype("float32"), 1023)
    cases.movements(np.dtype("float32"), 1023)
    cases.movements(np.dtype("int64"), 300_001)  # several chunks
    assert not cases.mistakes, cases.mistakes
    for info in engine.backend_info() if rank == 0 else ():  # lines of two ranks could mix under mpirun
        for x in info.get("served", ()):
            print("served:", x["collective"], x["dtype"], x["served"], x["backend"], x["how"], flush=True)
    hvd.shutdown()
    sys.exit(0)


if sys.argv[1:] == ["kill"]:
    killed()
if sys.argv[1:] == ["join"]:
    joins()
if sys.argv[1:] == ["staged"]:
    staged()
assert face.allreduce(np.ones(3, np.float32), "first", hvd.Sum)[0] == 2
assert sim.calls("contexts") == contexts
nobody_waits_in_steady_state()
other_verbs_wait_for_nothing_either()
print("registered:", sim.calls("ncclCommRegister"), flush=True)
factors()
large_tensors_are_not_packed()
the_default_stream()
a_capture_beside_a_job()
a_collective_under_capture()
a_process_set_comes_and_goes()
nothing_is_left()
print("done", flush=True)
