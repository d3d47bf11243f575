"""The objects that cases drive: memory, a communicator of the backend under test, and one operation on it.

The kit hands over exactly what the header promises and no more: arguments live during the call only, and are
overwritten after it. One thread at a time, but for abort() and async_error().
"""

from __future__ import annotations

import ctypes as C
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hvd_core.conformance import _abi
from hvd_core.conformance._abi import (
    CAP_REQUEST,
    CAP_STREAM,
    INPROGRESS,
    MEM_DEVICE,
    MEM_HOST,
    MEM_PINNED,
    OK,
    UNSUPPORTED,
    Buf,
    CollArgs,
    CommArgs,
    P,
    new,
)
from hvd_core.conformance._backend import Backend, BackendFailure, deadline
from hvd_core.conformance._verdicts import Failed

# ---- memory with guards on both sides: the host's, or a device's through its own table --------------------------------
#
# Device memory may be a handle or an address that the host must not touch: only (base, offset) is ever used, and all
# reads and writes go through the device's copy. One thread.

GUARD = 96
_BEFORE, _POISON = 0xA5, 0xDB


class Region:
    """``nbytes`` bytes within guarded memory. ``buf``: the buffer for the backend."""

    def __init__(self, nbytes: int, offset: int, buf: Buf) -> None:
        self.nbytes, self.offset, self.buf = nbytes, offset, buf

    def put(self, raw: np.ndarray) -> None:
        """Writes the whole memory, guards included."""
        raise NotImplementedError

    def take(self) -> np.ndarray:
        """A copy of the whole memory."""
        raise NotImplementedError

    def write(self, data: np.ndarray) -> None:
        """The payload becomes ``data``; guards are renewed."""
        raw = np.full(self.offset + self.nbytes + GUARD, _BEFORE, np.uint8)
        raw[self.offset : self.offset + self.nbytes] = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        self.put(raw)

    def poison(self) -> None:
        """Fills the payload with a pattern that no operation leaves."""
        self.write(np.full(self.nbytes, _POISON, np.uint8))

    def read(self, dtype: np.dtype[Any] | str = "uint8") -> np.ndarray:
        """A copy of the payload. Raises Failed when a guard was written to."""
        raw = self.take()
        before = np.flatnonzero(raw[: self.offset] != _BEFORE)
        behind = np.flatnonzero(raw[self.offset + self.nbytes :] != _BEFORE)
        if before.size or behind.size:
            where = (
                f"{self.offset - before[-1]} bytes before its beginning"
                if before.size
                else f"byte {behind[0]} behind its end"
            )
            raise Failed(f"wrote outside of a buffer of {self.nbytes} bytes: {where}")
        payload: np.ndarray = raw[self.offset : self.offset + self.nbytes].copy().view(dtype)
        return payload


class Space:
    """Makes regions. ``kind`` is host or device, ``name`` the device type."""

    name, kind = "cpu", "host"
    device: P | None = None
    stream: P | None = None

    def region(self, nbytes: int, alignment: int = 1, skew: int = 0) -> Region:
        """A region of ``nbytes`` bytes at a multiple of ``alignment`` (0 and 1: an odd address), plus ``skew``."""
        raise NotImplementedError

    def of(self, data: np.ndarray, alignment: int = 1) -> Region:
        """A region that holds ``data``."""
        made = self.region(data.nbytes, alignment)
        made.write(data)
        return made


class HostSpace(Space):
    """Ordinary memory of this process."""

    def region(self, nbytes: int, alignment: int = 1, skew: int = 0) -> Region:
        room = np.empty(nbytes + 2 * GUARD + 2 * max(alignment, 1) + 64, np.uint8)
        address = room.ctypes.data
        step = max(alignment, 1)
        start = -(-(address + GUARD) // step) * step - address
        if step == 1 and (address + start) % 2 == 0:
            start += 1  # any address means any address
        start += skew
        return HostRegion(room[: start + nbytes + GUARD], nbytes, start, Buf(address, start, nbytes))


class HostRegion(Region):
    """In memory that NumPy reads and writes. ``room``: the memory with its guards."""

    def __init__(self, room: np.ndarray, nbytes: int, offset: int, buf: Buf) -> None:
        super().__init__(nbytes, offset, buf)
        self.room = room

    def put(self, raw: np.ndarray) -> None:
        self.room[:] = raw

    def take(self) -> np.ndarray:
        raw: np.ndarray = self.room.copy()
        return raw


class DeviceSpace(Space):
    """Memory of one device, opened here; ``stream`` is the one that moves data to and fro."""

    kind = "device"

    def __init__(self, backend: Backend, ordinal: int) -> None:
        self.backend, self.name = backend, backend.device_api.device_type.decode()
        count = C.c_int32()
        backend.call("device", "count", C.byref(count))
        if count.value < 1:
            raise Failed(f"count returns {count.value} devices of type {self.name}")
        self.ordinal = ordinal % count.value
        self.device = P()
        backend.call("device", "open", self.ordinal, None, C.byref(self.device))
        props = new(_abi.DeviceProps)
        backend.call("device", "props", self.device, C.byref(props))
        self.alignment = max(1, props.alignment)
        self.stream = self.new_stream()
        self._free: dict[tuple[int, int], list[tuple[P, Buf]]] = {}
        self._pinned = backend_allocates(self, MEM_PINNED)
        # The host as a device has no other memory than the host's.
        self.memory_kind = MEM_DEVICE if backend_allocates(self, MEM_DEVICE) else MEM_HOST

    def new_stream(self) -> P | None:
        """A separate stream; None for a table without streams."""
        if not self.backend.has("device", "stream_create"):
            return None
        return self.create("stream_create", 0)

    def create(self, slot: str, *args: Any) -> P:
        """The stream or event that a slot returns. Raises BackendFailure."""
        made = P()
        self.backend.call("device", slot, self.device, *args, C.byref(made))
        return made

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
        return mem, buf

    def release(self, kind: int, nbytes: int, mem: P, buf: Buf) -> None:
        """The memory may serve another region."""
        size = 1 << max(8, (nbytes - 1).bit_length())
        self._free.setdefault((kind, size), []).append((mem, buf))

    def region(self, nbytes: int, alignment: int = 1, skew: int = 0) -> Region:
        step = max(alignment, 1)
        offset = -(-GUARD // step) * step + (1 if step == 1 else 0) + skew
        memory = self.allocate(self.memory_kind, offset + nbytes + GUARD)
        return _DeviceRegion(self, memory, nbytes, offset)

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

    @contextmanager
    def staging(self, nbytes: int) -> Iterator[tuple[Buf, np.ndarray]]:
        """As host_buffer(), inside of the block."""
        mem, buf, view = self._staging(nbytes)
        yield buf, view
        if mem is not None:
            self.release(MEM_PINNED, nbytes, mem, buf)


class _DeviceRegion(Region):
    def __init__(self, space: DeviceSpace, memory: tuple[P, Buf], nbytes: int, offset: int) -> None:
        base = memory[1]
        super().__init__(nbytes, offset, Buf(base.base, base.offset + offset, nbytes))
        self._space, self._memory, self._total = space, memory, offset + nbytes + GUARD
        self._whole = Buf(base.base, base.offset, self._total)

    def put(self, raw: np.ndarray) -> None:
        with self._space.staging(self._total) as (staging, view):
            view[:] = raw
            self._space.copy(self._whole, staging, self._total)
            self._space.sync()

    def take(self) -> np.ndarray:
        with self._space.staging(self._total) as (staging, view):
            self._space.copy(staging, self._whole, self._total)
            self._space.sync()
            raw: np.ndarray = view.copy()
        return raw

    def __del__(self) -> None:
        self._space.release(self._space.memory_kind, self._total, *self._memory)


def backend_allocates(space: DeviceSpace, kind: int) -> bool:
    """Whether the device has memory of a kind. Raises BackendFailure for an answer other than OK and UNSUPPORTED."""
    mem, buf = P(), Buf()
    code = space.backend.call(
        "device", "mem_alloc", space.device, kind, 64, C.byref(mem), C.byref(buf), allowed=(OK, UNSUPPORTED)
    )
    if code == OK:
        space.backend.call("device", "mem_free", mem)
    return code == OK


# ---- communicators ----------------------------------------------------------------------------------------------------

LISTS = ("in_counts", "out_counts")

# Between two looks at an operation on a stream. Pauses grow, so that a wait of seconds is no busy one; they stay below a
# tenth of the wait, so that measured times stay what they are, and short, so that an error is seen when it comes.
_FIRST_PAUSE_S, _NEXT_PAUSE, _LONGEST_PAUSE_S = 0.0002, 1.1, 0.02


class Pending:
    """An operation that was started. ``wait`` completes it."""

    def __init__(self, comm: Comm, request: P, until: int, stream: P | None) -> None:
        self.comm, self.request, self.until, self.stream = comm, request, until, stream
        self.turn = comm.seq
        self.done = comm.stream_mode is False and request.value is None
        self.event: P | None = None
        if comm.stream_mode:
            assert isinstance(comm.space, DeviceSpace)
            self.event = comm.space.create("event_create", 0)
            comm.backend.call("device", "event_record", self.event, stream)

    def test(self) -> bool:
        """Whether it is complete. Raises BackendFailure when it failed."""
        if self.event:
            return self._ask("device", "event_query", self.event)
        return self._ask("comm", "req_test", self.request)

    def wait(self, how: str = "wait") -> None:
        """Until it is complete; ``how`` is wait or poll. Raises BackendFailure when it failed, Failed when it is
        neither complete nor failed five seconds after its deadline."""
        limit, pause = self.until + 5 * 10**9, _FIRST_PAUSE_S
        while not (
            self.test() if how == "poll" or self.event else self._ask("comm", "req_wait", self.request, limit)
        ):
            if time.monotonic_ns() > limit:
                raise Failed("neither complete nor failed by its deadline + 5 s")
            if self.event:
                self.comm.raise_async_error()
                time.sleep(pause)
                pause = min(pause * _NEXT_PAUSE, _LONGEST_PAUSE_S)

    def _ask(self, table: str, slot: str, *args: Any) -> bool:
        if self.done:
            return True
        try:
            self.done = self.comm.backend.call(table, slot, *args, allowed=(OK, INPROGRESS)) == OK
        except BackendFailure:
            self.done = True
            self.free()
            raise
        if self.done:
            self.comm.buffers.pop(self.turn, None)
            self.free()
            if self.event is None and self.comm.stream_mode:
                self.comm.raise_async_error()
        return self.done

    def free(self) -> None:
        """Gives the request or the event back."""
        call = self.comm.backend.call
        if self.event:
            call("device", "event_destroy", self.event)
        elif self.request.value is not None:
            with self.comm.backend.calls.running("req_free"):
                code = self.comm.backend.comm_api.req_free(self.request)
            if code != OK:
                raise BackendFailure("req_free", code)
        self.event, self.request = None, P()


class Comm:
    """``members``: world ranks, of which ``world_rank`` is this process. ``prefix`` is its corner of the store. It is
    split off ``parent``, where there is one.

    Raises BackendFailure when it cannot be made by ``until``.
    """

    def __init__(
        self, backend: Backend, space: Space, prefix: str, members: Sequence[int], world_rank: int,
        hosts: Sequence[int], until: int, parent: Comm | None = None,
    ) -> None:  # fmt: skip
        self.backend, self.space, self.prefix = backend, space, prefix
        self.members, self.rank, self.size = list(members), list(members).index(world_rank), len(members)
        self.stream_mode = bool(backend.caps & CAP_STREAM)
        # Memory that operations may still use; for failed operations, until the communicator is destroyed.
        self.seq = 0
        self.buffers: dict[int, tuple[list[Region], list[Region]]] = {}
        size = self.size
        args = new(CommArgs)
        ranks, host_list = (C.c_int32 * size)(*members), (C.c_int32 * size)(*(hosts[m] for m in members))
        args.key, args.store = prefix.encode(), backend.host.scope(prefix)
        args.ranks, args.hosts, args.rank, args.size = ranks, host_list, self.rank, size
        args.device, args.deadline_ns = space.device, until
        args.notify_token = backend.host.token()
        if space.device:
            args.device_api = C.addressof(backend.device_api)
        self.identifier = self._identifier(until) if parent is None else None
        if self.identifier is not None:
            args.id, args.id_bytes = C.cast(self.identifier, P), len(self.identifier)
        self.handle: P | None = P()
        slot, which = ("create", ()) if parent is None else ("split", (parent.handle,))
        code = backend.call(
            "comm", slot, *which, C.byref(args), C.byref(self.handle), allowed=(OK, INPROGRESS)
        )
        if self.handle.value is None:
            raise Failed("create answered OK, but returned no communicator")
        while code == INPROGRESS:
            code = backend.call("comm", "create_test", self.handle, allowed=(OK, INPROGRESS))
            if time.monotonic_ns() > until + 5 * 10**9:
                raise Failed("create_test still answers INPROGRESS 5 s after the deadline")
            time.sleep(0.0005)
        C.memset(C.byref(args, C.sizeof(_abi.Hdr)), 0xEE, C.sizeof(args) - C.sizeof(_abi.Hdr))

    def decline_split(self, prefix: str, until: int) -> None:
        """Takes part in a split of this communicator on a rank that is in no part of it. Raises BackendFailure."""
        args, handle = new(CommArgs), P()
        args.key, args.store = prefix.encode(), self.backend.host.scope(prefix)
        args.device, args.deadline_ns = self.space.device, until
        if self.space.device:
            args.device_api = C.addressof(self.backend.device_api)
        self.backend.call("comm", "split", self.handle, C.byref(args), C.byref(handle))
        if handle.value is not None:
            raise Failed("split returned a communicator on a rank that is in no part")

    def _identifier(self, until: int) -> C.Array[C.c_uint8] | None:
        backend = self.backend
        with backend.calls.running("id_bytes"):
            count = backend.comm_api.id_bytes() if backend.has("comm", "id_bytes") else 0
        if count == 0:
            return None
        store, key = backend.host._store, f"{self.prefix}#id"
        identifier = (C.c_uint8 * count)()
        if self.rank == 0:
            backend.call("comm", "id_create", identifier)
            if self.size > 1:
                store.set(key, bytes(identifier))
        else:
            value = store.get(key, max(0.0, (until - time.monotonic_ns()) / 1e9))
            C.memmove(identifier, value, count)
        return identifier

    def enqueue(
        self, coll: int, dtype: int, ins: Sequence[Region] = (), outs: Sequence[Region] = (), op: int = 0,
        counts: Sequence[int] = (), root: int = 0, peer: int = 0, pre: float = 0.0, post: float = 0.0,
        in_counts: Sequence[int] | None = None, out_counts: Sequence[int] | None = None, seconds: float = 20.0,
        stream: P | None = None, flags: int = 0,
    ) -> tuple[P, int]:  # fmt: skip
        """The bare call of collective: (request, deadline). Raises BackendFailure."""
        args, n = new(CollArgs), max(len(ins), len(outs))
        args.coll, args.dtype, args.op, args.root, args.peer, args.n_bufs = coll, dtype, op, root, peer, n
        args.flags = flags
        args.prescale, args.postscale = pre, post
        args.deadline_ns = until = deadline(seconds)
        self.seq += 1
        args.seq = self.seq
        self.buffers[self.seq] = (list(ins), list(outs))
        keep: list[Any] = [args]
        for name, regions in (("in_", ins), ("out", outs)):
            if regions:
                keep.append((Buf * n)(*(r.buf for r in regions)))
                setattr(args, name, keep[-1])
        if n:
            keep.append((C.c_uint64 * n)(*counts))
            args.counts = keep[-1]
        for name, values in zip(LISTS, (in_counts, out_counts)):
            if values is not None:
                keep.append((C.c_uint64 * len(values))(*values))
                setattr(args, name, keep[-1])
        if self.stream_mode:
            args.stream = stream or self.space.stream
        request = P()
        code = self.backend.call(
            "comm", "collective", self.handle, C.byref(args), C.byref(request), allowed=(OK, INPROGRESS)
        )
        # Overwrites the arguments, so that a backend that reads them after the call fails.
        for piece in keep:
            C.memset(C.byref(piece), 0xEE, C.sizeof(piece))
        self._check_answer(code, request)
        return request, until

    def start(self, coll: int, dtype: int, *args: Any, **more: Any) -> Pending:
        """Starts a collective; see enqueue for the arguments. Raises BackendFailure."""
        request, until = self.enqueue(coll, dtype, *args, **more)
        pending = Pending(self, request, until, more.get("stream") or self.space.stream)
        if pending.done:
            self.buffers.pop(pending.turn, None)
        return pending

    def run(self, coll: int, dtype: int, *args: Any, how: str = "wait", **more: Any) -> None:
        """Starts a collective and completes it."""
        self.start(coll, dtype, *args, **more).wait(how)

    def group(self, calls: Sequence[dict[str, Any]]) -> list[Pending]:
        """The calls between group_begin and group_end. Raises BackendFailure."""
        self.backend.call("comm", "group_begin", self.handle)
        try:
            started = [self.enqueue(**call) for call in calls]
        finally:
            self.backend.call("comm", "group_end", self.handle)
        stream = calls[0].get("stream") or self.space.stream
        return [
            Pending(self, request, until, stream) for request, until in started
        ]  # buffers: kept until destroy

    def _check_answer(self, code: int, request: P) -> None:
        if self.stream_mode and (code != OK or request.value is not None):
            raise Failed("a STREAM communicator's collective must answer OK and return no request")
        if self.backend.caps & CAP_REQUEST and (code == OK) != (request.value is None):
            raise Failed("collective must return a request with INPROGRESS and none with OK")

    def async_error(self) -> tuple[int, str]:
        """(code, text) of async_error: OK, UNSUPPORTED, or the failure."""
        if not self.backend.has("comm", "async_error"):
            return _abi.UNSUPPORTED, ""
        try:
            return self.backend.call("comm", "async_error", self.handle, allowed=(OK, _abi.UNSUPPORTED)), ""
        except BackendFailure as problem:
            return problem.code, problem.text

    def raise_async_error(self) -> None:
        """Raises BackendFailure if async_error reports a failure."""
        code, text = self.async_error()
        if code not in (OK, _abi.UNSUPPORTED):
            raise BackendFailure("async_error", code, text)

    def abort(self) -> None:
        """From any thread."""
        self.backend.call("comm", "abort", self.handle)

    def finalize(self, seconds: float = 20.0) -> None:
        """Calls finalize, a collective, if the backend has it."""
        if self.backend.has("comm", "finalize"):
            self.backend.call("comm", "finalize", self.handle, deadline(seconds))

    def destroy(self) -> None:
        """Local. Nothing happens the second time."""
        if self.handle is not None:
            handle, self.handle = self.handle, None
            self.backend.call("comm", "destroy", handle)
            self.buffers.clear()
