"""The backend ABI as ctypes, to drive a shared object with no engine in between.

A mirror of hvd/backend_abi.h that is written by hand on purpose, so that a slip in the header shows up here; its slots
are compared with backend_slots.inc. Numbers and structs only; backend.py makes calls with them.
"""

from __future__ import annotations

import ctypes as C
import functools
from typing import Any, TypeVar

OK, INPROGRESS, INVALID, UNSUPPORTED, UNAVAILABLE, NOMEM, TIMEOUT, ABORTED, REMOTE, DEVICE, INTERNAL, ABI = (
    range(12)
)
ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCESCATTER, ALLTOALL, SEND, RECV, BARRIER = range(9)
SUM, PROD, MIN, MAX, AVG = range(5)
CODES = (
    *("OK", "INPROGRESS", "INVALID", "UNSUPPORTED", "UNAVAILABLE", "NOMEM", "TIMEOUT", "ABORTED", "REMOTE"),
    *("DEVICE", "INTERNAL", "ABI"),
)
RETRYABLE, COMM_DEAD, DEVICE_DEAD = 1, 2, 4
NO_DEADLINE = 2**63 - 1
MEM_DEVICE, MEM_PINNED, MEM_HOST, MEM_MANAGED, MEM_REGISTERED = range(1, 6)
UNSERVED, NATIVE, EMULATED = range(3)
EVENT_TIMING = 1
COLL_AGREED = 1
CAPS = {
    "STREAM": 1,
    "REQUEST": 2,
    "VECTORED": 4,
    "GROUP_SAME": 8,
    "GROUP_MIXED": 16,
    "ABORT": 32,
    "ONE_HOST": 64,
    "MEM_HOST": 128,
    "MEM_DEVICE": 256,
    "PROCESS_LOCAL": 512,
}
CAP_STREAM, CAP_REQUEST, CAP_VECTORED, CAP_GROUP_SAME, CAP_GROUP_MIXED, CAP_ABORT = 1, 2, 4, 8, 16, 32
CAP_ONE_HOST, CAP_MEM_HOST, CAP_MEM_DEVICE, CAP_PROCESS_LOCAL = 64, 128, 256, 512
BFLOAT16, FLOAT8 = 10, 11


class Hdr(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("major", C.c_uint16),
        ("minor", C.c_uint16),
        ("ext", C.c_void_p),
    ]


@functools.cache
def _header(struct: type[C.Structure]) -> Hdr:
    return Hdr(C.sizeof(struct), 1, 0, None)


_Struct = TypeVar("_Struct", bound=C.Structure)


def new(struct: type[_Struct]) -> _Struct:
    """A zeroed struct with its header filled in."""
    return struct(_header(struct))


class Error(C.Structure):
    _fields_ = [
        ("hdr", Hdr),
        ("code", C.c_int32),
        ("flags", C.c_int32),
        ("vendor_code", C.c_int64),
        ("text", C.c_char * 992),
    ]


class Buf(C.Structure):
    _fields_ = [("base", C.c_void_p), ("offset", C.c_uint64), ("bytes", C.c_uint64)]


P = C.c_void_p
rc, ERR = C.c_int32, C.POINTER(Error)
LOG = C.CFUNCTYPE(None, C.c_int32, C.c_char_p, C.c_int32, C.c_char_p)
STORE_SET = C.CFUNCTYPE(rc, P, C.c_char_p, P, C.c_uint64, ERR)
STORE_GET = C.CFUNCTYPE(rc, P, C.c_char_p, P, C.POINTER(C.c_uint64), C.c_int64, ERR)
STORE_ADD = C.CFUNCTYPE(rc, P, C.c_char_p, C.c_int64, C.POINTER(C.c_int64), ERR)
STORE_DEL = C.CFUNCTYPE(rc, P, C.c_char_p, ERR)
OPTION = C.CFUNCTYPE(rc, C.c_char_p, P, C.POINTER(C.c_uint64))
THREAD_ENTER = C.CFUNCTYPE(None, C.c_char_p)
ACTIVITY = C.CFUNCTYPE(None, P, C.c_uint64, C.c_char_p, C.c_int32)
NOTIFY = C.CFUNCTYPE(None, P)


class HostApi(C.Structure):
    _fields_ = [
        ("hdr", Hdr),
        ("log", LOG),
        ("store_set", STORE_SET),
        ("store_get", STORE_GET),
        ("store_add", STORE_ADD),
        ("store_del", STORE_DEL),
        ("option", OPTION),
        ("thread_enter", THREAD_ENTER),
        ("activity", ACTIVITY),
        ("notify", NOTIFY),
    ]


class CommArgs(C.Structure):
    _fields_ = [
        ("hdr", Hdr),
        ("key", C.c_char_p),
        ("store", P),
        ("id", P),
        ("id_bytes", C.c_uint64),
        ("ranks", C.POINTER(C.c_int32)),
        ("hosts", C.POINTER(C.c_int32)),
        ("rank", C.c_int32),
        ("size", C.c_int32),
        ("device", P),
        ("deadline_ns", C.c_int64),
        ("notify_token", P),
        ("device_api", P),
    ]


class CollArgs(C.Structure):
    _fields_ = [
        ("hdr", Hdr),
        ("coll", C.c_int32),
        ("dtype", C.c_int32),
        ("op", C.c_int32),
        ("flags", C.c_int32),
        ("n_bufs", C.c_uint64),
        ("in_", C.POINTER(Buf)),
        ("out", C.POINTER(Buf)),
        ("counts", C.POINTER(C.c_uint64)),
        ("in_counts", C.POINTER(C.c_uint64)),
        ("out_counts", C.POINTER(C.c_uint64)),
        ("root", C.c_int32),
        ("peer", C.c_int32),
        ("prescale", C.c_double),
        ("postscale", C.c_double),
        ("stream", P),
        ("deadline_ns", C.c_int64),
        ("seq", C.c_uint64),
    ]


class CollCaps(C.Structure):
    _fields_ = [
        ("hdr", Hdr),
        ("support", C.c_int32),
        ("score", C.c_int32),
        ("alignment", C.c_uint32),
        ("flags", C.c_uint32),
        ("max_count", C.c_uint64),
        ("pack_below", C.c_uint64),
    ]


class CopyItem(C.Structure):
    _fields_ = [
        ("hdr", Hdr),
        ("src", Buf),
        ("dst", Buf),
        ("scale", C.c_double),
        ("count", C.c_uint64),
        ("src_dtype", C.c_int32),
        ("dst_dtype", C.c_int32),
    ]


class DeviceProps(C.Structure):
    _fields_ = [
        ("hdr", Hdr),
        ("free_bytes", C.c_uint64),
        ("total_bytes", C.c_uint64),
        ("numa_node", C.c_int32),
        ("flags", C.c_int32),
        ("alignment", C.c_uint32),
        ("batch_limit", C.c_uint32),
        ("pci", C.c_char * 32),
        ("uuid", C.c_char * 48),
        ("arch", C.c_char * 48),
    ]


def _slot(*argtypes: type[Any], result: type[Any] = rc) -> type[Any]:
    return C.CFUNCTYPE(result, *argtypes)


class DeviceApi(C.Structure):
    _fields_ = [
        ("hdr", Hdr),
        ("device_type", C.c_char_p),
        ("count", _slot(C.POINTER(C.c_int32), ERR)),
        ("open", _slot(C.c_int32, P, C.POINTER(P), ERR)),
        ("close", _slot(P, ERR)),
        ("props", _slot(P, C.POINTER(DeviceProps), ERR)),
        ("stream_create", _slot(P, C.c_int32, C.POINTER(P), ERR)),
        ("stream_wrap", _slot(P, P, C.POINTER(P), ERR)),
        ("stream_native", _slot(P, result=P)),
        ("stream_wait_event", _slot(P, P, ERR)),
        ("stream_query", _slot(P, ERR)),
        ("stream_sync", _slot(P, C.c_int64, ERR)),
        ("stream_destroy", _slot(P, ERR)),
        ("event_create", _slot(P, C.c_int32, C.POINTER(P), ERR)),
        ("event_record", _slot(P, P, ERR)),
        ("event_query", _slot(P, ERR)),
        ("event_wait", _slot(P, C.c_int64, ERR)),
        ("event_elapsed_ns", _slot(P, P, C.POINTER(C.c_int64), ERR)),
        ("event_destroy", _slot(P, ERR)),
        ("mem_alloc", _slot(P, C.c_int32, C.c_uint64, C.POINTER(P), C.POINTER(Buf), ERR)),
        ("mem_free", _slot(P, ERR)),
        ("mem_query", _slot(P, C.POINTER(C.c_int32), C.POINTER(C.c_int32), ERR)),
        ("copy", _slot(P, Buf, Buf, C.c_uint64, ERR)),
        ("batched_copy_scale", _slot(P, C.POINTER(CopyItem), C.c_uint64, ERR)),
        ("reduce_local", _slot(P, Buf, Buf, C.c_uint64, C.c_int32, C.c_int32, ERR)),
    ]


class WindowArgs(C.Structure):
    _fields_ = [
        ("hdr", Hdr),
        ("key", C.c_char_p),
        ("store", P),
        ("memory", Buf),
        ("deadline_ns", C.c_int64),
    ]


class CommApi(C.Structure):
    _fields_ = [
        ("hdr", Hdr),
        ("device_types", C.c_char_p),
        ("caps", C.c_uint64),
        ("id_bytes", _slot(result=C.c_uint64)),
        ("id_create", _slot(P, ERR)),
        ("create", _slot(C.POINTER(CommArgs), C.POINTER(P), ERR)),
        ("create_test", _slot(P, ERR)),
        ("split", _slot(P, C.POINTER(CommArgs), C.POINTER(P), ERR)),
        ("finalize", _slot(P, C.c_int64, ERR)),
        ("destroy", _slot(P, ERR)),
        ("abort", _slot(P, ERR)),
        ("async_error", _slot(P, ERR)),
        ("query", _slot(P, C.POINTER(CollArgs), C.POINTER(CollCaps), ERR)),
        ("collective", _slot(P, C.POINTER(CollArgs), C.POINTER(P), ERR)),
        ("group_begin", _slot(P, ERR)),
        ("group_end", _slot(P, ERR)),
        ("req_test", _slot(P, ERR)),
        ("req_wait", _slot(P, C.c_int64, ERR)),
        ("req_free", _slot(P)),
        ("mem_register", _slot(P, Buf, C.POINTER(P), ERR)),
        ("mem_deregister", _slot(P, P, ERR)),
        ("window_create", _slot(P, C.POINTER(WindowArgs), C.POINTER(P), C.POINTER(Buf), ERR)),
        ("window_destroy", _slot(P, P, C.c_int64, ERR)),
        ("window_free", _slot(P, ERR)),
    ]


class OptionRow(C.Structure):
    _fields_ = [("hdr", Hdr)] + [(name, C.c_char_p) for name in ("name", "type", "fallback", "range", "doc")]


class BackendApi(C.Structure):
    _fields_ = [
        ("hdr", Hdr),
        ("name", C.c_char_p),
        ("tag", C.c_char_p),
        ("version", C.c_char_p),
        ("vendor_lib", C.c_char_p),
        ("device", C.POINTER(DeviceApi)),
        ("comm", C.POINTER(CommApi)),
        ("options", C.POINTER(OptionRow)),
        ("option_count", C.c_uint64),
        ("info", _slot(C.c_char_p, P, C.POINTER(C.c_uint64), ERR)),
    ]
