"""The simulated CUDA and NCCL (simulators/cuda_nccl): building it, calling it, environments that choose it."""

import ctypes as c
from pathlib import Path

from compiled import cmake_library

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "simulators" / "cuda_nccl"

NOT_INITIALIZED, INVALID_CONTEXT, INVALID_HANDLE = 3, 201, 400
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURED_EVENT = 900, 901, 907
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
IN_PROGRESS = 7


def build():
    """The library, made from its sources alone (build/ keeps it)."""
    return cmake_library(SOURCE, "libcuda_nccl_sim.so")


def environment(**more):
    """The variables that make the backend use the simulator for both libraries."""
    library = str(build())
    return {
        "HOROVOD_BACKEND_NCCL_LIBRARY": library,
        "HOROVOD_BACKEND_NCCL_CUDA_LIBRARY": library,
        "SIM_CUDA_DELAY_US": "20",
        **more,
    }


class UniqueId(c.Structure):
    _fields_ = [("internal", c.c_char * 128)]


class Config(c.Structure):
    """ncclConfig_t's beginning; the rest is unset."""

    _fields_ = [("size", c.c_size_t), ("magic", c.c_uint32), ("version", c.c_uint32), ("blocking", c.c_int32)]
    _fields_ += [("rest", c.c_int32 * 7)]

    def __init__(self, blocking):
        unset = -(2**31)
        super().__init__(c.sizeof(Config), 0xCAFEBEEF, 21900, blocking, (c.c_int32 * 7)(*[unset] * 7))


class Simulator:
    """Functions by name, `sim("cuInit", 0)` answers the result; integers are passed as 64 bits."""

    def __init__(self, path=None):
        self.lib = c.CDLL(str(path or build()))
        for name in ("device_alloc", "device_stream"):
            getattr(self.lib, name).restype = c.c_void_p
        self.lib.ncclGetLastError.restype = c.c_char_p
        self.lib.sim_count.restype = c.c_uint64

    def __call__(self, name, *args):
        plain = (c.c_uint64(a & (2**64 - 1)) if isinstance(a, int) else a for a in args)
        return getattr(self.lib, name)(*plain)

    def good(self, name, *args):
        result = self(name, *args)
        assert result == 0, (name, result, self("ncclGetLastError", None))

    def out(self, name, *args, type=c.c_void_p):
        """What the function writes through its first argument."""
        value = type()
        self.good(name, c.byref(value), *args)
        return value if isinstance(value, c.Structure) else value.value

    def calls(self, name):
        return self.lib.sim_count(name.encode())
