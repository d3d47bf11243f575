"""The host device "cpu" that each backend brings along, and what its tables declare."""

import contextlib
import ctypes as C

import numpy as np
import pytest

from abi_ctypes import (
    BFLOAT16,
    CAP_ABORT,
    CAP_MEM_HOST,
    CAP_ONE_HOST,
    CAP_PROCESS_LOCAL,
    CAP_REQUEST,
    CAP_VECTORED,
    DTYPES,
    FLOAT8,
    INVALID,
    MAX,
    PROD,
    SUM,
    UNSUPPORTED,
    Buf,
    CopyItem,
    DeviceProps,
    OptionRow,
    new,
)
from table_driver import Backend, BackendFailure, array_buf, as_bfloat16, from_bfloat16


@pytest.fixture
def backend(library, tmp_path):
    return Backend(library, tmp_path)


@pytest.fixture
def device(backend):
    handle = C.c_void_p()
    backend.call(backend.device_api, "open", 0, None, C.byref(handle))
    assert handle.value is not None
    yield handle
    backend.call(backend.device_api, "close", handle)


CAPS = CAP_REQUEST | CAP_VECTORED | CAP_ABORT | CAP_MEM_HOST | CAP_PROCESS_LOCAL
DECLARED = {
    "shm": (CAPS | CAP_ONE_HOST, {b"spin_us", b"chunk_kib", b"small_kib", b"isa"}),
    "tcp": (
        CAPS,
        {b"iface", b"sockets_per_peer", b"chunk_kib", b"small_kib", b"ring_ranks"}
        | {b"peer_timeout_s", b"buffer_kib", b"isa"},
    ),
}


def test_what_it_declares(backend, backend_name):
    api = backend.api
    assert (api.name, api.tag) == (backend_name.encode(), backend_name.upper().encode()) and api.version
    assert backend.comm_api.device_types == b"cpu" and backend.device_api.device_type == b"cpu"
    caps, options = DECLARED[backend_name]
    assert backend.comm_api.caps == caps
    rows = [api.options[i] for i in range(api.option_count)]
    assert {r.name for r in rows} == options
    assert all(r.doc and r.type and r.range and r.hdr.struct_size == C.sizeof(OptionRow) for r in rows)


def test_props_and_count(backend, device):
    n = C.c_int32()
    backend.call(backend.device_api, "count", C.byref(n))
    assert n.value == 1
    props = new(DeviceProps)
    backend.call(backend.device_api, "props", device, C.byref(props))
    assert 0 < props.free_bytes <= props.total_bytes and props.alignment == 64 and props.numa_node == -1
    assert props.arch in (b"base", b"avx2", b"avx512")
    with pytest.raises(BackendFailure) as caught:
        backend.call(backend.device_api, "open", 1, None, C.byref(C.c_void_p()))
    assert caught.value.code == INVALID


def test_memory_copy_streams_events(backend, device):
    api, call = backend.device_api, backend.call
    memory, buf = C.c_void_p(), Buf()
    call(api, "mem_alloc", device, 3, 1000, C.byref(memory), C.byref(buf))
    assert buf.bytes == 1000 and buf.base % 64 == 0
    stream, native = C.c_void_p(), C.c_void_p(4711)
    call(api, "stream_wrap", device, native, C.byref(stream))
    assert api.stream_native(stream) == 4711
    source, back = np.arange(250, dtype=np.int32), np.zeros(250, np.int32)
    call(api, "copy", stream, buf, array_buf(source), 1000)
    call(api, "copy", stream, array_buf(back), buf, 1000)
    assert np.array_equal(source, back)
    with pytest.raises(BackendFailure):
        call(api, "copy", stream, buf, array_buf(source), 1001)
    first, second, elapsed = C.c_void_p(), C.c_void_p(), C.c_int64(-1)
    for event in (first, second):
        call(api, "event_create", device, 0, C.byref(event))
        call(api, "event_query", event)  # never recorded reads as done
    with pytest.raises(BackendFailure):
        call(api, "event_elapsed_ns", first, second, C.byref(elapsed))
    call(api, "event_record", first, stream)
    call(api, "event_record", second, stream)
    call(api, "event_elapsed_ns", first, second, C.byref(elapsed))
    assert 0 <= elapsed.value < 10**9
    call(api, "stream_wait_event", stream, first)
    call(api, "stream_sync", stream, 0)
    for event in (first, second):
        call(api, "event_destroy", event)
    call(api, "stream_destroy", stream)
    call(api, "mem_free", memory)
    with pytest.raises(BackendFailure) as caught:
        call(api, "mem_alloc", device, 4, 8, C.byref(memory), C.byref(buf))
    assert caught.value.code == UNSUPPORTED


@contextlib.contextmanager
def stream_of(backend):
    api, device, stream = backend.device_api, C.c_void_p(), C.c_void_p()
    backend.call(api, "open", 0, None, C.byref(device))
    backend.call(api, "stream_create", device, 0, C.byref(stream))
    yield stream
    backend.call(api, "stream_destroy", stream)
    backend.call(api, "close", device)


def copies(backend, rows, stride=C.sizeof(CopyItem)):
    """rows: (source array, its dtype number, destination array, its dtype number, scale)."""
    raw = C.create_string_buffer(stride * len(rows))
    for i, (source, s, target, t, scale) in enumerate(rows):
        item = new(CopyItem)
        item.hdr.struct_size = stride
        item.src, item.dst, item.scale, item.count = array_buf(source), array_buf(target), scale, source.size
        item.src_dtype, item.dst_dtype = s, t
        C.memmove(C.byref(raw, i * stride), C.byref(item), C.sizeof(item))
    items = C.cast(raw, C.POINTER(CopyItem))
    with stream_of(backend) as stream:
        backend.call(backend.device_api, "batched_copy_scale", stream, items, len(rows))


@pytest.mark.parametrize("stride", [C.sizeof(CopyItem), C.sizeof(CopyItem) + 16])
def test_batched_copy_scale(backend, stride):
    x = np.linspace(-4, 4, 1001).astype(np.float32)
    half, brain, ints, same, wide = (
        np.zeros(1001, t) for t in (np.float16, np.uint16, np.int8, np.float32, np.int64)
    )
    f32 = DTYPES["float32"]
    rows = [
        (x, f32, half, DTYPES["float16"], 0.0),
        (x, f32, brain, BFLOAT16, 2.0),
        (x, f32, ints, DTYPES["int8"], 100.0),
        (x, f32, same, f32, 0.5),
        (np.full(1001, 2**62 + 1), DTYPES["int64"], wide, DTYPES["int64"], 0.0),
    ]
    copies(backend, rows, stride)
    assert np.array_equal(half, x.astype(np.float16))
    assert np.array_equal(brain, as_bfloat16(2 * x))
    assert np.array_equal(ints, np.clip(np.trunc(x.astype(np.float64) * 100), -128, 127).astype(np.int8))
    assert np.array_equal(same, x * np.float32(0.5))
    assert (wide == 2**62 + 1).all()
    with pytest.raises(BackendFailure) as caught:
        copies(backend, [(ints.view(np.uint8), FLOAT8, same, f32, 0.0)])
    assert caught.value.code == UNSUPPORTED


@pytest.mark.parametrize("isa", ["base", "avx2", "auto"])  # the last one stays for the other tests
def test_half_precision_conversions_are_exact(library, tmp_path, isa):
    backend = Backend(library, tmp_path, {"isa": isa})
    every = np.arange(65536, dtype=np.uint16)
    f32, f16 = DTYPES["float32"], DTYPES["float16"]
    wide, back, brain = np.zeros(65536, np.float32), np.zeros(65536, np.float16), np.zeros(65536, np.uint16)
    copies(backend, [(every.view(np.float16), f16, wide, f32, 0.0)])
    with np.errstate(all="ignore"):
        wanted = every.view(np.float16).astype(np.float32)
    nan = np.isnan(wanted)
    assert np.array_equal(wide[~nan], wanted[~nan]) and np.isnan(wide[nan]).all()
    copies(backend, [(wide, f32, back, f16, 0.0)])
    assert np.array_equal(back.view(np.uint16)[~nan], every[~nan]) and np.isnan(back[nan]).all()
    random = np.random.default_rng(1).integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    random = np.concatenate(
        [random, np.array([65519.99, 65520, 65536, 2**-24, 2**-25, 2**-25 * 1.01], np.float32)]
    )
    got = np.zeros(random.size, np.float16)
    copies(backend, [(random, f32, got, f16, 0.0)])
    with np.errstate(all="ignore"):
        wanted = random.astype(np.float16)
    nan = np.isnan(random)
    assert (
        np.array_equal(got[~nan].view(np.uint16), wanted[~nan].view(np.uint16)) and np.isnan(got[nan]).all()
    )
    copies(backend, [(every, BFLOAT16, wide, f32, 0.0)])
    nan = np.isnan(from_bfloat16(every))
    assert np.array_equal(wide[~nan], from_bfloat16(every)[~nan]) and np.isnan(wide[nan]).all()
    copies(backend, [(wide, f32, brain, BFLOAT16, 0.0)])
    assert np.array_equal(brain[~nan], every[~nan])


def test_reduce_local(backend):
    def reduce(a, b, op):
        with stream_of(backend) as stream:
            buffers = array_buf(a), array_buf(b)
            backend.call(
                backend.device_api, "reduce_local", stream, *buffers, a.size, DTYPES[a.dtype.name], op
            )

    a, b = np.arange(1000, dtype=np.float32), np.full(1000, 500, np.float32)
    reduce(a, b, MAX)
    assert np.array_equal(a, np.maximum(np.arange(1000), 500))
    a, b = np.arange(1000, dtype=np.int64), np.full(1000, -3)
    reduce(a, b, PROD)
    assert np.array_equal(a, np.arange(1000) * -3)
    h, k = np.full(1000, 0.1, np.float16), np.full(1000, 0.2, np.float16)
    wanted = (h.astype(np.float32) + k.astype(np.float32)).astype(np.float16)
    reduce(h, k, SUM)
    assert np.array_equal(h, wanted)
    with pytest.raises(BackendFailure) as caught:
        reduce(a, b, 4)
    assert caught.value.code == INVALID
