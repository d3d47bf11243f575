"""L1: computations on a device: the batched copy, conversions, local reductions; and leaks of its use."""

from __future__ import annotations

import ctypes as C

import numpy as np

from hvd_core.conformance import abi
from hvd_core.conformance.abi import MEM_DEVICE, UNSUPPORTED, Buf, CopyItem, P, new
from hvd_core.conformance.backend import BackendFailure
from hvd_core.conformance.cases import Kit, case
from hvd_core.conformance.leaks import leaked, settled
from hvd_core.conformance.memory import DeviceSpace, backend_allocates
from hvd_core.conformance.numerics import (
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
from hvd_core.conformance.verdicts import EMULATED, FAIL, NATIVE, Composed


def _batched(kit: Kit, space: DeviceSpace, rows: list[tuple], stride: int = C.sizeof(CopyItem)) -> None:
    """rows: (source, its type, target, its type, scale, count), in calls of at most batch_limit."""
    props = new(abi.DeviceProps)
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
        stream, event, mem, buf = space.new_stream(), P(), P(), Buf()
        call("device", "event_create", space.device, 0, C.byref(event))
        kind = MEM_DEVICE if backend_allocates(space, MEM_DEVICE) else abi.MEM_HOST
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
