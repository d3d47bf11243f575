"""libeccl_sim.so as a vendor's program sees it: devices, memory, streams, and its limits. One process each."""

import ctypes as c
import faulthandler
import os
import signal
import subprocess
import threading

import numpy as np
import pytest

from sim_vendor import (
    ANY_WAY,
    AVG,
    DTYPES,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    KERNEL,
    ON_DEVICE,
    REMOTE_ERROR,
    SUM,
    TO_DEVICE,
    TO_HOST,
    Attributes,
    Rank,
    UniqueId,
    run,
)

NOT_READY, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 600, 1, 2, 3
NOT_DEVICE_MEMORY, WRONG_DIRECTION, INVALID_DEVICE, INVALID_HANDLE = 17, 21, 101, 400


def alone(library, body, *args, **environment):
    """body(Rank, *args) in a process of its own."""
    return run(library, 1, body, *args, environment=environment)[0]


def test_exports_only_the_vendors_functions(simulator):
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", simulator], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in listed.stdout.splitlines() if " T " in line}
    assert {"ecclAllReduce", "topsMalloc", "topsSimLaunch"} <= names
    assert not [name for name in names if not name.startswith(("eccl", "tops"))]
    needed = subprocess.run(["ldd", simulator], capture_output=True, text=True, check=True).stdout
    assert "hvd" not in needed


def test_the_host_cannot_touch_device_memory(simulator):
    def body(r):
        pointer = r.v.device(np.arange(4.0))
        assert r.v.host(pointer, np.float64, 4).tolist() == [0, 1, 2, 3]
        child = os.fork()
        if child == 0:
            faulthandler.disable()  # the fault is the point
            c.string_at(pointer, 1)
            os._exit(0)
        # The child has no mapping at all; the parent has one that may not be read.
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV
        with open("/proc/self/maps") as maps:
            (line,) = [x for x in maps if x.startswith(f"{pointer:08x}-")]
        assert line.split()[1].startswith("---")

    alone(simulator, body)


def test_copies_are_checked(simulator):
    def body(r):
        v = r.v
        host = np.zeros(64, np.uint8)
        h = host.ctypes.data
        p, q = v.device(host), v.device(host + 7)
        pinned = v.out("topsHostMalloc", 64, 0)
        v.topsMemcpy(p + 3, q + 5, 59, ON_DEVICE)
        assert v.host(p, np.uint8, 64).tolist() == [0] * 3 + [7] * 59 + [0] * 2
        v.topsMemcpy(pinned, p, 64, ANY_WAY)
        assert c.string_at(pinned, 4) == b"\0\0\0\7"
        for code, arguments in [
            (INVALID_VALUE, (p, h, 65, TO_DEVICE)),
            (INVALID_VALUE, (p + 60, h, 5, TO_DEVICE)),
            (INVALID_VALUE, (pinned + 1, p, 64, TO_HOST)),
            (WRONG_DIRECTION, (q, p, 4, TO_DEVICE)),
            (WRONG_DIRECTION, (q, p, 4, TO_HOST)),
            (WRONG_DIRECTION, (q, p, 4, 9)),
            (NOT_DEVICE_MEMORY, (h, p, 4, ON_DEVICE)),
            (NOT_DEVICE_MEMORY, (pinned, h, 4, TO_DEVICE)),
        ]:
            assert v.refusal("topsMemcpyAsync", *arguments, r.stream)[0] == code, arguments
        v.topsMemsetAsync(p + 1, 9, 62, r.stream)
        v.topsStreamSynchronize(r.stream)
        assert v.host(p, np.uint8, 64).tolist() == [0] + [9] * 62 + [0]
        assert v.refusal("topsMemsetAsync", p, 0, 65, r.stream)[0] == INVALID_VALUE
        v.topsFree(p)
        assert v.refusal("topsMemcpyAsync", q, p, 1, ON_DEVICE, r.stream)[0] == NOT_DEVICE_MEMORY
        assert v.refusal("topsFree", p)[0] == NOT_DEVICE_MEMORY
        assert v.refusal("topsFree", q + 1)[0] == NOT_DEVICE_MEMORY
        assert v.call("topsGetLastError") == NOT_DEVICE_MEMORY and v.call("topsGetLastError") == 0

    alone(simulator, body)


def test_copies_are_counted_by_direction(simulator):
    class Traffic(c.Structure):
        _fields_ = [("calls", c.c_uint64 * 4), ("bytes", c.c_uint64 * 4)]

    def body(r):
        v = r.v
        before = v.out("topsSimTraffic", type=Traffic)
        p, q, host = v.out("topsMalloc", 64), v.out("topsMalloc", 64), np.zeros(8)
        v.topsMemcpy(p, host.ctypes.data, 64, TO_DEVICE)
        v.topsMemcpyAsync(q, p, 48, ANY_WAY, r.stream)
        v.topsMemcpyAsync(p, q, 16, ON_DEVICE, r.stream)
        v.topsMemcpyAsync(host.ctypes.data, q, 8, ANY_WAY, r.stream)
        v.refusal("topsMemcpy", host.ctypes.data, q, 65, TO_HOST)
        v.topsStreamSynchronize(r.stream)
        after = v.out("topsSimTraffic", type=Traffic)
        calls = [b - a for a, b in zip(before.calls, after.calls)]
        size = [b - a for a, b in zip(before.bytes, after.bytes)]
        assert calls == [0, 1, 1, 2] and size == [0, 64, 8, 64], (calls, size)

    alone(simulator, body)


def test_devices_have_memory_of_their_own(simulator):
    def body(r):
        v = r.v
        assert v.out("topsGetDeviceCount", type=c.c_int) == 3
        free, total = c.c_size_t(), c.c_size_t()
        v.topsMemGetInfo(c.byref(free), c.byref(total))
        assert (free.value, total.value) == (1 << 20, 1 << 20)
        p = v.out("topsMalloc", 1000)
        v.topsMemGetInfo(c.byref(free), c.byref(total))
        assert free.value == (1 << 20) - 1000
        assert v.refusal("topsMalloc", c.byref(c.c_void_p()), 1 << 20)[0] == OUT_OF_MEMORY
        attributes = v.out("topsPointerGetAttributes", p + 999, type=Attributes)
        assert (attributes.type, attributes.device, attributes.device_pointer) == (2, 0, p + 999)
        assert v.refusal("topsPointerGetAttributes", c.byref(attributes), id(v))[0] == INVALID_VALUE
        v.topsSetDevice(2)
        elsewhere = v.out("topsMalloc", 1 << 20)
        assert v.out("topsPointerGetAttributes", elsewhere, type=Attributes).device == 2
        # Device 0's memory and stream are refused while device 2 is current.
        assert v.refusal("topsMemset", p, 0, 1)[0] == INVALID_VALUE
        assert v.refusal("topsMemsetAsync", elsewhere, 0, 1, r.stream)[0] == INVALID_HANDLE
        bus = c.create_string_buffer(16)
        v.topsDeviceGetPCIBusId(bus, 16, 1)
        assert bus.value == b"0000:e5:00.0"
        assert v.refusal("topsSetDevice", 3)[0] == INVALID_DEVICE

    alone(simulator, body, TOPS_VISIBLE_DEVICES="4,5,0", TOPS_SIM_DEVICE_BYTES=str(1 << 20))


def test_nothing_is_ordered_but_by_events(simulator):
    def body(r):
        v = r.v
        other = v.out("topsStreamCreate")
        ones, result = v.device(np.ones(8)), v.device(np.zeros(8))
        start, stop = v.out("topsEventCreate"), v.out("topsEventCreate")
        assert v.call("topsEventQuery", stop) == 0  # never recorded
        back = np.zeros(8)
        go = threading.Event()
        held = KERNEL(lambda _: go.wait(40) and None)
        v.topsLaunchHostFunc(r.stream, held, None)  # what comes behind it is late
        v.topsEventRecord(start, r.stream)
        v.topsMemsetAsync(ones + 32, 0, 32, r.stream)
        v.topsMemcpyAsync(result, ones, 64, ON_DEVICE, r.stream)
        v.topsEventRecord(stop, r.stream)
        assert v.call("topsEventQuery", stop) == NOT_READY
        assert v.call("topsStreamQuery", r.stream) == NOT_READY
        v.topsMemcpyAsync(back.ctypes.data, result, 64, TO_HOST, other)  # does not wait
        v.topsStreamSynchronize(other)
        late = np.zeros(8)
        v.topsStreamWaitEvent(other, stop, 0)
        v.topsMemcpyAsync(late.ctypes.data, result, 64, TO_HOST, other)
        assert late[0] == 0  # nothing is done at the call
        go.set()
        v.topsStreamSynchronize(other)
        assert back[0] == 0 and late.tolist() == [1] * 4 + [0] * 4
        elapsed = v.out("topsEventElapsedTime", start, stop, type=c.c_float)
        assert elapsed >= 100  # the copy's delay lies between them
        untimed = v.out("topsEventCreateWithFlags", 2)
        v.topsEventRecord(untimed, r.stream)
        v.topsEventSynchronize(untimed)
        assert v.refusal("topsEventElapsedTime", c.byref(c.c_float()), start, untimed)[0] == INVALID_HANDLE
        v.topsMemsetAsync(result, 0, 64, other)
        v.topsStreamDestroy(other)  # what is queued is still done
        assert v.refusal("topsStreamQuery", other)[0] == INVALID_HANDLE

    alone(simulator, body, TOPS_SIM_DELAY_US="100000")


def test_kernels_reach_device_memory(simulator):
    def body(r):
        v = r.v
        p = v.device(np.arange(6, dtype=np.float32))

        def double(_):
            address = v.lib.topsSimAddress(c.c_void_p(p + 8), c.c_size_t(16))
            values = np.ctypeslib.as_array((c.c_float * 4).from_address(address))
            values *= 2

        kernel = KERNEL(double)
        v.topsSimLaunch(r.stream, kernel, None)
        v.topsStreamSynchronize(r.stream)
        assert v.host(p, np.float32, 6).tolist() == [0, 1, 4, 6, 8, 10]
        assert v.lib.topsSimAddress(c.c_void_p(p), c.c_size_t(1)) is None  # not in a kernel
        beyond = KERNEL(lambda _: v.lib.topsSimAddress(c.c_void_p(p), c.c_size_t(25)))
        v.topsSimLaunch(r.stream, beyond, None)
        assert v.refusal("topsStreamSynchronize", r.stream)[1] == "topsErrorIllegalAddress"
        v.topsStreamSynchronize(r.stream)  # said once
        codes = []
        calls_back = KERNEL(lambda _: codes.append(v.call("topsStreamSynchronize", r.stream)))
        v.topsLaunchHostFunc(r.stream, calls_back, None)
        v.topsStreamSynchronize(r.stream)
        assert codes == [801]

    alone(simulator, body)


def test_handles_are_not_addresses(simulator):
    def body(r):
        v = r.v
        p = v.device(np.arange(16, dtype=np.float32))
        assert v.out("topsPointerGetAttributes", p, type=Attributes).type == 4
        assert v.refusal("topsMemset", p + 4, 0, 4)[0] == NOT_DEVICE_MEMORY
        view = v.out("topsSimSubBuffer", p, 8, 32)
        assert not p <= view < p + 64
        assert v.out("topsSimSubBuffer", p, 8, 4) == view
        assert v.refusal("topsMemset", view + 4, 0, 4)[0] == NOT_DEVICE_MEMORY
        v.topsMemset(view, 0, 8)
        assert v.host(p, np.float32, 5).tolist() == [0, 1, 0, 0, 4]
        nested = v.out("topsSimSubBuffer", view, 8, 4)
        assert v.host(nested, np.float32, 1).tolist() == [4]
        v.ecclAllReduce(nested, view, 2, DTYPES["float32"], SUM, r.comm, r.stream)
        v.topsStreamSynchronize(r.stream)
        assert v.host(p, np.float32, 5).tolist() == [0, 1, 4, 5, 4]
        code, text = v.refusal("ecclAllReduce", p + 4, p, 1, DTYPES["float32"], SUM, r.comm, r.stream)
        assert code == INVALID_ARGUMENT and text == "sendbuff is not device memory"
        assert v.refusal("topsSimSubBuffer", c.byref(c.c_void_p()), p, 60, 8)[0] == INVALID_VALUE
        v.topsFree(p)
        assert v.refusal("topsMemset", view, 0, 4)[0] == NOT_DEVICE_MEMORY

    alone(simulator, body, TOPS_SIM_MEMORY="handle")


def test_limits_of_types_groups_and_devices(simulator):
    def body(r):
        v, f32 = r.v, DTYPES["float32"]
        p = v.device(np.arange(8.0))
        for dtype in ("int64", "uint64", "float64"):
            for name in ("AllReduce", "ReduceScatter"):
                arguments = (p, p, 1, DTYPES[dtype], SUM, r.comm, r.stream)
                assert v.refusal(f"eccl{name}", *arguments)[0] == INVALID_ARGUMENT
            code, text = v.refusal("ecclSend", p, 1, DTYPES[dtype], 0, r.comm, r.stream)
            assert code == INVALID_ARGUMENT
            assert text == f"Send/Recv of {dtype}: only Broadcast and AllGather have 64-bit types"
            v.ecclBroadcast(p, p, 1, DTYPES[dtype], 0, r.comm, r.stream)
            v.ecclAllGather(p, p, 1, DTYPES[dtype], r.comm, r.stream)
        for bad in [(p, p, 17, f32, SUM), (p, p, 1, 10, SUM), (p, p, 1, f32, 5), (p, p, 1 << 62, f32, SUM)]:
            assert v.refusal("ecclAllReduce", *bad, r.comm, r.stream)[0] == INVALID_ARGUMENT, bad
        host = np.zeros(4, np.float32)
        for bad in [(host.ctypes.data, p), (p, host.ctypes.data), (p, None)]:
            code, text = v.refusal("ecclAllReduce", *bad, 1, f32, SUM, r.comm, r.stream)
            assert code == INVALID_ARGUMENT and text.endswith("is not device memory")
        assert v.refusal("ecclBroadcast", p, p, 1, f32, 1, r.comm, r.stream)[0] == INVALID_ARGUMENT

        # One kind of operation per group, and the group goes as a whole.
        before = v.host(p, np.float32, 4).tolist()
        v.ecclGroupStart()
        v.ecclAllReduce(p + 4, p, 1, f32, SUM, r.comm, r.stream)
        code, text = v.refusal("ecclBroadcast", p, p, 1, f32, 0, r.comm, r.stream)
        assert (code, text) == (
            INVALID_USAGE,
            "a group holds one kind of operation: Broadcast after AllReduce",
        )
        assert v.refusal("ecclGroupEnd")[0] == INVALID_USAGE
        v.topsStreamSynchronize(r.stream)
        assert v.host(p, np.float32, 4).tolist() == before
        v.ecclAllReduce(p, p, 1, f32, SUM, r.comm, r.stream)  # no longer in a group
        assert v.refusal("ecclGroupEnd")[0] == INVALID_USAGE

        v.topsSetDevice(1)
        code, text = v.refusal("ecclAllReduce", p, p, 1, f32, SUM, r.comm, r.stream)
        assert code == INVALID_USAGE and "device 0" in text and "device 1 is current" in text
        v.topsSetDevice(0)
        v.ecclCommDestroy(r.comm)
        assert v.refusal("ecclCommDestroy", r.comm)[0] == INVALID_ARGUMENT
        assert v.refusal("ecclAllReduce", p, p, 1, f32, SUM, r.comm, r.stream)[0] == INVALID_ARGUMENT

    alone(simulator, body)


def test_ranks_of_one_process_are_made_in_a_group(simulator):
    def body(r):
        v, f32 = r.v, DTYPES["float32"]
        unique_id = v.out("ecclGetUniqueId", type=UniqueId)
        comms = [c.c_void_p() for _ in range(3)]
        v.ecclGroupStart()
        for device, comm in enumerate(comms):
            v.topsSetDevice(device)
            v.ecclCommInitRank(c.byref(comm), 3, unique_id, device)
        v.ecclGroupEnd()
        places = []
        for device, comm in enumerate(comms):
            v.topsSetDevice(device)
            assert v.out("topsGetDevice", type=c.c_int) == device
            places.append((comm, v.out("topsStreamCreate"), v.device(np.full(5, device + 1, np.float32))))
        v.ecclGroupStart()
        for device, (comm, stream, p) in enumerate(places):
            v.topsSetDevice(device)
            v.ecclAllReduce(p, p, 5, f32, AVG, comm, stream)
        v.ecclGroupEnd()
        for device, (_, stream, p) in enumerate(places):
            v.topsSetDevice(device)
            v.topsStreamSynchronize(stream)
            assert v.host(p, np.float32, 5).tolist() == [2] * 5

    alone(simulator, body)


def test_a_forked_child_has_no_devices(simulator):
    def body(r):
        child = os.fork()
        if child == 0:
            codes = {r.v.call("topsSetDevice", 0), r.v.call("topsMalloc", c.byref(c.c_void_p()), 4)}
            codes.add(r.v.call("topsGetDeviceCount", c.byref(c.c_int())))
            eccl = r.v.call("ecclCommDestroy", r.comm)
            os._exit(0 if codes == {NOT_INITIALIZED} and eccl == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        p = r.v.device(np.ones(4, np.float32))  # the parent goes on
        r.v.ecclAllReduce(p, p, 4, DTYPES["float32"], SUM, r.comm, r.stream)
        r.v.topsStreamSynchronize(r.stream)

    alone(simulator, body)


@pytest.mark.parametrize("mistake", ["missing", "twice", "sizes", "used"])
def test_a_rendezvous_that_fails_is_said(simulator, mistake):
    def body(r):
        v = r.v
        unique_id = v.out("ecclGetUniqueId", type=UniqueId)
        if mistake == "missing":
            first, second = (2, 0), None
        else:
            first, second = {"twice": ((2, 0), (2, 0)), "sizes": ((2, 0), (3, 1)), "used": ((1, 0), None)}[
                mistake
            ]
        if second:
            child = os.fork()
            if child == 0:
                os.execv(
                    "/proc/self/exe",
                    ["python", "-c", JOIN, str(v.lib._name), unique_id.hex(), *map(str, second)],
                )
        if mistake == "used":
            Rank(v, 0, 1, unique_id)
        code, text = v.refusal("ecclCommInitRank", c.byref(c.c_void_p()), first[0], unique_id, first[1])
        if second:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
        return code, text

    JOIN = (
        "import sys, sim_vendor as s; v = s.Vendor(sys.argv[1]);"
        "id = s.UniqueId.from_buffer_copy(bytes.fromhex(sys.argv[2]));"
        "sys.exit(v.refusal('ecclCommInitRank', s.c.byref(s.c.c_void_p()), int(sys.argv[3]), id, int(sys.argv[4]))[0])"
    )
    UniqueId.hex = lambda self: bytes(self).hex()
    here = os.path.dirname(__file__)
    paths = os.pathsep.join([here, os.path.dirname(here)])
    # A rank that comes has to start an interpreter first.
    seconds = "2" if mistake in ("missing", "used") else "40"
    code, text = alone(simulator, body, ECCL_SIM_TIMEOUT_S=seconds, PYTHONPATH=paths)
    if mistake == "missing":
        assert code == REMOTE_ERROR and "missing" in text
    elif mistake == "used":
        assert code == REMOTE_ERROR and "rendezvous" in text
    elif mistake == "twice":
        assert (code, text) == (INVALID_ARGUMENT, "rank 0 came twice")
    else:
        assert code == INVALID_ARGUMENT and "different numbers of ranks" in text
