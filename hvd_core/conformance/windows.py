"""L2 and L4: windows: memory of all ranks of a communicator that they reach without copies.

Windows of host memory. The kit creates them as the engine does, and looks at the memory around the buffers too.
"""

from __future__ import annotations

import ctypes as C

import numpy as np

from hvd_core.conformance import abi
from hvd_core.conformance.abi import ALLREDUCE, AVG, MAX, OK, SUM, UNSUPPORTED, Buf, P, WindowArgs, new
from hvd_core.conformance.backend import deadline
from hvd_core.conformance.cases import Kit, case, served
from hvd_core.conformance.comm import Comm
from hvd_core.conformance.memory import GUARD, HostSpace, Region
from hvd_core.conformance.numerics import NUMBERS, compare, reduced, sample, stored
from hvd_core.conformance.verdicts import Composed

_DTYPES = ("float32", "int32", "float64", "uint8", "float16")


class Window:
    """A window that the backend has allocated. ``memory``: this rank's part."""

    def __init__(self, kit: Kit, comm: Comm, nbytes: int, tag: str) -> None:
        self.kit, self.comm, self.handle = kit, comm, P()
        args, part = new(WindowArgs), Buf()
        prefix = f"{comm.prefix}/window/{tag}"
        args.key, args.store = prefix.encode(), kit.backend.host.scope(prefix)
        args.memory = Buf(None, 0, nbytes)
        args.deadline_ns = deadline(kit.limit(20))
        self.code = kit.backend.call(
            "comm", "window_create", comm.handle, C.byref(args), C.byref(self.handle), C.byref(part),
            allowed=(OK, UNSUPPORTED),
        )  # fmt: skip
        C.memset(C.byref(args, C.sizeof(abi.Hdr)), 0xEE, C.sizeof(args) - C.sizeof(abi.Hdr))
        if self.code == UNSUPPORTED:
            return
        kit.expect(bool(self.handle.value), "window_create answers OK, but returned no window")
        kit.expect(bool(part.base) and part.bytes >= nbytes, f"the part has {part.bytes} bytes of {nbytes}")
        address = part.base + part.offset
        self.memory = np.frombuffer((C.c_uint8 * nbytes).from_address(address), np.uint8)

    def region(self, nbytes: int, start: int) -> Region:
        """A guarded buffer of `nbytes` bytes whose payload begins at byte `start` of the part."""
        region = Region(HostSpace(), nbytes, GUARD)
        region.room = self.memory[start - GUARD : start + nbytes + GUARD]
        region.buf = Buf(self.memory.ctypes.data, start, nbytes)
        return region

    def destroy(self) -> None:
        """On all ranks."""
        until = deadline(self.kit.limit(20))
        self.kit.backend.call("comm", "window_destroy", self.comm.handle, self.handle, until)

    def free(self) -> None:
        """On this rank."""
        self.kit.backend.call("comm", "window_free", self.handle)


def _communicator(kit: Kit) -> Comm:
    kit.need_comm()
    if not kit.backend.has("comm", "window_create"):
        kit.skip("the table has no window_create; hvd-core works without it")
    for space in kit.spaces():
        if space.kind == "host":
            return kit.comm(space)
    raise Composed("windows of device memory: the kit does not try them yet")


def _window(kit: Kit, comm: Comm, nbytes: int, tag: str) -> Window:
    window = Window(kit, comm, nbytes, tag)
    if window.code == UNSUPPORTED:
        raise Composed("windows on memory that the host brings: the kit does not try them yet")
    return window


def _types(kit: Kit) -> list[str]:
    return [d for d in _DTYPES if served(kit, ALLREDUCE, d) is not None]


def _wrong(comm: Comm, dtype: str, op: int, buffers: list[Region], salt: int) -> str:
    """Reduces the buffers in place; the fault of the result, or ""."""
    counts = [b.nbytes // stored(dtype).itemsize for b in buffers]
    columns = [[sample(dtype, r, n, salt=salt + i) for i, n in enumerate(counts)] for r in range(comm.size)]
    for buffer, value in zip(buffers, columns[comm.rank], strict=True):
        buffer.write(value)
    comm.run(ALLREDUCE, NUMBERS[dtype], buffers, buffers, op=op, counts=counts)
    for i, buffer in enumerate(buffers):
        wrong = compare(dtype, buffer.read(stored(dtype)), *reduced(dtype, op, [c[i] for c in columns]))
        if wrong:
            return f"buffer {i}: {wrong}"
    return ""


@case("L2.windows", "buffers in windows, on all ranks or some, at equal and at other places", ranks=2)
def windows(kit: Kit) -> None:
    comm = _communicator(kit)
    first, second = (_window(kit, comm, 1 << 18, tag) for tag in ("first", "second"))
    ordinary = HostSpace()
    for turn, dtype in enumerate(_types(kit)[: 2 if kit.quick else None]):
        alignment = max(64, served(kit, ALLREDUCE, dtype).alignment)
        for op, nbytes in ((SUM, 24), (SUM, 40_000), (AVG, 70_008), (MAX, 100_000)):
            if served(kit, ALLREDUCE, dtype, op) is None:
                continue
            what = f"{dtype}, {nbytes} bytes"
            step = alignment * (1 + comm.rank)
            for places, buffer in (
                ("at one place", first.region(nbytes, 8 * alignment)),
                ("at a place of each rank's own", first.region(nbytes, 8 * alignment + step)),
                ("in two windows", (first, second)[comm.rank % 2].region(nbytes, 8 * alignment)),
                (
                    "in a window on some ranks",
                    ordinary.region(nbytes, alignment)
                    if comm.rank == turn % 2
                    else first.region(nbytes, 8 * alignment),
                ),
            ):
                wrong = _wrong(comm, dtype, op, [buffer], turn)
                kit.expect(not wrong, f"{what}, {places}: {wrong}")
    if kit.backend.caps & abi.CAP_VECTORED:
        dtype = _types(kit)[0]
        width = stored(dtype).itemsize
        sizes = [width * n for n in (3, 5000, 1, 700, 9001, 16)]
        places = np.cumsum([512, *((n + 2 * GUARD) // 64 * 64 + 64 for n in sizes)])
        buffers = [first.region(n, int(place)) for n, place in zip(sizes, places)][::-1]
        wrong = _wrong(comm, dtype, SUM, buffers, 7)
        kit.expect(not wrong, f"a list of buffers in one window: {wrong}")
    kept = first.memory.copy()
    first.destroy()
    kit.expect(bool((kept == first.memory).all()), "window_destroy changes this rank's memory")
    # An ordinary buffer now, beside one in a window.
    dtype = _types(kit)[0]
    wrong = _wrong(comm, dtype, SUM, [first.region(65_536, 512)], 3)
    kit.expect(not wrong, f"after window_destroy: {wrong}")
    first.free()
    wrong = _wrong(comm, dtype, SUM, [second.region(65_536, 512)], 4)
    kit.expect(not wrong, f"another window was destroyed and freed: {wrong}")
    second.destroy()
    second.free()


@case("L4.windows", "a window outlives its communicator, also after an abort", ranks=2)
def outlives(kit: Kit) -> None:
    for aborted in (False, True):
        comm = _communicator(kit)
        window = _window(kit, comm, 1 << 18, "outlives")
        window.memory[:] = 7
        wrong = _wrong(comm, _types(kit)[0], SUM, [window.region(65_536, 512)], 1)
        kit.expect(not wrong, wrong)
        kit.meet()
        if aborted and kit.backend.caps & abi.CAP_ABORT:
            comm.abort()
        comm.destroy()
        kit.meet()
        window.memory[65_536:] = comm.rank
        kit.meet()
        kit.expect(
            bool((window.memory[65_536:] == comm.rank).all()), "the part is not this rank's own any more"
        )
        window.free()
