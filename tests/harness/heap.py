"""What this process has in malloc's heap, and in memory: for checks that something does not grow."""

import ctypes
from pathlib import Path


class _Heap(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")
        + ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def bytes_in_use():
    """Bytes that malloc has handed out, in blocks of any size."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Heap
    heap = mallinfo()
    return heap.uordblks + heap.hblkhd


def bytes_in_memory():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
