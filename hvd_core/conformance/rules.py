"""L2: rules for all collectives: no narrowing, special values, booleans, averages, factors, in place."""

from __future__ import annotations

import numpy as np

from hvd_core.conformance import abi
from hvd_core.conformance.abi import ALLGATHER, ALLREDUCE, BROADCAST, REDUCE, SUM
from hvd_core.conformance.backend import BackendFailure
from hvd_core.conformance.cases import Kit, case, served
from hvd_core.conformance.comm import Comm
from hvd_core.conformance.numerics import (
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
from hvd_core.conformance.verdicts import EMULATED, FAIL, NATIVE, Composed


def allreduce(comm: Comm, dtype: str, mine: np.ndarray, op: int, alignment: int, **more) -> np.ndarray:
    """The result of one allreduce out of place."""
    source, out = comm.space.of(mine, alignment), comm.space.region(mine.nbytes, alignment)
    out.poison()
    comm.run(ALLREDUCE, NUMBERS[dtype], [source], [out], op=op, counts=[mine.size], **more)
    return out.read(stored(dtype))


def _columns(kit: Kit, dtype: str, rows: list) -> list[np.ndarray]:
    """rows[i][r]: the value of rank r at index i; ranks beyond the second repeat the last entry."""
    values = [[row[min(r, len(row) - 1)] for row in rows] for r in range(kit.size)]
    if is_float(dtype):
        return [to_stored(dtype, np.array(v, np.float64)) for v in values]
    return [np.array(v, stored(dtype)) for v in values]


def _try_all(kit: Kit, dtypes, ops, body) -> None:
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
    traps = {
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

    def body(comm: Comm, dtype: str, op: int, caps) -> str:
        columns = _columns(kit, dtype, traps[dtype])
        got = allreduce(comm, dtype, columns[comm.rank], op, caps.alignment)
        with np.errstate(over="ignore"):
            return compare(dtype, got, *reduced(dtype, op, columns))

    _try_all(kit, traps, ("sum", "min", "max"), body)


@case("L2.special_values", "every reduction keeps NaN, infinities, -0.0 and subnormals", ranks=2)
def special_values(kit: Kit) -> None:
    nan, inf = float("nan"), float("inf")
    rows = [(nan, 1.0), (1.0, nan), (nan, nan), (2.0, 1.0), (inf, 1.0), (-inf, 1.0), (-0.0, -0.0), (inf, inf)]

    def body(comm: Comm, dtype: str, op: int, caps) -> str:
        columns = _columns(kit, dtype, rows)
        got = to_real(dtype, allreduce(comm, dtype, columns[comm.rank], op, caps.alignment))
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
    def body(comm: Comm, dtype: str, op: int, caps) -> str:
        columns = [np.array([r == 0, r == 1, True, False, r > 0] * 7, bool) for r in range(kit.size)]
        got = allreduce(comm, dtype, columns[comm.rank], op, caps.alignment)
        raw = got.view(np.uint8)
        if (raw > 1).any():
            return f"a bool result has the value {raw.max()}"
        return compare(dtype, got, reduced(dtype, op, columns)[0])

    _try_all(kit, ("bool",), ("sum", "prod", "min", "max"), body)


@case("L2.average", "averages of integers divide the exact sum and truncate toward zero", ranks=2)
def average(kit: Kit) -> None:
    def body(comm: Comm, dtype: str, op: int, caps) -> str:
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
        got = allreduce(comm, dtype, columns[comm.rank], op, caps.alignment)
        exact = [sum(int(c[i]) for c in columns) for i in range(len(rows))]
        value = np.array([abs(t) // kit.size * (1 if t >= 0 else -1) for t in exact], stored(dtype))
        return compare(dtype, got, value)

    _try_all(kit, [d for d in NUMBERS if d.lstrip("u").startswith("int")], ("avg",), body)


@case("L2.scaling", "prescale before, postscale after; 0 means 1", ranks=2)
def scaling(kit: Kit) -> None:
    def body(comm: Comm, dtype: str, op: int, caps) -> str:
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
                got = allreduce(comm, dtype, columns[comm.rank], op, caps.alignment, pre=pre, post=post)
            except BackendFailure as problem:
                if caps.support or problem.code != abi.UNSUPPORTED or problem.flags & abi.COMM_DEAD:
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
                    wrong = _in_place(comm, coll, dtype, count, caps.alignment)
                    kit.row(f"{name} of {count} {dtype} [{space.name}]", FAIL if wrong else NATIVE, wrong)
    if not kit.rows:
        raise Composed("none of these collectives is declared for any of these types; hvd-core composes them")


def _in_place(comm: Comm, coll: int, dtype: str, count: int, alignment: int) -> str:
    columns = [sample(dtype, r, count) for r in range(comm.size)]
    if coll == ALLGATHER:
        room = np.zeros(count * comm.size, stored(dtype))
        room[comm.rank * count : (comm.rank + 1) * count] = columns[comm.rank]
        buffer = comm.space.of(room, alignment)
        comm.run(coll, NUMBERS[dtype], [buffer], [buffer], counts=[count])
        return compare(dtype, buffer.read(stored(dtype)), np.concatenate(columns))
    buffer = comm.space.of(columns[comm.rank], alignment)
    comm.run(coll, NUMBERS[dtype], [buffer], [buffer], op=SUM, counts=[count], root=comm.size - 1)
    got = buffer.read(stored(dtype))
    if coll == REDUCE and comm.rank != comm.size - 1:
        return ""
    return compare(dtype, got, *reduced(dtype, SUM, columns))
