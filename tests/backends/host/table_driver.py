"""Calls a backend through its table, with no engine in between: a loaded backend and its communicators."""

import ctypes as C
import functools
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from abi_ctypes import (
    ACTIVITY,
    DTYPES,
    ERR,
    INPROGRESS,
    INVALID,
    LOG,
    NO_DEADLINE,
    NOTIFY,
    OK,
    OPTION,
    STORE_ADD,
    STORE_DEL,
    STORE_GET,
    STORE_SET,
    SUM,
    THREAD_ENTER,
    TIMEOUT,
    UNAVAILABLE,
    UNSUPPORTED,
    BackendApi,
    Buf,
    CollArgs,
    CommArgs,
    Error,
    HostApi,
    P,
    new,
    rc,
)


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


def array_bufs(arrays):
    """The C array of the arrays' buffers, or None if there are no arrays. NumPy fills an array of thousands of buffers
    faster than ctypes does."""
    rows = np.array([(a.ctypes.data, 0, a.nbytes) for a in arrays], np.uint64)
    return (Buf * len(arrays)).from_buffer(rows) if arrays else None


@functools.cache
def load_copy(path):
    """The library at `path`, loaded from a copy of its file. A library calls the host whose table it got last, and may
    do so as long as the process lives. An engine in this process, or in one that is forked from it, loads the library
    once and does not pass its table again: it must not share the library with a Backend, whose table is Python's."""
    with tempfile.TemporaryDirectory() as folder:
        return C.CDLL(shutil.copy(path, folder), mode=os.RTLD_NOW | os.RTLD_LOCAL)


class Backend:
    """A loaded backend. `path` is a library's, or "entry:0x..." with the address of an entry function in this process;
    `store` is the directory that stands in for the rendezvous store."""

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
        table, error = C.POINTER(BackendApi)(), new(Error)
        entry_type = C.CFUNCTYPE(rc, C.POINTER(HostApi), C.POINTER(C.POINTER(BackendApi)), ERR)
        if str(path).startswith("entry:"):
            entry = entry_type(int(str(path)[6:], 16))
        else:
            self.library = load_copy(str(path))
            entry = entry_type(("hvd_backend_entry_v1", self.library))
        code = entry(C.byref(self.host), C.byref(table), C.byref(error))
        if code != OK:
            raise BackendFailure("entry", code, error)
        self.api = table.contents
        self.comm_api = self.api.comm.contents
        self.device_api = self.api.device.contents if self.api.device else None

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
                n[0] = len(value)
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
    """One communicator; `number` names its private corner of the store, `hosts` is the host of each rank."""

    def __init__(self, backend, rank, size, number=1, seconds=20, hosts=()):
        self.backend, self.api, self.rank, self.size = backend, backend.comm_api, rank, size
        members = (C.c_int32 * size)(*range(size))
        hosts = (C.c_int32 * size)(*hosts)
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
        args.in_, args.out = array_bufs(ins), array_bufs(outs)
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
                    os.sched_yield()  # there may be more ranks than cores
            else:
                assert self.wait()
        finally:
            self.free()

    def tell(self, what):
        """For tests where another rank must not go on before this one has come so far; once per name and store."""
        (self.backend.store / f"told.{what}").touch()

    def await_told(self, what, seconds=40):
        end = time.monotonic() + seconds
        while not (self.backend.store / f"told.{what}").exists():
            assert time.monotonic() < end, f"no rank has told {what}"
            time.sleep(0.002)

    def abort(self):
        self.backend.call(self.api, "abort", self.handle)

    def finalize(self, seconds=20):
        self.backend.call(self.api, "finalize", self.handle, deadline(seconds))

    def destroy(self):
        self.backend.call(self.api, "destroy", self.handle)
        self.handle = None


def failure(call, *args, **kwargs):
    """The BackendFailure with which the call must fail."""
    try:
        call(*args, **kwargs)
    except BackendFailure as error:
        return error
    raise AssertionError(f"{call} did not fail")


def as_bfloat16(values):
    """float32 values rounded to nearest even bfloat16, as uint16 bits."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)
