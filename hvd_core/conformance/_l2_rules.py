"""L2: rules for all collectives: values, several operations at the same time, marks of the host, windows (L4 too)."""

from __future__ import annotations

import ctypes as C
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hvd_core.conformance import _abi
from hvd_core.conformance._abi import (
    ALLGATHER,
    ALLREDUCE,
    AVG,
    BROADCAST,
    MAX,
    OK,
    REDUCE,
    SUM,
    UNSUPPORTED,
    Buf,
    P,
    WindowArgs,
    new,
)
from hvd_core.conformance._backend import BackendFailure, deadline
from hvd_core.conformance._cases import Kit, Operation, alignment_of, at_most, case, plain_type, served
from hvd_core.conformance._comm import GUARD, Comm, HostRegion, HostSpace, Region
from hvd_core.conformance._numerics import (
    NUMBERS,
    OPS,
    compare,
    is_float,
    reduced,
    sample,
    stored,
    to_real,
    to_stored,
)
from hvd_core.conformance._verdicts import EMULATED, FAIL, NATIVE, Composed

Body = Callable[[Comm, str, int, _abi.CollCaps], str]
"""(communicator, type, reduction, the answer of query) -> the fault, or "".
"""


def _allreduce(
    comm: Comm, dtype: str, op: int, columns: Sequence[np.ndarray], caps: _abi.CollCaps
) -> Operation:
    return Operation(comm, ALLREDUCE, dtype, columns, op=op, alignment=caps.alignment)


def _columns(kit: Kit, dtype: str, rows: Sequence[tuple[float, ...]]) -> list[np.ndarray]:
    """rows[i][r]: the value of rank r at index i; ranks beyond the second repeat the last entry."""
    values = [[row[min(r, len(row) - 1)] for row in rows] for r in range(kit.size)]
    if is_float(dtype):
        return [to_stored(dtype, np.array(v, np.float64)) for v in values]
    return [np.array(v, stored(dtype)) for v in values]


def _try_all(kit: Kit, dtypes: Iterable[str], ops: Iterable[str], body: Body) -> None:
    """Calls body(comm, dtype, op, caps) for each served combination; it returns a fault or "". The same on all ranks."""
    tried = 0
    for space in kit.spaces():
        comm = kit.comm(space)
        for dtype in dtypes:
            for name in ops:
                caps = served(kit, ALLREDUCE, dtype, OPS[name])
                what = f"{dtype} {name} [{space.name}]"
                if caps is None:
                    kit.row(what, EMULATED, "by hvd-core")
                    continue
                tried += 1
                wrong = body(comm, dtype, OPS[name], caps)
                kit.row(what, FAIL if wrong else NATIVE, wrong or "")
    if not tried:
        raise Composed("allreduce is declared for none of these types; hvd-core composes it")


@case(
    "L2.narrowing",
    "values that a narrower type cannot hold: 64 bits near 2**40, float64 that differ by 1e-12",
    ranks=2,
)
def narrowing(kit: Kit) -> None:
    wide = 2**40
    traps: dict[str, Sequence[tuple[float, ...]]] = {
        "int64": [(wide + r, wide * 3 + r) for r in range(9)]
        + [(-wide, wide + 1), (2**62, 1), (-(2**62), -1)],
        "uint64": [(wide + r, wide * 3 + r) for r in range(9)] + [(2**63, 1)],
        "int32": [(2**24 + 1, 2**24 + 3), (-(2**24) - 1, 0), (2**30 + 1, 2)],
        "uint32": [(2**24 + 1, 2**24 + 3), (2**31 + 1, 2)],
        "float64": [(1.0 + r * 1e-12, 1.0 - r * 2e-12) for r in range(1, 9)]
        + [(1e300, 1e-300), (1.0, 2.0**-52)],
        "float32": [(1.0, 2.0**-23), (16777216.0, 2.0), (1e38, 1.0), (1e-38, 0.0)],
        "int16": [(2049, 1), (32000, 700)],
        "int8": [(100, 100), (-100, -100), (127, 1)],
        "uint8": [(200, 100), (255, 1)],
    }

    def body(comm: Comm, dtype: str, op: int, caps: _abi.CollCaps) -> str:
        columns = _columns(kit, dtype, traps[dtype])
        with np.errstate(over="ignore"):
            return _allreduce(comm, dtype, op, columns, caps).check()

    _try_all(kit, traps, ("sum", "min", "max"), body)


@case("L2.special_values", "every reduction keeps NaN, infinities, -0.0 and subnormals", ranks=2)
def special_values(kit: Kit) -> None:
    nan, inf = float("nan"), float("inf")
    rows = [(nan, 1.0), (1.0, nan), (nan, nan), (2.0, 1.0), (inf, 1.0), (-inf, 1.0), (-0.0, -0.0), (inf, inf)]

    def body(comm: Comm, dtype: str, op: int, caps: _abi.CollCaps) -> str:
        columns = _columns(kit, dtype, rows)
        got = to_real(dtype, _allreduce(comm, dtype, op, columns, caps).complete())
        with np.errstate(all="ignore"):
            value = to_real(dtype, to_stored(dtype, reduced(dtype, op, columns)[0]))
        lost = np.isnan(value) & ~np.isnan(got)
        if lost.any():
            return f"NaN is lost: {got[np.flatnonzero(lost)[0]]} instead, for {rows[np.flatnonzero(lost)[0]]}"
        wrong = ~((got == value) | (np.isnan(value) & np.isnan(got)))
        if wrong.any():
            at = np.flatnonzero(wrong)[0]
            return f"{got[at]} instead of {value[at]}, for {rows[at]}"
        if op == SUM and np.signbit(got[6]) != np.signbit(value[6]):
            return "-0.0 + -0.0 has become +0.0"
        return ""

    _try_all(kit, ("float16", "bfloat16", "float32", "float64"), ("sum", "min", "max"), body)
    _moved_bits(kit)


def _moved_bits(kit: Kit) -> None:
    """Every bit pattern survives a broadcast and an allgather."""
    for space in kit.spaces():
        comm = kit.comm(space)
        for dtype in ("float16", "bfloat16", "float8_e4m3fn", "uint16", "float32", "float64", "bool"):
            bits: np.ndarray
            every = np.arange(65536, dtype=np.uint16)
            bits = (
                (every & 1 if dtype == "bool" else every).astype(np.uint8)
                if stored(dtype).itemsize == 1
                else every
            )
            if stored(dtype).itemsize > 2:
                odd = np.array([0x7F800001, 0xFF800000, 0x80000000, 1, 0x7FC0DEAD], np.uint32)
                bits = (
                    odd
                    if stored(dtype).itemsize == 4
                    else odd.astype(np.uint64) << np.uint64(32) | np.uint64(1)
                )
            for coll, name in ((BROADCAST, "broadcast"), (ALLGATHER, "allgather")):
                caps = served(kit, coll, dtype)
                if caps is None or (caps.max_count and caps.max_count < bits.size * kit.size):
                    continue
                source = space.of(bits, caps.alignment)
                out = space.region(bits.nbytes * (kit.size if coll == ALLGATHER else 1), caps.alignment)
                out.poison()
                comm.run(coll, NUMBERS[dtype], [source], [out], counts=[bits.size])
                wrong = (out.read(bits.dtype).reshape(-1, bits.size) != bits).any()
                kit.row(
                    f"bits of {dtype}, {name} [{space.name}]",
                    FAIL if wrong else NATIVE,
                    "changed" if wrong else "",
                )


@case("L2.bool", "bool: sum and max are or, prod and min are and; results are 0 and 1", ranks=2)
def booleans(kit: Kit) -> None:
    def body(comm: Comm, dtype: str, op: int, caps: _abi.CollCaps) -> str:
        columns = [np.array([r == 0, r == 1, True, False, r > 0] * 7, bool) for r in range(kit.size)]
        got = _allreduce(comm, dtype, op, columns, caps).complete()
        raw = got.view(np.uint8)
        if (raw > 1).any():
            return f"a bool result has the value {raw.max()}"
        return compare(dtype, got, reduced(dtype, op, columns)[0])

    _try_all(kit, ("bool",), ("sum", "prod", "min", "max"), body)


@case("L2.average", "averages of integers divide the exact sum and truncate toward zero", ranks=2)
def average(kit: Kit) -> None:
    def body(comm: Comm, dtype: str, op: int, caps: _abi.CollCaps) -> str:
        limits = np.iinfo(stored(dtype))
        rows = [
            (limits.max, limits.max - 1),
            (limits.max, limits.max),
            (3, 0),
            (limits.min, limits.min + 1),
            (7, 2),
        ]
        if limits.min < 0:
            rows += [(-3, 0), (-7, 2), (limits.min, limits.min)]
        columns = _columns(kit, dtype, rows)
        got = _allreduce(comm, dtype, op, columns, caps).complete()
        exact = [sum(int(c[i]) for c in columns) for i in range(len(rows))]
        value = np.array([abs(t) // kit.size * (1 if t >= 0 else -1) for t in exact], stored(dtype))
        return compare(dtype, got, value)

    _try_all(kit, [d for d in NUMBERS if d.lstrip("u").startswith("int")], ("avg",), body)


@case("L2.scaling", "prescale before, postscale after; 0 means 1", ranks=2)
def scaling(kit: Kit) -> None:
    def body(comm: Comm, dtype: str, op: int, caps: _abi.CollCaps) -> str:
        small = (sample("int8", r, 300).astype(np.int64) for r in range(kit.size))
        top = max(
            2, 84 // kit.size
        )  # three times the sum of them fits 8 bits: beyond, nothing is agreed upon
        columns = [
            to_stored(dtype, s / 4) if is_float(dtype) else (s % top).astype(stored(dtype)) for s in small
        ]
        first = ""
        plain = [(pre, post, columns) for pre, post in ((0.5, 0), (0, 3.0), (2.0, 0.25), (0, 0), (1.0, 1.0))]
        # Factors that the type itself cannot hold, of values for which the result can.
        far = []
        if is_float(dtype):
            around = [1 + sample("int8", r, 300) / 512 for r in range(kit.size)]
            for pre, size in ((3e-8, 2.0**13), (1e5, 2.0**-13)):
                far.append((pre, 0, [to_stored(dtype, a * size) for a in around]))
        for pre, post, columns in plain + far:
            # Factors are among the things that query is asked about.
            caps = kit.backend.query(
                ALLREDUCE, NUMBERS[dtype], op, kit.size, comm=comm.handle, factors=(pre, post)
            )
            try:
                got = _allreduce(comm, dtype, op, columns, caps).complete(pre=pre, post=post)
            except BackendFailure as problem:
                if caps.support or problem.code != _abi.UNSUPPORTED or problem.flags & _abi.COMM_DEAD:
                    raise
                kit.row(f"{dtype}, factors {pre} and {post} [{comm.space.name}]", EMULATED, "by hvd-core")
                continue
            wrong = compare(dtype, got, *reduced(dtype, op, columns, pre or 1.0, post or 1.0))
            first = first or (wrong and f"prescale {pre}, postscale {post}: {wrong}")
        return first

    _try_all(
        kit,
        ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8"),
        ("sum", "avg", "max"),
        body,
    )


@case("L2.in_place", "the same buffer in and out", ranks=2)
def in_place(kit: Kit) -> None:
    for space in kit.spaces():
        comm = kit.comm(space)
        for dtype in ("float32", "int32", "bfloat16", "int64", "uint8"):
            for count in (1, 17, 1023) if kit.quick else (1, 17, 1023, 300_001):
                for coll, name in ((ALLREDUCE, "allreduce"), (REDUCE, "reduce"), (ALLGATHER, "allgather")):
                    caps = served(kit, coll, dtype)
                    if caps is None or (caps.max_count and count * kit.size > caps.max_count):
                        continue
                    wrong = _samples(
                        comm, coll, dtype, count, alignment=caps.alignment, root=kit.size - 1, in_place=True
                    ).check()
                    kit.row(f"{name} of {count} {dtype} [{space.name}]", FAIL if wrong else NATIVE, wrong)
    if not kit.rows:
        raise Composed("none of these collectives is declared for any of these types; hvd-core composes them")


def _samples(comm: Comm, coll: int, dtype: str, count: int, salt: int = 0, **more: Any) -> Operation:
    """A collective of ``count`` elements of each rank."""
    return Operation(comm, coll, dtype, [sample(dtype, r, count, salt) for r in range(comm.size)], **more)


# ---- several at the same time: lists of buffers, groups, communicators over parts of the ranks ------------------------


@case("L2.vectored", "lists of many buffers of all sizes, some of them empty", ranks=2)
def vectored(kit: Kit) -> None:
    if not kit.backend.caps & _abi.CAP_VECTORED:
        kit.need_comm()
        raise Composed("VECTORED is not declared; hvd-core packs lists into one buffer")
    dtype = next((d for d in ("float32", "int32", "uint8") if served(kit, ALLREDUCE, d)), None)
    kinds = [(ALLREDUCE, "allreduce", dtype)] if dtype else []
    kinds += [(BROADCAST, "broadcast", "uint8")] if served(kit, BROADCAST, "uint8") else []
    lists = (
        [1, 0, 5, 1000, 0, 3],
        [0, 0, 0],
        [37] * 161,
        [3] * (200 if kit.quick else 2000),
        [40_000, 1, 70_001],
    )
    for space in kit.spaces():
        comm = kit.comm(space)
        for lengths in lists:
            for coll, name, dtype in kinds:
                how: dict[str, Any] = {"alignment": alignment_of(kit, coll, dtype), "root": comm.size - 1}
                how["in_place"] = coll == BROADCAST
                wrong = _run_list([_samples(comm, coll, dtype, n, i, **how) for i, n in enumerate(lengths)])
                what = f"{len(lengths)} buffers of {min(lengths)} to {max(lengths)} [{space.name}]"
                kit.row(f"{name} of {what}", FAIL if wrong else NATIVE, wrong)


def _run_list(made: list[Operation]) -> str:
    """Runs operations of one kind as one call with lists of buffers; the fault of the result, or ""."""
    lists = {
        "ins": [m.source for m in made],
        "outs": [m.out for m in made],
        "counts": [m.count for m in made],
    }
    made[0].comm.run(**made[0].arguments() | lists)
    return next((f"buffer {i}: {wrong}" for i, m in enumerate(made) if (wrong := m.wrong())), "")


@case("L2.groups", "several collectives between group_begin and group_end", ranks=2)
def groups(kit: Kit) -> None:
    kit.need_comm()
    caps = kit.backend.caps
    if not caps & (_abi.CAP_GROUP_SAME | _abi.CAP_GROUP_MIXED):
        raise Composed("GROUP_* is not declared; hvd-core makes the calls one by one")
    dtype = next(
        d for d in ("float32", "int32", "uint8") if served(kit, ALLREDUCE, d) or served(kit, BROADCAST, d)
    )
    for space in kit.spaces():
        comm = kit.comm(space)
        for name, kinds in (
            ("allreduce", [ALLREDUCE]), ("broadcast", [BROADCAST]), ("allgather", [ALLGATHER]),
            ("all kinds", [ALLREDUCE, BROADCAST, ALLGATHER]),
        ):  # fmt: skip
            if len(kinds) > 1 and not caps & _abi.CAP_GROUP_MIXED:
                kit.row(
                    f"{name} [{space.name}]",
                    EMULATED,
                    "GROUP_MIXED is not declared; hvd-core makes a group per kind",
                )
                continue
            if all(served(kit, kind, dtype) for kind in kinds):
                wrong = _grouped(kit, comm, dtype, [kinds[i % len(kinds)] for i in range(9)])
                kit.row(f"{name} [{space.name}]", FAIL if wrong else NATIVE, wrong)


def _grouped(kit: Kit, comm: Comm, dtype: str, kinds: list[int]) -> str:
    calls = [
        _samples(
            comm, coll, dtype, 50 * i + i % 3, i, alignment=alignment_of(kit, coll, dtype), root=i % comm.size
        )
        for i, coll in enumerate(kinds)
    ]
    for pending in comm.group([call.arguments() for call in calls]):
        pending.wait()
    wrong = [f"call {i} of {len(calls)}: {wrong}" for i, call in enumerate(calls) if (wrong := call.wrong())]
    return wrong[0] if wrong else ""


@case(
    "L2.process_sets",
    "communicators over {0, 2} and {1, 3} at once, and one in another order of ranks",
    ranks=2,
)
def process_sets(kit: Kit) -> None:
    kit.need_comm()
    dtype = next((d for d in ("float32", "int32", "uint8") if served(kit, ALLREDUCE, d)), None)
    if dtype is None:
        raise Composed("allreduce is declared for none of float32, int32, uint8")
    alignment = alignment_of(kit, ALLREDUCE, dtype)
    even, odd = list(range(0, kit.size, 2)), list(range(1, kit.size, 2))
    mine = even if kit.rank in even else odd
    for space in kit.spaces():
        all_ranks = kit.comm(space)
        half = kit.comm(space, mine, tag=f"of{mine[0]}")
        backwards = kit.comm(space, list(reversed(range(kit.size))))
        assert half is not None and backwards is not None
        for turn in range(5):
            for comm in (half, all_ranks, backwards, half):
                columns = [sample(dtype, m, 100 + turn) for m in comm.members]
                made = Operation(comm, ALLREDUCE, dtype, columns, alignment=alignment)
                made.verify(f"set {comm.members}")
        if served(kit, BROADCAST, dtype):
            first = f"root 0 of a set in reverse order is its first member, global rank {kit.size - 1}"
            alignment_there = alignment_of(kit, BROADCAST, dtype)
            _samples(backwards, BROADCAST, dtype, 64, 7, alignment=alignment_there, in_place=True).verify(
                first
            )


# ---- marks that may not change a result: operations that all ranks agreed on, registered memory -----------------------


@case("L2.agreed", "operations marked HVD_COLL_AGREED: the same results, small and large", ranks=2)
def agreed(kit: Kit) -> None:
    dtype, _ = plain_type(kit)
    for space in kit.spaces():
        comm = kit.comm(space)
        for turn, count in enumerate((1, 17, 40_000, 17, 0, 300_001)):
            count = at_most(kit, dtype, count)
            calls = [(ALLREDUCE, "allreduce", "wait"), (ALLREDUCE, "allreduce", "poll")]
            calls += [(BROADCAST, "broadcast", "wait"), (ALLGATHER, "allgather", "wait")]
            for coll, name, how in calls:
                caps, parts = served(kit, coll, dtype), kit.size if coll == ALLGATHER else 1
                if caps is None or (caps.max_count and count * parts > caps.max_count):
                    continue
                made = _samples(
                    comm, coll, dtype, count, turn, alignment=caps.alignment, root=turn % kit.size
                )
                made.verify(f"{name} of {count}", how, flags=_abi.COLL_AGREED)


@case("L2.registered", "memory that is registered, used and deregistered: the same results", ranks=2)
def registered(kit: Kit) -> None:
    kit.need_comm()
    if not kit.backend.has("comm", "mem_register"):
        kit.skip("the table has no mem_register; hvd-core works without it")
    dtype, alignment = plain_type(kit)
    count = at_most(kit, dtype, 50_000)
    for space in kit.spaces():
        comm = kit.comm(space)
        room = space.region(count * stored(dtype).itemsize, alignment)
        for turn in range(6):
            handle = P()
            room.write(sample(dtype, kit.rank, count, turn))
            code = kit.backend.call(
                "comm", "mem_register", comm.handle, room.buf, C.byref(handle), allowed=(OK, UNSUPPORTED)
            )
            untouched = compare(dtype, room.read(stored(dtype)), sample(dtype, kit.rank, count, turn))
            kit.expect(not untouched, f"mem_register changes the buffer: {untouched}")
            for salt in (turn, turn + 100):
                made = _samples(comm, ALLREDUCE, dtype, count, salt, buffer=room)
                made.verify(f"turn {turn}, registered, in place")
            if code == OK:
                kit.backend.call("comm", "mem_deregister", comm.handle, handle)
            _samples(comm, ALLREDUCE, dtype, count, turn, buffer=room).verify(
                f"turn {turn}, no longer registered"
            )


# L2 and L4: windows: memory of all ranks of a communicator that they reach without copies.
#
# Windows of host memory. The kit creates them as the engine does, and looks at the memory around the buffers too.

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
        code = kit.backend.call(
            "comm", "window_create", comm.handle, C.byref(args), C.byref(self.handle), C.byref(part),
            allowed=(OK, UNSUPPORTED),
        )  # fmt: skip
        C.memset(C.byref(args, C.sizeof(_abi.Hdr)), 0xEE, C.sizeof(args) - C.sizeof(_abi.Hdr))
        if code == UNSUPPORTED:
            raise Composed("windows on memory that the host brings: the kit does not try them yet")
        kit.expect(bool(self.handle.value), "window_create answers OK, but returned no window")
        kit.expect(bool(part.base) and part.bytes >= nbytes, f"the part has {part.bytes} bytes of {nbytes}")
        address = part.base + part.offset
        self.memory = np.ctypeslib.as_array((C.c_uint8 * nbytes).from_address(address))

    def region(self, nbytes: int, start: int) -> Region:
        """A guarded buffer of `nbytes` bytes whose payload begins at byte `start` of the part."""
        room = self.memory[start - GUARD : start + nbytes + GUARD]
        return HostRegion(room, nbytes, GUARD, Buf(self.memory.ctypes.data, start, nbytes))

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


def _types(kit: Kit) -> list[str]:
    return [d for d in _DTYPES if served(kit, ALLREDUCE, d) is not None]


def _verify_in(comm: Comm, dtype: str, buffer: Region, salt: int, where: str = "", op: int = SUM) -> None:
    """An allreduce in place in a buffer of a window."""
    count = buffer.nbytes // stored(dtype).itemsize
    _samples(comm, ALLREDUCE, dtype, count, salt, op=op, buffer=buffer).verify(where)


@case("L2.windows", "buffers in windows, on all ranks or some, at equal and at other places", ranks=2)
def windows(kit: Kit) -> None:
    comm = _communicator(kit)
    first, second = (Window(kit, comm, 1 << 18, tag) for tag in ("first", "second"))
    ordinary = HostSpace()
    for turn, dtype in enumerate(_types(kit)[: 2 if kit.quick else None]):
        alignment = max(64, alignment_of(kit, ALLREDUCE, dtype))
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
                _verify_in(comm, dtype, buffer, turn, f"{what}, {places}", op)
    if kit.backend.caps & _abi.CAP_VECTORED:
        dtype = _types(kit)[0]
        width = stored(dtype).itemsize
        sizes = [width * n for n in (3, 5000, 1, 700, 9001, 16)]
        starts = np.cumsum([512, *((n + 2 * GUARD) // 64 * 64 + 64 for n in sizes)])
        buffers = [first.region(n, int(place)) for n, place in zip(sizes, starts)][::-1]
        wrong = _run_list(
            [_samples(comm, ALLREDUCE, dtype, b.nbytes // width, i, buffer=b) for i, b in enumerate(buffers)]
        )
        kit.expect(not wrong, f"a list of buffers in one window: {wrong}")
    kept = first.memory.copy()
    first.destroy()
    kit.expect(bool((kept == first.memory).all()), "window_destroy changes this rank's memory")
    # An ordinary buffer now, beside one in a window.
    dtype = _types(kit)[0]
    _verify_in(comm, dtype, first.region(65_536, 512), 3, "after window_destroy")
    first.free()
    _verify_in(comm, dtype, second.region(65_536, 512), 4, "another window was destroyed and freed")
    second.destroy()
    second.free()


@case("L4.windows", "a window outlives its communicator, also after an abort", ranks=2)
def outlives(kit: Kit) -> None:
    for aborted in (False, True):
        comm = _communicator(kit)
        window = Window(kit, comm, 1 << 18, "outlives")
        window.memory[:] = 7
        _verify_in(comm, _types(kit)[0], window.region(65_536, 512), 1)
        kit.meet()
        if aborted and kit.backend.caps & _abi.CAP_ABORT:
            comm.abort()
        comm.destroy()
        kit.meet()
        window.memory[65_536:] = comm.rank
        kit.meet()
        kit.expect(
            bool((window.memory[65_536:] == comm.rank).all()), "the part is not this rank's own any more"
        )
        window.free()
