"""The simulator of CUDA and NCCL holds its callers to the rules of the real ones: contexts, memory that is out of the
host's reach, captures, communicators in progress. A test on it proves as much as the simulator is faithful.
"""

import ctypes as c
import errno
import multiprocessing
import os
import threading
import time

import numpy as np

import simulated_cuda as cuda
from forked import ForkedRanks
from simulated_cuda import Simulator


def alone(body):
    """body(Simulator) in a process of its own, as settings are read once and a fork has no devices."""
    cuda.build()

    def work(_rank, _pipe):
        sim = Simulator()
        assert sim("cuDeviceGetCount", c.byref(c.c_int())) == cuda.NOT_INITIALIZED
        sim.good("cuInit", 0)
        body(sim)

    with ForkedRanks(1, work) as ranks:
        ranks.results(60)


def contexts_and_memory(sim):
    assert sim.calls("contexts") == 0
    assert sim("cuMemAlloc_v2", c.byref(c.c_uint64()), 64) == cuda.INVALID_CONTEXT
    context = sim.out("cuDevicePrimaryCtxRetain", 1)
    sim.good("cuCtxPushCurrent_v2", context)
    pointer = sim.out("cuMemAlloc_v2", 4096)
    pinned = sim.out("cuMemHostAlloc", 4096, 1)
    stream, event = sim.out("cuStreamCreate", 1), sim.out("cuEventCreate", 2)

    # The host cannot reach the device's memory: a thread that reads it dies, unless the system reads for it.
    write = os.pipe()[1]
    libc = c.CDLL(None, use_errno=True)
    assert libc.write(write, c.c_void_p(pointer), c.c_size_t(1)) == -1 and c.get_errno() == errno.EFAULT
    assert libc.write(write, c.c_void_p(pinned), c.c_size_t(1)) == 1

    c.memset(pinned, 7, 4096)
    sim.good("cuMemcpyAsync", pointer, pinned, 4096, stream)
    assert sim("cuMemcpyAsync", pointer + 1, pinned, 4096, stream) == 1, "past the end"
    sim.good("cuEventRecord", event, stream)
    # Into memory that the driver does not know: the call waits, and is counted as one that does.
    waits = sim.calls("implicit synchronisations")
    there = np.zeros(4096, np.uint8)
    sim.good("cuMemcpyAsync", there.ctypes.data, pointer, 4096, stream)
    assert there.min() == 7 and sim.calls("implicit synchronisations") == waits + 1
    assert sim("cuEventQuery", event) == 0

    # Another device's context is no place for this one's stream.
    other = sim.out("cuDevicePrimaryCtxRetain", 0)
    sim.good("cuCtxPushCurrent_v2", other)
    assert sim("cuMemcpyAsync", pointer, pinned, 64, stream) == cuda.INVALID_CONTEXT
    assert sim("cuEventRecord", event, None) == cuda.INVALID_HANDLE
    sim.good("cuCtxPopCurrent_v2", None)
    assert sim.calls("contexts") == 2

    # The default stream comes after all work of a blocking stream so far, and before its next work.
    blocking = sim.lib.device_stream()
    go = c.c_int(0)
    sim("device_hold", blocking, c.byref(go))
    sim.good("cuMemsetD8Async", pointer, 9, 4096, None)
    time.sleep(0.05)
    assert sim("cuStreamQuery", None) == 600
    assert sim("cuStreamQuery", stream) == 0
    go.value = 1
    sim.good("cuMemcpyAsync", pinned, pointer, 4096, blocking)
    sim.good("cuStreamSynchronize", blocking)
    assert c.string_at(pinned, 1) == b"\x09"

    # A forked child has none of it.
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(sim("cuCtxSynchronize")))
    child.start()
    child.join()
    assert child.exitcode == cuda.NOT_INITIALIZED


def captures(sim):
    context = sim.out("cuDevicePrimaryCtxRetain", 0)
    sim.good("cuCtxSetCurrent", context)
    stream, event = sim.out("cuStreamCreate", 1), sim.out("cuEventCreate", 2)
    pointer, pinned = sim.out("cuMemAlloc_v2", 64), sim.out("cuMemHostAlloc", 64, 0)
    c.memset(pinned, 0, 64)

    def elsewhere(mode):
        """The answers of another thread, in that mode, to calls that wait or allocate."""
        answers = []

        def work():
            sim("cuCtxSetCurrent", context)
            sim("cuThreadExchangeStreamCaptureMode", c.byref(c.c_int(mode)))
            mine = sim.out("cuEventCreate", 2)
            answers.append(sim("cuEventQuery", mine))
            answers.append(sim("cuMemHostAlloc", c.byref(c.c_void_p()), 64, 0))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return answers

    graph = c.c_void_p()
    for theirs, mode, ends in ((cuda.RELAXED, 0, 0), (cuda.THREAD_LOCAL, 0, 0), (cuda.GLOBAL, 900, 901)):
        sim.good("cuStreamBeginCapture_v2", stream, cuda.GLOBAL)
        sim.good("cuMemsetD8Async", pointer, 5, 64, stream)
        sim.good("cuMemcpyAsync", pinned, pointer, 64, stream)
        assert elsewhere(theirs) == [mode, mode]
        assert sim("cuStreamEndCapture", stream, c.byref(graph)) == ends
        if ends == 0:
            launchable = graph.value
    assert c.string_at(pinned, 1) == b"\x00", "captured work does not run"
    sim.good("cuGraphLaunch", sim.out("cuGraphInstantiateWithFlags", launchable, 0), stream)
    sim.good("cuStreamSynchronize", stream)
    assert c.string_at(pinned, 1) == b"\x05"

    # An event of a capture draws another stream into it, and must not be queried.
    other = sim.out("cuStreamCreate", 1)
    status = c.c_int()
    sim.good("cuStreamBeginCapture_v2", stream, cuda.RELAXED)
    sim.good("cuEventRecord", event, stream)
    sim.good("cuStreamWaitEvent", other, event, 0)
    sim.good("cuStreamIsCapturing", other, c.byref(status))
    assert status.value == 1
    assert sim("cuEventQuery", event) == cuda.CAPTURED_EVENT
    assert sim("cuStreamEndCapture", stream, c.byref(graph)) == cuda.CAPTURE_INVALIDATED


def test_contexts_memory_and_captures():
    alone(contexts_and_memory)
    alone(captures)


def on_ranks(size, body, **environment):
    """body(sim, rank, unique id) on ranks that have a device each."""
    cuda.build()

    def work(rank, pipe):
        os.environ.update(environment)
        sim = Simulator()
        sim.lib.device_set(rank)
        if rank == 0:
            pipe.send(bytes(sim.out("ncclGetUniqueId", type=cuda.UniqueId)))
        return body(sim, rank, cuda.UniqueId.from_buffer_copy(pipe.recv()))

    with ForkedRanks(size, work) as ranks:
        unique = ranks.pipes[0].recv()
        assert isinstance(unique, bytes), unique
        for pipe in ranks.pipes:
            pipe.send(unique)
        return ranks.results(60)


def settle(sim, comm):
    """The communicator's state once it is no longer in progress."""
    state = c.c_int(cuda.IN_PROGRESS)
    while state.value == cuda.IN_PROGRESS:
        sim.good("ncclCommGetAsyncError", comm, c.byref(state))
        time.sleep(0.001)
    return state.value


def communicators(sim, rank, unique):
    comm = c.c_void_p()
    assert sim("ncclCommInitRankConfig", c.byref(comm), 2, unique, rank, c.byref(cuda.Config(0))) == 7
    stream, pointer = sim.lib.device_stream(), sim.lib.device_alloc(4096)
    assert sim("ncclAllReduce", pointer, pointer, 1, 7, 0, comm, stream) == 4, "not before it is there"
    assert settle(sim, comm) == 0

    # The first operation connects, and comes into the stream when that is done.
    mine = np.full(1000, 10.0 * (rank + 1), np.float16)
    sim("device_copy", stream, pointer, mine.ctypes.data, 2000)
    assert sim("ncclAllReduce", pointer, pointer, 1000, 6, 4, comm, stream) == cuda.IN_PROGRESS
    assert settle(sim, comm) == 0
    third = c.c_uint16(np.float16(1 / 3).view(np.uint16).item())
    scaled = sim.out("ncclRedOpCreatePreMulSum", c.byref(third), 6, 1, comm, type=c.c_int)
    sim.good("ncclAllReduce", pointer, pointer, 1000, 6, scaled, comm, stream)
    sim("device_copy", stream, mine.ctypes.data, pointer, 2000)
    sim("device_sync", stream)
    part = np.float16(np.float16(1 / 3) * np.float16(15))  # rounded before it is added
    assert set(mine) == {part + part}

    # A split's child is not there before the parent says so.
    child = c.c_void_p()
    assert sim("ncclCommSplit", comm, 0, 1 - rank, c.byref(child), None) == cuda.IN_PROGRESS
    assert settle(sim, comm) == 0
    number = c.c_int()
    sim.good("ncclCommUserRank", child, c.byref(number))
    assert number.value == 1 - rank
    return sim.lib.ncclCommAbort(child)


def test_communicators_under_way():
    # Long enough to be seen on a busy machine.
    assert on_ranks(2, communicators, SIM_NCCL_CONNECT_MS="1500") == [0, 0]


def crowded(sim, _rank, unique):
    sim.lib.device_set(0)
    comm = c.c_void_p()
    result = sim("ncclCommInitRank", c.byref(comm), 2, unique, _rank)
    return result, sim.lib.ncclGetLastError(None)


def test_ranks_that_share_a_device():
    for result, text in on_ranks(2, crowded):
        assert result == 5 and b"Duplicate GPU detected" in text, text
    assert [r for r, _ in on_ranks(2, crowded, SIM_NCCL_VERSION="23003", NCCL_MULTI_RANK_GPU_ENABLE="1")] == [
        0,
        0,
    ]
