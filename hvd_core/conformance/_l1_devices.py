"""L1: one device: memory, copies, streams, events, the batched copy, local reductions.

Asynchronous devices are tested by their data, never by the clock: a stream gets long copies, and an answer that comes too
early is compared with data that have not arrived yet.
"""

from __future__ import annotations

import ctypes as C
import threading
import time
from typing import Any

import numpy as np

from hvd_core.conformance import _abi
from hvd_core.conformance._abi import INPROGRESS, INVALID, MEM_DEVICE, OK, UNSUPPORTED, Buf, CopyItem, P, new
from hvd_core.conformance._backend import BackendFailure, deadline
from hvd_core.conformance._cases import Kit, case
from hvd_core.conformance._comm import DeviceSpace, backend_allocates
from hvd_core.conformance._leaks import leaked, settled
from hvd_core.conformance._numerics import (
    NUMBERS,
    OPS,
    compare,
    is_float,
    reduced,
    sample,
    stored,
    to_real,
    to_stored,
)
from hvd_core.conformance._verdicts import EMULATED, FAIL, NATIVE, Composed, Failed

KINDS = {"DEVICE": 1, "PINNED": 2, "HOST": 3, "MANAGED": 4, "REGISTERED": 5}


def refused(kit: Kit, slot: str, *args: Any, codes: tuple[int, ...] = (INVALID,)) -> BackendFailure:
    """The failure with which a call of the device table must end; Failed when it does not, or not so."""
    try:
        kit.backend.call("device", slot, *args)
    except BackendFailure as problem:
        names = " or ".join(_abi.CODES[c] for c in codes)
        kit.expect(problem.code in codes, f"{problem}; it must answer {names}")
        return problem
    raise Failed(f"{slot} answered OK for invalid arguments")


@case("L1.open", "count, open, props, close; a device that does not exist is refused")
def opening(kit: Kit) -> None:
    if kit.backend.device is None:
        kit.skip("the backend has no device table")
    call, count = kit.backend.call, C.c_int32(-1)
    call("device", "count", C.byref(count))
    kit.expect(
        count.value >= 1,
        f"count returns {count.value}; the probe should have answered that there is no device",
    )
    for ordinal in (-1, count.value):
        refused(kit, "open", ordinal, None, C.byref(P()))
    for _ in range(3):
        device, props = P(), new(_abi.DeviceProps)
        call("device", "open", 0, None, C.byref(device))
        kit.expect(device.value is not None, "open answered OK and returned a NULL device")
        call("device", "props", device, C.byref(props))
        kit.expect(
            props.free_bytes <= props.total_bytes, f"{props.free_bytes} of {props.total_bytes} bytes are free"
        )
        kit.expect(
            props.alignment & (props.alignment - 1) == 0, f"alignment {props.alignment} is not a power of two"
        )
        kit.expect(props.numa_node >= -1, f"numa_node is {props.numa_node}; -1 means unknown")
        kit.expect(
            props.batch_limit > 0 or not kit.backend.has("device", "batched_copy_scale"), "batch_limit is 0"
        )
        call("device", "close", device)
    call("device", "open", 0, None, C.byref(device))
    props = new(_abi.DeviceProps)
    short = _abi.DeviceProps.numa_node.offset
    props.hdr.struct_size, props.numa_node, props.arch = short, 4711, b"mine"
    call("device", "props", device, C.byref(props))
    kit.expect(
        props.numa_node == 4711 and props.arch == b"mine",
        f"props writes beyond the {short} bytes of its argument",
    )
    call("device", "close", device)


@case("L1.memory", "kinds of memory: present or UNSUPPORTED, aligned, recognised by mem_query")
def memory(kit: Kit) -> None:
    space = kit.need_device("mem_alloc")
    call = kit.backend.call
    for name, kind in KINDS.items():
        mem, buf = P(), Buf()
        code = call(
            "device",
            "mem_alloc",
            space.device,
            kind,
            1000,
            C.byref(mem),
            C.byref(buf),
            allowed=(OK, UNSUPPORTED),
        )
        if code == UNSUPPORTED:
            kit.expect(kind != MEM_DEVICE or space.name == "cpu", "the device has no memory of kind DEVICE")
            kit.row(name, EMULATED, "the device has none")
            continue
        kit.expect(
            buf.bytes >= 1000 and buf.base, f"{name}: asked for 1000 bytes, got {buf.bytes} at {buf.base}"
        )
        if buf.offset == 0 and kind != MEM_DEVICE:
            kit.expect(
                buf.base % space.alignment == 0,
                f"{name}: the address is not a multiple of {space.alignment}, the alignment of props",
            )
        if kit.backend.has("device", "mem_query"):
            found, ordinal = C.c_int32(-1), C.c_int32(-1)
            code = call(
                "device", "mem_query", buf.base, C.byref(found), C.byref(ordinal), allowed=(OK, UNSUPPORTED)
            )
            kit.expect(
                code == UNSUPPORTED or found.value == kind,
                f"mem_query reports kind {found.value} for memory of kind {name}",
            )
        call("device", "mem_free", mem)
        kit.row(name, NATIVE)
    refused(
        kit, "mem_alloc", space.device, 77, 64, C.byref(P()), C.byref(Buf()), codes=(INVALID, UNSUPPORTED)
    )
    held = (
        [space.allocate(MEM_DEVICE, 1 << 16) for _ in range(32)]
        if backend_allocates(space, MEM_DEVICE)
        else []
    )
    bases = {(b.base, b.offset) for _, b in held}
    kit.expect(len(bases) == len(held), "two allocations have the same address")
    for mem, buf in held:
        space.release(MEM_DEVICE, 1 << 16, mem, buf)


@case("L1.copy", "copies between host and device and on the device, at odd offsets of (base, offset)")
def copies(kit: Kit) -> None:
    space = kit.need_device("mem_alloc")
    for count in (0, 1, 17, 1023, 1_000_001):
        for skew in (0, 1, 7) if count < 2000 else (3,):
            value = sample("uint8", skew, count)
            first = space.region(count, 1, skew)
            first.write(value)
            second = space.region(count, 1, 5)
            second.poison()
            space.copy(second.buf, first.buf, count)
            space.sync()
            kit.expect(
                (second.read() == value).all(),
                f"{count} bytes from device to device, skewed by {skew}: changed",
            )
            kit.expect((first.read() == value).all(), f"{count} bytes: the source of a copy has changed")
    part = space.of(np.zeros(64, np.uint8))
    view, raw = space.host_buffer(64)
    raw[:] = np.arange(64)
    space.copy(Buf(part.buf.base, part.buf.offset + 11, 20), Buf(view.base, view.offset + 3, 20), 20)
    space.sync()
    wanted = np.zeros(64, np.uint8)
    wanted[11:31] = np.arange(3, 23)
    kit.expect((part.read() == wanted).all(), "a copy into the middle of a buffer arrives at another place")


@case("L1.bounds", "a copy that is larger than its buffers is refused, and changes no byte")
def bounds(kit: Kit) -> None:
    space = kit.need_device("mem_alloc")
    big, small = space.of(sample("uint8", 0, 256)), space.of(np.zeros(100, np.uint8))
    refused(kit, "copy", space.stream, small.buf, big.buf, 200)
    refused(kit, "copy", space.stream, big.buf, small.buf, 200)
    space.sync()
    kit.expect(
        (small.read() == 0).all() and (big.read() == sample("uint8", 0, 256)).all(),
        "it was refused, and done",
    )


# About how long such a chain keeps the device busy: many times longer than it takes to enqueue it.
BUSY_S = 0.08


class Slow:
    """A chain of copies on a stream that takes the device a while, ending in a host buffer that NumPy may look at."""

    def __init__(self, kit: Kit, space: DeviceSpace) -> None:
        self.size, self.steps, self.space = 4 << 20, 1, space
        self.source = space.of(np.full(self.size, 1, np.uint8))
        self.other = space.of(np.zeros(self.size, np.uint8))
        self.host, self.seen = space.host_buffer(self.size)
        rounds = [self._seconds() for _ in range(5)]
        # The first round uses memory for the first time, and on a busy machine others may take longer too.
        self.steps = max(1, min(400, round(BUSY_S / min(rounds[1:]))))

    def enqueue(self, value: int, stream: P | None) -> None:
        """From now on the stream is busy; at its end the host buffer holds ``value`` everywhere."""
        self.seen[:] = 0
        self.source.write(np.full(self.size, value, np.uint8))
        self._chain(stream)

    def _seconds(self) -> float:
        started = time.monotonic()
        self._chain(self.space.stream)
        self.space.sync()
        return time.monotonic() - started

    def _chain(self, stream: P | None) -> None:
        space = self.space
        for _ in range(self.steps):
            space.copy(self.other.buf, self.source.buf, self.size, stream)
            space.copy(self.source.buf, self.other.buf, self.size, stream)
        space.copy(self.host, self.source.buf, self.size, stream)

    def arrived(self, value: int) -> bool:
        """Whether all has come; looked at without asking the device for anything."""
        return bool(self.seen[-1] == value and (self.seen[:: 4096 + 1] == value).all())


@case(
    "L1.streams",
    "a stream carries out its work in order, and stream_sync returns when it is complete",
    seconds=120,
)
def streams(kit: Kit) -> None:
    space = kit.need_device("mem_alloc", "stream_create")
    stream, chain = space.new_stream(), Slow(kit, space)
    for value in (3, 4):
        chain.enqueue(value, stream)
        space.sync(stream)
        kit.expect(
            chain.arrived(value), "stream_sync has returned, but the last copy of the stream has not arrived"
        )
    numbers = [space.of(np.full(5000, n, np.uint8)) for n in range(40)]
    target = space.of(np.zeros(5000, np.uint8))
    for region in numbers:
        space.copy(target.buf, region.buf, 5000, stream)
    space.sync(stream)
    kit.expect((target.read() == 39).all(), "copies of one stream were not carried out in order")
    if kit.backend.has("device", "stream_query"):
        kit.backend.call("device", "stream_query", stream)
        chain.enqueue(5, stream)
        code = kit.backend.call("device", "stream_query", stream, allowed=(OK, INPROGRESS))
        kit.expect(
            code == INPROGRESS or chain.arrived(5), "stream_query answers OK, but the work is not complete"
        )
        space.sync(stream)
    chain.enqueue(6, stream)
    code = _until(kit, "stream_sync", stream)
    kit.expect(
        code != OK or chain.arrived(6),
        "stream_sync with a deadline long past answers OK, but the work is not complete",
    )
    space.sync(stream)
    kit.backend.call("device", "stream_destroy", stream)
    for priority in (-1, 0, 1):
        kit.backend.call("device", "stream_destroy", space.create("stream_create", priority))


def _until(kit: Kit, slot: str, handle: P | None) -> int:
    """The answer to a wait whose deadline has passed before the call."""
    try:
        return kit.backend.call("device", slot, handle, deadline(-1), allowed=(OK, INPROGRESS))
    except BackendFailure as problem:
        kit.expect(problem.code == _abi.TIMEOUT, f"{problem}; it must answer TIMEOUT at the deadline")
        return problem.code


@case("L1.native_streams", "a native stream can be obtained, wrapped, and used through both handles")
def native_streams(kit: Kit) -> None:
    space = kit.need_device("stream_wrap", "stream_native")
    stream = space.new_stream()
    native = kit.backend.device_api.stream_native(stream)
    wrapped = space.create("stream_wrap", native)
    kit.expect(
        kit.backend.device_api.stream_native(wrapped) == native,
        "stream_native of a wrapped stream returns another stream",
    )
    source, target = space.of(sample("uint8", 1, 999)), space.of(np.zeros(999, np.uint8))
    space.copy(target.buf, source.buf, 999, wrapped)
    space.sync(stream)
    kit.expect(
        (target.read() == sample("uint8", 1, 999)).all(),
        "work of a wrapped stream is not ordered with work of the stream itself",
    )
    kit.backend.call("device", "stream_destroy", wrapped)
    space.copy(target.buf, source.buf, 999, stream)
    space.sync(stream)
    kit.backend.call("device", "stream_destroy", stream)


@case(
    "L1.events",
    "events: complete before the first record, then when their stream has reached them",
    seconds=120,
)
def events(kit: Kit) -> None:
    space = kit.need_device("mem_alloc", "stream_create", "event_create")
    call, event, stream = kit.backend.call, space.create("event_create", 0), space.new_stream()
    kit.expect(event.value is not None, "event_create answered OK and returned NULL")
    call("device", "event_query", event)
    chain = Slow(kit, space)
    for value in (7, 8):
        chain.enqueue(value, stream)
        call("device", "event_record", event, stream)
        answers: list[bool] = []
        # T2: any thread
        other = threading.Thread(target=lambda into=answers: into.append(_poll(kit, event)))
        other.start()
        other.join()
        kit.expect(answers == [True], f"event_query from another thread: {answers}")
        kit.expect(
            chain.arrived(value), "event_query answers OK, but the copy before the event has not arrived"
        )
    if kit.backend.has("device", "event_wait"):
        chain.enqueue(9, stream)
        call("device", "event_record", event, stream)
        code = _until(kit, "event_wait", event)
        kit.expect(
            code != OK or chain.arrived(9),
            "event_wait with a deadline long past answers OK, but the work is not complete",
        )
        call("device", "event_wait", event, deadline(kit.limit(30)))
        kit.expect(chain.arrived(9), "event_wait has returned, but the copy before the event has not arrived")
    _elapsed(kit, space, stream)
    call("device", "event_destroy", event)
    call("device", "stream_destroy", stream)


def _poll(kit: Kit, event: P) -> bool:
    until = deadline(kit.limit(30))
    while kit.backend.call("device", "event_query", event, allowed=(OK, INPROGRESS)) != OK:
        kit.expect(deadline(0) < until, "an event is not complete within 30 s")
        kit.pause(0.0005)
    return True


def _elapsed(kit: Kit, space: DeviceSpace, stream: P | None) -> None:
    if not kit.backend.has("device", "event_elapsed_ns"):
        return
    call, elapsed = kit.backend.call, C.c_int64(-1)
    pair = [space.create("event_create", _abi.EVENT_TIMING) for _ in range(2)]
    for event in pair:
        call("device", "event_record", event, stream)
    space.sync(stream)
    call("device", "event_elapsed_ns", *pair, C.byref(elapsed))
    kit.expect(
        0 <= elapsed.value < 10**10,
        f"{elapsed.value} ns between two events that were recorded in sequence",
    )
    for event in pair:
        call("device", "event_destroy", event)


@case(
    "L1.stream_wait_event",
    "a stream waits for an event of another stream, and the host does not",
    seconds=120,
)
def stream_wait_event(kit: Kit) -> None:
    space = kit.need_device("mem_alloc", "stream_create", "event_create", "stream_wait_event")
    call, first, second = kit.backend.call, space.new_stream(), space.new_stream()
    event = space.create("event_create", 0)
    chain = Slow(kit, space)
    for value in (11, 12):
        target = space.of(np.zeros(chain.size, np.uint8))
        chain.enqueue(value, first)
        call("device", "event_record", event, first)
        call("device", "stream_wait_event", second, event)
        space.copy(target.buf, chain.source.buf, chain.size, second)
        space.copy(target.buf, chain.host, chain.size, second)
        space.sync(second)
        kit.expect(chain.arrived(value), "the second stream continued before the event that it waits for")
        kit.expect(
            (target.read()[::4097] == value).all(),
            "the second stream read before the first stream had written",
        )
    for stream in (first, second):
        space.sync(stream)
        call("device", "stream_destroy", stream)
    call("device", "event_destroy", event)


# ---- computations on a device, and leaks of its use -------------------------------------------------------------------


def _batched(
    kit: Kit, space: DeviceSpace, rows: list[tuple[Any, ...]], stride: int = C.sizeof(CopyItem)
) -> None:
    """rows: (source, its type, target, its type, scale, count), in calls of at most batch_limit."""
    props = new(_abi.DeviceProps)
    kit.backend.call("device", "props", space.device, C.byref(props))
    limit = max(1, min(props.batch_limit, 1 << 20))
    for begin in range(0, len(rows), limit) or (0,):
        some = rows[begin : begin + limit]
        room = (C.c_uint8 * (stride * max(1, len(some))))()
        for i, (source, from_type, target, to_type, scale, count) in enumerate(some):
            item = CopyItem.from_buffer(room, i * stride)
            item.hdr.struct_size, item.hdr.major = stride, 1
            item.src, item.dst, item.scale, item.count = source, target, scale, count
            item.src_dtype, item.dst_dtype = NUMBERS[from_type], NUMBERS[to_type]
        items = C.cast(room, C.POINTER(CopyItem))
        kit.backend.call("device", "batched_copy_scale", space.stream, items, len(some))
        C.memset(room, 0xEE, len(room))  # arguments live during the call only
    space.sync()


@case(
    "L1.batched_copy",
    "batched_copy_scale gives the result of a loop of copies: 0, 1, 161, 5000 items",
    seconds=120,
)
def batched_copy(kit: Kit) -> None:
    if kit.backend.device is not None and not kit.backend.has("device", "batched_copy_scale"):
        raise Composed("the table has no batched_copy_scale; hvd-core makes a loop of copies")
    space = kit.need_device("mem_alloc", "batched_copy_scale")
    for items in (0, 1, 161, 500 if kit.quick else 5000):
        sizes = [(i * 37) % 67 for i in range(items)]
        starts = np.cumsum([0, *sizes])
        data = sample("uint8", items, int(starts[-1]))
        source, target = space.of(data), space.region(data.nbytes + items)
        target.poison()
        rows = []
        for i, size in enumerate(
            sizes
        ):  # to the other end, with a byte between the pieces that stays as it is
            at = target.nbytes - int(starts[i + 1]) - i - 1
            take = Buf(source.buf.base, source.buf.offset + int(starts[i]), size)
            rows.append(
                (take, "uint8", Buf(target.buf.base, target.buf.offset + at, size), "uint8", 0.0, size)
            )
        stride = C.sizeof(CopyItem) + (16 if items == 161 else 0)  # a newer host's items are longer
        _batched(kit, space, rows, stride)
        wanted = np.full(target.nbytes, 0xDB, np.uint8)
        for i, size in enumerate(sizes):
            at = target.nbytes - int(starts[i + 1]) - i - 1
            wanted[at : at + size] = data[starts[i] : starts[i + 1]]
        wrong = compare("uint8", target.read(), wanted)
        kit.row(f"{items} items", FAIL if wrong else NATIVE, wrong)


@case(
    "L1.convert", "batched_copy_scale converts and scales as NumPy does, bit by bit, or refuses", seconds=120
)
def convert(kit: Kit) -> None:
    if kit.backend.device is not None and not kit.backend.has("device", "batched_copy_scale"):
        raise Composed("the table has no batched_copy_scale; hvd-core converts on the host")
    space = kit.need_device("mem_alloc", "batched_copy_scale")
    types = ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8")
    for source_type in types:
        for target_type in types:
            for scale in (0.0, 0.5, 3.0):
                what = f"{source_type} to {target_type}" + (f" by {scale}" if scale else "")
                wrong = _convert(kit, space, source_type, target_type, scale)
                if wrong is None:
                    kit.row(what, EMULATED, "by hvd-core")
                else:
                    kit.row(what, FAIL if wrong else NATIVE, wrong)


def _convert(kit: Kit, space: DeviceSpace, source_type: str, target_type: str, scale: float) -> str | None:
    # Values that every type can hold, also after scaling: overflow of integer types is not defined.
    signed = not (source_type.startswith("u") or target_type.startswith("u"))
    small = np.linspace(-42, 42, 337) if signed else np.arange(0.0, 43.0)
    value = to_stored(source_type, small)
    source = space.of(value, 64)
    target = space.region(value.size * stored(target_type).itemsize, 64)
    target.poison()
    try:
        _batched(kit, space, [(source.buf, source_type, target.buf, target_type, scale, value.size)])
    except BackendFailure as problem:
        kit.expect(
            problem.code == UNSUPPORTED,
            f"{source_type} to {target_type}: {problem}; it must answer UNSUPPORTED",
        )
        return None
    # Through the widest type, rounded once, toward zero for integers.
    exact = (to_real(source_type, value) if is_float(source_type) else value.astype(np.float64)) * (
        scale or 1.0
    )
    if not is_float(target_type):
        exact = np.trunc(exact)
    return compare(target_type, target.read(stored(target_type)), to_stored(target_type, exact))


@case("L1.reduce_local", "reduce_local against NumPy, every type and reduction", seconds=120)
def reduce_local(kit: Kit) -> None:
    if kit.backend.device is not None and not kit.backend.has("device", "reduce_local"):
        raise Composed("the table has no reduce_local; hvd-core reduces on the host")
    space = kit.need_device("mem_alloc", "reduce_local")
    for dtype in NUMBERS:
        for name in ("sum", "prod", "min", "max"):
            if dtype.startswith("float8"):
                continue
            for count in (0, 1, 1023):
                columns = [sample(dtype, r, count) for r in range(2)]
                both, other = space.of(columns[0], 64), space.of(columns[1], 64)
                args = (space.stream, both.buf, other.buf, count, NUMBERS[dtype], OPS[name])
                try:
                    kit.backend.call("device", "reduce_local", *args)
                except BackendFailure as problem:
                    kit.expect(
                        problem.code == UNSUPPORTED, f"{dtype} {name}: {problem}; it must answer UNSUPPORTED"
                    )
                    kit.row(f"{dtype} {name}", EMULATED, "by hvd-core")
                    break
                space.sync()
                wrong = compare(dtype, both.read(stored(dtype)), *reduced(dtype, OPS[name], columns))
                kit.row(f"{dtype} {name}", FAIL if wrong else NATIVE, wrong)


@case("L1.leaks", "opening, streams, events and memory, repeated, leak no resources")
def leaks(kit: Kit) -> None:
    space = kit.need_device("mem_alloc", "stream_create", "event_create")
    call = kit.backend.call
    host, _ = space.host_buffer(1024)

    def once() -> None:
        stream, event, mem, buf = space.new_stream(), space.create("event_create", 0), P(), Buf()
        kind = MEM_DEVICE if backend_allocates(space, MEM_DEVICE) else _abi.MEM_HOST
        call("device", "mem_alloc", space.device, kind, 1 << 16, C.byref(mem), C.byref(buf))
        space.copy(Buf(buf.base, buf.offset, 1024), host, 1024, stream)
        call("device", "event_record", event, stream)
        space.sync(stream)
        call("device", "mem_free", mem)
        call("device", "event_destroy", event)
        call("device", "stream_destroy", stream)

    for _ in range(5):
        once()
    before = settled()
    for _ in range(40):
        once()
    left = leaked(before, 40)
    kit.expect(not left, f"40 rounds leaked {left}")
