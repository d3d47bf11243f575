"""The base class of works, which lives as long as PyTorch refers to it. Any thread.

A Work that is written in Python has two halves. Old versions of PyTorch (seen in 2.4, not in 2.7) hold on to the half in
C++ alone: DDP, functional collectives and everything else that calls a group from C++. Without the half in Python,
wait() of such a Work never returns. So with these versions a list holds the works to which C++ refers: the count of
references is read from the memory of the half in C++, as PyTorch shows it nowhere.
"""

import ctypes
import sys
import threading
import weakref
from typing import Any

import torch
import torch.distributed as dist

_Work = torch._C._distributed_c10d.Work

_lock = threading.Lock()
_kept: list = []
_most = 8  # works in the list, before it is looked through


def _references(work: Any) -> int:
    """How many references C++ counts; one of them is that of the half in Python."""
    # An object of pybind11 begins as each object of Python does, and continues with the address of its half in C++. That
    # begins with the address of its methods; the count follows, of 4 or 8 bytes.
    half = ctypes.c_void_p.from_address(id(work) + object.__basicsize__).value
    return ctypes.c_uint32.from_address(half + ctypes.sizeof(ctypes.c_void_p)).value


class _Kept(_Work):
    """A Work that is in the list from its beginning. It leaves the list when nothing but the list refers to it."""

    def __init__(self) -> None:
        global _kept, _most
        super().__init__()
        with _lock:
            _kept.append(self)
            if len(_kept) > _most:
                # Two references in Python: that of the list, and that of the call.
                _kept = [
                    _kept[i]
                    for i in range(len(_kept))
                    if sys.getrefcount(_kept[i]) > 2 or _references(_kept[i]) > 1
                ]
                _most = len(_kept) + 8


def _torch_keeps_works() -> bool:
    """Whether this PyTorch holds on to the half in Python, for as long as C++ refers to a Work."""
    made: list[weakref.ref] = []

    class One(_Work):
        pass

    class Group(dist.ProcessGroup):
        def barrier(self, opts: Any = None) -> Any:
            work = One()
            made.append(weakref.ref(work))
            return work

    group = Group(0, 1)
    held = dist.ProcessGroup.barrier(group)  # by way of C++
    return held is not None and made[0]() is not None


def _references_can_be_read() -> bool:
    work = _Work.__new__(type("One", (_Work,), {}))
    _Work.__init__(work)
    before = _references(work)
    more = [work.boxed(), work.boxed()]
    return (before, _references(work), len(more)) == (1, 3, 2)


def base_of_works() -> type:
    """The class from which works are derived.

    Raises RuntimeError with a version of PyTorch that forgets works and whose counts cannot be read; none is known.
    """
    if _torch_keeps_works():
        return _Work
    if not _references_can_be_read():
        raise RuntimeError(
            f"hvd: PyTorch {torch.__version__} forgets the works of a group that is written in Python, and hvd cannot "
            "tell which of them are still needed. Use PyTorch 2.7 or later."
        )
    return _Kept
