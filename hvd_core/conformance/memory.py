"""Memory to hand to a backend, with guards on both sides: the host's, or a device's through its own table.

Device memory may be a handle or an address that the host must not touch: only (base, offset) is ever used, and all
reads and writes go through the device's copy. One thread.
"""

from __future__ import annotations

import ctypes as C

import numpy as np

from hvd_core.conformance import abi
from hvd_core.conformance.abi import MEM_DEVICE, MEM_HOST, MEM_PINNED, OK, UNSUPPORTED, Buf, P, new
from hvd_core.conformance.backend import Backend, deadline
from hvd_core.conformance.verdicts import Failed

GUARD = 96
_BEFORE, _POISON = 0xA5, 0xDB


class Region:
    """``nbytes`` bytes within guarded memory. ``buf``: the buffer for the backend."""

    def __init__(self, space: Space, nbytes: int, offset: int) -> None:
        self.space, self.nbytes, self.offset = space, nbytes, offset
        self.total = offset + nbytes + GUARD
        self.buf: Buf | None = None

    def write(self, data: np.ndarray) -> None:
        """The payload becomes ``data``; guards are renewed."""
        raw = np.full(self.total, _BEFORE, np.uint8)
        raw[self.offset : self.offset + self.nbytes] = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        self.space.put(self, raw)

    def poison(self) -> None:
        """Fills the payload with a pattern that no operation leaves."""
        self.write(np.full(self.nbytes, _POISON, np.uint8))

    def read(self, dtype: np.dtype | str = np.uint8) -> np.ndarray:
        """A copy of the payload. Raises Failed when a guard was written to."""
        raw = self.space.take(self)
        before = np.flatnonzero(raw[: self.offset] != _BEFORE)
        behind = np.flatnonzero(raw[self.offset + self.nbytes :] != _BEFORE)
        if before.size or behind.size:
            where = (
                f"{self.offset - before[-1]} bytes before its beginning"
                if before.size
                else f"byte {behind[0]} behind its end"
            )
            raise Failed(f"wrote outside of a buffer of {self.nbytes} bytes: {where}")
        return raw[self.offset : self.offset + self.nbytes].copy().view(dtype)


class Space:
    """Makes regions. ``kind`` is host or device, ``name`` the device type."""

    name, kind, device, stream = "cpu", "host", None, None

    def region(self, nbytes: int, alignment: int = 1, skew: int = 0) -> Region:
        """A region of ``nbytes`` bytes at a multiple of ``alignment`` (0 and 1: an odd address), plus ``skew``."""
        raise NotImplementedError

    def put(self, region: Region, raw: np.ndarray) -> None:
        """Writes the whole piece, guards included."""
        raise NotImplementedError

    def take(self, region: Region) -> np.ndarray:
        """The whole piece."""
        raise NotImplementedError

    def of(self, data: np.ndarray, alignment: int = 1) -> Region:
        """A region that holds ``data``."""
        made = self.region(data.nbytes, alignment)
        made.write(data)
        return made

    def close(self) -> None:
        """Gives everything back."""


class HostSpace(Space):
    """Ordinary memory of this process."""

    def region(self, nbytes: int, alignment: int = 1, skew: int = 0) -> Region:
        room = np.empty(nbytes + 2 * GUARD + 2 * max(alignment, 1) + 64, np.uint8)
        address = room.ctypes.data
        step = max(alignment, 1)
        start = -(-(address + GUARD) // step) * step - address
        if step == 1 and (address + start) % 2 == 0:
            start += 1  # any address means any address
        region = Region(self, nbytes, start + skew)
        region.room = room[: region.total]
        region.buf = Buf(address, region.offset, nbytes)
        return region

    def put(self, region: Region, raw: np.ndarray) -> None:
        region.room[:] = raw

    def take(self, region: Region) -> np.ndarray:
        return region.room.copy()


class DeviceSpace(Space):
    """Memory of one device, opened here; ``stream`` is the one that moves data to and fro."""

    kind = "device"

    def __init__(self, backend: Backend, ordinal: int) -> None:
        self.backend, self.name = backend, backend.device.device_type.decode()
        count = C.c_int32()
        backend.call("device", "count", C.byref(count))
        if count.value < 1:
            raise Failed(f"count returns {count.value} devices of type {self.name}")
        self.ordinal = ordinal % count.value
        self.device, self.stream = P(), None
        backend.call("device", "open", self.ordinal, None, C.byref(self.device))
        props = new(abi.DeviceProps)
        backend.call("device", "props", self.device, C.byref(props))
        self.alignment = max(1, props.alignment)
        self.stream = self.new_stream()
        self._free: dict[tuple[int, int], list[tuple[P, Buf]]] = {}
        self._owned: list[P] = []
        self._pinned = backend_allocates(self, MEM_PINNED)
        # The host as a device has no other memory than the host's.
        self.memory_kind = MEM_DEVICE if backend_allocates(self, MEM_DEVICE) else MEM_HOST

    def new_stream(self) -> P:
        """A stream of its own; None for a table without streams."""
        if not self.backend.has("device", "stream_create"):
            return None
        stream = P()
        self.backend.call("device", "stream_create", self.device, 0, C.byref(stream))
        return stream

    def sync(self, stream: P | None = None, seconds: float = 60.0) -> None:
        """Until the stream has done its work. Raises BackendFailure."""
        if stream or self.stream:
            self.backend.call("device", "stream_sync", stream or self.stream, deadline(seconds))

    def allocate(self, kind: int, nbytes: int) -> tuple[P, Buf]:
        """Memory of a kind; reuses an earlier region's memory if the size fits. Raises BackendFailure."""
        size = 1 << max(8, (nbytes - 1).bit_length())
        waiting = self._free.get((kind, size))
        if waiting:
            return waiting.pop()
        mem, buf = P(), Buf()
        self.backend.call("device", "mem_alloc", self.device, kind, size, C.byref(mem), C.byref(buf))
        self._owned.append(mem)
        return mem, buf

    def release(self, kind: int, nbytes: int, mem: P, buf: Buf) -> None:
        """The memory may serve another region."""
        size = 1 << max(8, (nbytes - 1).bit_length())
        self._free.setdefault((kind, size), []).append((mem, buf))

    def region(self, nbytes: int, alignment: int = 1, skew: int = 0) -> Region:
        step = max(alignment, 1)
        offset = -(-GUARD // step) * step + (1 if step == 1 else 0) + skew
        region = _DeviceRegion(self, nbytes, offset)
        region.memory = self.allocate(self.memory_kind, region.total)
        base = region.memory[1]
        region.buf = Buf(base.base, base.offset + offset, nbytes)
        return region

    def put(self, region: Region, raw: np.ndarray) -> None:
        mem, staging, view = self._staging(region.total)
        view[:] = raw
        whole = Buf(region.memory[1].base, region.memory[1].offset, region.total)
        self.copy(whole, staging, region.total)
        self.sync()
        self._done(mem, staging, region.total)

    def take(self, region: Region) -> np.ndarray:
        mem, staging, view = self._staging(region.total)
        whole = Buf(region.memory[1].base, region.memory[1].offset, region.total)
        self.copy(staging, whole, region.total)
        self.sync()
        got = view.copy()
        self._done(mem, staging, region.total)
        return got

    def copy(self, to: Buf, source: Buf, nbytes: int, stream: P | None = None) -> None:
        """Enqueues a copy. Raises BackendFailure."""
        self.backend.call("device", "copy", stream or self.stream, to, source, nbytes)

    def host_buffer(self, nbytes: int) -> tuple[Buf, np.ndarray]:
        """Memory that both the device's copy and NumPy may use, until close(): pinned if the device has pinned memory."""
        _, buf, view = self._staging(nbytes)
        return buf, view

    def _staging(self, nbytes: int) -> tuple[P | None, Buf, np.ndarray]:
        if not self._pinned:
            room = np.zeros(max(nbytes, 1), np.uint8)
            buf = Buf(room.ctypes.data, 0, nbytes)
            buf.keep = room
            return None, buf, room[:nbytes]
        mem, buf = self.allocate(MEM_PINNED, nbytes)
        view = np.ctypeslib.as_array((C.c_uint8 * max(nbytes, 1)).from_address(buf.base + buf.offset))
        return mem, Buf(buf.base, buf.offset, nbytes), view[:nbytes]

    def _done(self, mem: P | None, buf: Buf, nbytes: int) -> None:
        if mem is not None:
            self.release(MEM_PINNED, nbytes, mem, buf)

    def close(self) -> None:
        for mem in self._owned:
            self.backend.call("device", "mem_free", mem)
        self._owned, self._free = [], {}
        if self.stream is not None:
            self.backend.call("device", "stream_destroy", self.stream)
        self.backend.call("device", "close", self.device)


class _DeviceRegion(Region):
    def __del__(self) -> None:
        if hasattr(self, "memory"):
            self.space.release(self.space.memory_kind, self.total, *self.memory)


def backend_allocates(space: DeviceSpace, kind: int) -> bool:
    """Whether the device has memory of a kind. Raises BackendFailure for an answer other than OK and UNSUPPORTED."""
    mem, buf = P(), Buf()
    code = space.backend.call(
        "device", "mem_alloc", space.device, kind, 64, C.byref(mem), C.byref(buf), allowed=(OK, UNSUPPORTED)
    )
    if code == OK:
        space.backend.call("device", "mem_free", mem)
    return code == OK
