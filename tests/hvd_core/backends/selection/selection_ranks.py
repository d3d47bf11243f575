"""Programs of ranks whose tensors go over backends that are named for a device or an operation: one function each, named
on the command line."""

import ctypes
import os
import sys

import numpy as np

import hvd_core as hvd
from hvd_core import _core
from hvd_core._runtime import runtime
from hvd_core.backends._selection import agreement


def sum_on_the_device(library):
    """A sum of 32 and one of 64 bits on this rank's simulated device; rank 0 prints its report of them."""
    hvd.init()
    sim = ctypes.CDLL(library)
    sim.topsSetDevice(hvd.local_rank())
    for number, dtype in ((4, np.int32), (5, np.int64)):
        first = 2**40 if dtype is np.int64 else 0
        mine = np.full(3, first + hvd.rank(), dtype)
        size, host = ctypes.c_size_t(mine.nbytes), mine.ctypes.data_as(ctypes.c_void_p)
        memory = ctypes.c_void_p()
        assert sim.topsMalloc(ctypes.byref(memory), size) == 0
        assert sim.topsMemcpy(memory, host, size, 1) == 0
        tensor = _core.TensorRef(memory.value, (3,), number, "gcu", hvd.local_rank(), None)
        engine = runtime.engine()
        handle = engine.allreduce([tensor], [tensor], f"sum{number}", 0)
        engine.wait(handle)
        engine.order_after(handle, None)
        engine.release(handle)
        assert sim.topsMemcpy(host, memory, size, 2) == 0
        assert mine.tolist() == [2 * first + 1] * 3, mine
    if hvd.rank() == 0:
        print(hvd.backend_report())
    hvd.barrier()


def choose_differently(library):
    """As sum_on_the_device(); rank 1 has found another backend."""
    hvd.init()
    if hvd.rank() == 1:
        agreement.of_device = lambda plan, device: "another"
    sum_on_the_device(library)


def broadcast_over_another_backend():
    """Prints why the broadcast fails, of which another backend than that of the sums is in charge."""
    hvd.init()
    for _ in range(3):
        assert hvd.allreduce(np.ones(3), op=hvd.Sum).tolist() == [2.0] * 3
    try:
        hvd.broadcast(np.ones(3), 0)
    except hvd.HorovodInternalError as error:
        print(error)


def print_why_init_fails(*then):
    """For each word behind, init() is called again; a rank whose word is not empty has it in HOROVOD_BACKEND then."""
    for value in ("", *then):
        if value:
            os.environ["HOROVOD_BACKEND"] = value
        try:
            hvd.init()
        except Exception as error:
            print(error)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
