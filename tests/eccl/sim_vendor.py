"""libeccl_sim.so through ctypes: a program of the vendor's, and ranks that run it in processes of their own."""

import ctypes as c
import os
from pathlib import Path

import numpy as np
from compiled import cmake_library
from forked import ForkedRanks

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "simulators" / "eccl"

SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 0, 4, 5, 6
SUM, PROD, MAX, MIN, AVG = range(5)
FLOAT16, BFLOAT16 = 6, 9
DTYPES = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5}
DTYPES |= {"float16": 6, "float32": 7, "float64": 8}
TO_DEVICE, TO_HOST, ON_DEVICE, ANY_WAY = 1, 2, 3, 4
KERNEL = c.CFUNCTYPE(None, c.c_void_p)


def build():
    """The library, made from its sources alone (build/ keeps it)."""
    return cmake_library(SOURCE, "libeccl_sim.so")


class UniqueId(c.Structure):
    _fields_ = [("internal", c.c_char * 128)]


class Attributes(c.Structure):
    _fields_ = [("type", c.c_int), ("device", c.c_int), ("device_pointer", c.c_void_p)]
    _fields_ += [("host_pointer", c.c_void_p), ("managed", c.c_int), ("flags", c.c_uint)]


class Refused(Exception):
    """A function's answer that is not success: `code`, and the library's text."""

    def __init__(self, name, code, text):
        super().__init__(f"{name}: {code} ({text})")
        self.code, self.text = code, text


def plain(value):
    """As ctypes passes it: Python's integers as 64 bits, which fits pointers, counts and enumerators alike."""
    return c.c_uint64(value & (2**64 - 1)) if isinstance(value, int) else value


class Vendor:
    """Functions by name: `vendor.topsFree(p)` raises Refused unless the library answers success."""

    def __init__(self, path):
        self.lib = c.CDLL(str(path))
        for name in ("topsGetErrorName", "ecclGetLastError", "ecclGetErrorString"):
            getattr(self.lib, name).restype = c.c_char_p
        self.lib.topsSimAddress.restype = c.c_void_p

    def call(self, name, *args):
        return getattr(self.lib, name)(*map(plain, args))

    def __getattr__(self, name):
        def checked(*args):
            code = self.call(name, *args)
            if code != SUCCESS:
                eccl = name.startswith("eccl")
                text = self.call("ecclGetLastError", None) if eccl else self.call("topsGetErrorName", code)
                raise Refused(name, code, text.decode())

        return checked

    def out(self, name, *args, type=c.c_void_p):
        """What the function writes through its first argument."""
        value = type()
        getattr(self, name)(c.byref(value), *args)
        return value if isinstance(value, c.Structure) else value.value

    def refusal(self, name, *args):
        """(code, text) of a call that must fail."""
        try:
            getattr(self, name)(*args)
        except Refused as refused:
            return refused.code, refused.text
        raise AssertionError(f"{name} succeeded")

    def device(self, array):
        """Device memory with these contents; the address."""
        pointer = self.out("topsMalloc", max(array.nbytes, 1))
        self.topsMemcpy(pointer, array.ctypes.data, array.nbytes, TO_DEVICE)
        return pointer

    def host(self, pointer, dtype, count):
        """What lies at device memory."""
        array = np.empty(count, dtype)
        self.topsMemcpy(array.ctypes.data, pointer, array.nbytes, TO_HOST)
        return array


class Rank:
    """A rank of a job: the library, its communicator over all ranks, and a stream of its own device."""

    def __init__(self, vendor, rank, size, unique_id, device=0):
        self.v, self.rank, self.size = vendor, rank, size
        vendor.topsSetDevice(device)
        self.stream = vendor.out("topsStreamCreateWithPriority", 0, 0)
        self.comm = vendor.out("ecclCommInitRank", size, unique_id, rank)

    def error(self):
        """The communicator's lasting error, and its text."""
        code = c.c_int()
        self.v.ecclCommGetAsyncError(self.comm, c.byref(code))
        return code.value, self.v.call("ecclGetLastError", self.comm).decode()


def run(library, size, body, *args, environment=(), timeout=60, lost=(), enter=None):
    """body(Rank, *args) on `size` forked processes; results in rank order. Ranks in `lost` may return no result.

    enter(rank) is called first in each process, before the library is opened.
    """

    def work(rank, pipe):
        if enter:
            enter(rank)
        os.environ.update(environment)
        vendor = Vendor(library)
        if rank == 0:
            pipe.send(bytes(vendor.out("ecclGetUniqueId", type=UniqueId)))
        unique_id = UniqueId.from_buffer_copy(pipe.recv())
        return body(Rank(vendor, rank, size, unique_id), *args)

    with ForkedRanks(size, work) as ranks:
        unique_id = ranks.pipes[0].recv()
        if isinstance(unique_id, tuple):
            raise AssertionError(unique_id[1])
        for pipe in ranks.pipes:
            pipe.send(unique_id)
        return ranks.results(timeout, lost)
