"""The backend ABI through ctypes: drives a backend's shared object with no engine in between.

A mirror of hvd/backend_abi.h that is written by hand on purpose, so that a slip in the header shows up here.
`Backend` loads a library with a host API of our own (options from a dict, store in a directory); `Comm` is
one communicator.
"""

import ctypes as C
import os
import time
from pathlib import Path

import numpy as np

OK, INPROGRESS, INVALID, UNSUPPORTED, UNAVAILABLE, NOMEM, TIMEOUT, ABORTED, REMOTE, DEVICE, INTERNAL, ABI = (
    range(12)
)
ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCESCATTER, ALLTOALL, SEND, RECV, BARRIER = range(9)
SUM, PROD, MIN, MAX, AVG = range(5)
COMM_DEAD = 2
NO_DEADLINE = 2**63 - 1
CAP_REQUEST, CAP_VECTORED, CAP_ABORT, CAP_ONE_HOST, CAP_MEM_HOST, CAP_PROCESS_LOCAL = 2, 4, 32, 64, 128, 512
BFLOAT16, FLOAT8 = 10, 11
DTYPES = {
    "uint8": 0,
    "int8": 1,
    "uint16": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bool": 9,
    "uint32": 13,
    "uint64": 14,
}


class Hdr(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("major", C.c_uint16),
        ("minor", C.c_uint16),
        ("ext", C.c_void_p),
    ]


def new(struct):
    """A zeroed struct with its header filled in."""
    made = struct()
    made.hdr = Hdr(C.sizeof(struct), 1, 0, None)
    return made


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


rc, ERR, P = C.c_int32, C.POINTER(Error), C.c_void_p
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
        ("reserved0", C.c_int32),
        ("alignment", C.c_uint32),
        ("batch_limit", C.c_uint32),
        ("pci", C.c_char * 32),
        ("uuid", C.c_char * 48),
        ("arch", C.c_char * 48),
    ]


def _slot(*argtypes, result=rc):
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
    ]


class BackendFailure(Exception):
    """A call returned something other than OK or INPROGRESS; carries .code, .flags and .text."""

    def __init__(self, what, code, error):
        self.code, self.flags, self.text = code, error.flags, error.text.decode()
        super().__init__(f"{what}: code {code}, flags {error.flags}: {self.text}")

    def __reduce__(self):
        return (RuntimeError, (str(self),))


def deadline(seconds):
    """An absolute CLOCK_MONOTONIC deadline that many seconds from now, in nanoseconds."""
    return time.monotonic_ns() + int(seconds * 1e9)


def array_buf(array):
    return Buf(array.ctypes.data, 0, array.nbytes)


class Backend:
    """A loaded backend. `store` is the directory that stands in for the rendezvous store."""

    def __init__(self, path, store, options=None):
        self.store, self.options, self.logged = Path(store), options or {}, []
        self.host = new(HostApi)
        self.host.log = LOG(lambda level, file, line, text: self.logged.append((level, text.decode())))
        self.host.store_set = STORE_SET(self._set)
        self.host.store_get = STORE_GET(self._get)
        self.host.store_add = STORE_ADD(lambda *_: UNSUPPORTED)
        self.host.store_del = STORE_DEL(self._del)
        self.host.option = OPTION(self._option)
        self.host.thread_enter = THREAD_ENTER(lambda role: None)
        self.host.activity = ACTIVITY(lambda *_: None)
        self.host.notify = NOTIFY(lambda token: None)
        self.library = C.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        table, error = C.POINTER(BackendApi)(), new(Error)
        entry = self.library.hvd_backend_entry_v1
        entry.restype, entry.argtypes = rc, [C.POINTER(HostApi), C.POINTER(C.POINTER(BackendApi)), ERR]
        code = entry(C.byref(self.host), C.byref(table), C.byref(error))
        if code != OK:
            raise BackendFailure("entry", code, error)
        self.api = table.contents
        self.comm_api, self.device_api = self.api.comm.contents, self.api.device.contents

    def _path(self, store, key):
        return self.store / f"{store}.{key.decode().replace('/', '_')}"

    def _set(self, store, key, p, n, error):
        path = self._path(store, key)
        partial = path.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}")
        partial.write_bytes(C.string_at(p, n))
        partial.rename(path)
        return OK

    def _get(self, store, key, p, n, deadline_ns, error):
        while True:
            try:
                value = self._path(store, key).read_bytes()
            except FileNotFoundError:
                if time.monotonic_ns() >= deadline_ns:
                    return TIMEOUT
                time.sleep(0.002)
                continue
            if len(value) > n[0]:
                return INVALID
            C.memmove(p, value, len(value))
            n[0] = len(value)
            return OK

    def _del(self, store, key, error):
        self._path(store, key).unlink(missing_ok=True)
        return OK

    def _option(self, key, text, n):
        value = self.options.get(key.decode())
        if value is None:
            return UNAVAILABLE
        value = str(value).encode()
        C.memmove(text, value, len(value))
        n[0] = len(value)
        return OK

    def call(self, table, name, *args, allowed=(OK,)):
        """Calls a slot, adding an error struct; raises BackendFailure for codes that are not allowed."""
        error = new(Error)
        code = getattr(table, name)(*args, C.byref(error))
        if code not in allowed:
            raise BackendFailure(name, code, error)
        return code


class Comm:
    """One communicator; `number` names its private corner of the store."""

    def __init__(self, backend, rank, size, number=1, seconds=20):
        self.backend, self.api, self.rank, self.size = backend, backend.comm_api, rank, size
        members = (C.c_int32 * size)(*range(size))
        hosts = (C.c_int32 * size)()
        args = new(CommArgs)
        args.key, args.store = b"job/0/global/shm", number
        args.ranks, args.hosts, args.rank, args.size = members, hosts, rank, size
        args.deadline_ns = deadline(seconds)
        self.handle = P()
        backend.call(self.api, "create", C.byref(args), C.byref(self.handle))

    def start(self, coll, ins=(), outs=(), op=SUM, dtype=None, root=0, pre=0.0, post=0.0, **more):
        """Starts a collective over NumPy arrays. True when it is complete; else a request is pending.

        more: counts, in_counts, out_counts (lists of elements), seconds (deadline).
        """
        args = new(CollArgs)
        ins, outs = list(ins), list(outs)
        some = ins or outs
        n = len(some)
        args.coll, args.op, args.root, args.n_bufs = coll, op, root, n
        if some:
            args.dtype = DTYPES[some[0].dtype.name] if dtype is None else dtype
        args.prescale, args.postscale = pre, post
        args.deadline_ns = deadline(more.get("seconds", 30))
        counts = more.get("counts", [a.size for a in some])
        keep = [
            (Buf * n)(*map(array_buf, ins)) if ins else None,
            (Buf * n)(*map(array_buf, outs)) if outs else None,
        ]
        args.in_, args.out = keep
        args.counts = (C.c_uint64 * n)(*counts)
        for name in ("in_counts", "out_counts"):
            if more.get(name) is not None:
                setattr(args, name, (C.c_uint64 * len(more[name]))(*more[name]))
        self.request, self.pinned = P(), (ins, outs)
        code = self.backend.call(
            self.api,
            "collective",
            self.handle,
            C.byref(args),
            C.byref(self.request),
            allowed=(OK, INPROGRESS),
        )
        assert (code == OK) == (self.request.value is None)
        return code == OK

    def test(self):
        return self.backend.call(self.api, "req_test", self.request, allowed=(OK, INPROGRESS)) == OK

    def wait(self, deadline_ns=NO_DEADLINE):
        return (
            self.backend.call(self.api, "req_wait", self.request, deadline_ns, allowed=(OK, INPROGRESS)) == OK
        )

    def free(self):
        return self.api.req_free(self.request)

    def run(self, *args, poll=False, **kwargs):
        """Starts and completes a collective, by waiting or (poll) by testing in a loop."""
        if self.start(*args, **kwargs):
            return
        try:
            if poll:
                while not self.test():
                    pass
            else:
                assert self.wait()
        finally:
            self.free()

    def abort(self):
        self.backend.call(self.api, "abort", self.handle)

    def finalize(self, seconds=20):
        self.backend.call(self.api, "finalize", self.handle, deadline(seconds))

    def destroy(self):
        self.backend.call(self.api, "destroy", self.handle)
        self.handle = None


def as_bfloat16(values):
    """float32 values rounded to nearest even bfloat16, as uint16 bits."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)
