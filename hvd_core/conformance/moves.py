"""L2: the collectives that only move data."""

from __future__ import annotations

import numpy as np

from hvd_core.conformance import abi
from hvd_core.conformance.abi import ALLGATHER, ALLTOALL, BARRIER, BROADCAST, RECV, SEND
from hvd_core.conformance.cases import Kit, case
from hvd_core.conformance.collectives import uneven
from hvd_core.conformance.numerics import compare, sample, stored
from hvd_core.conformance.sweep import Try, sweep
from hvd_core.conformance.verdicts import EMULATED, NATIVE, Composed


def _out(t: Try, elements: int):
    out = t.comm.space.region(elements * stored(t.dtype).itemsize, t.alignment)
    out.poison()
    return out


@case("L2.broadcast", "every type from every root, in and out of place", seconds=120)
def broadcast(kit: Kit) -> None:
    def attempt(t: Try, count: int) -> str:
        wrong = ""
        for root in range(t.comm.size) if count == 17 else (0,):
            value = sample(t.dtype, root, count)
            source, out = t.comm.space.of(value, t.alignment), _out(t, count)
            if t.comm.rank != root:
                source.poison()
            t.comm.run(BROADCAST, t.number, [source], [out], counts=[count], root=root, seconds=t.seconds)
            got = compare(t.dtype, out.read(stored(t.dtype)), value)
            t.comm.run(BROADCAST, t.number, [source], [source], counts=[count], root=root, seconds=t.seconds)
            again = compare(t.dtype, source.read(stored(t.dtype)), value)
            wrong = wrong or (got and f"root {root}: {got}") or (again and f"in place, root {root}: {again}")
        return wrong

    sweep(kit, BROADCAST, attempt)


def _gather(t: Try, parts: list[int], varying: bool) -> str:
    pieces = [sample(t.dtype, r, n) for r, n in enumerate(parts)]
    source, out = t.comm.space.of(pieces[t.comm.rank], t.alignment), _out(t, sum(parts))
    t.comm.run(
        ALLGATHER, t.number, [source], [out], counts=[parts[t.comm.rank]],
        out_counts=parts if varying else None, seconds=t.seconds,
    )  # fmt: skip
    return compare(t.dtype, out.read(stored(t.dtype)), np.concatenate(pieces))


@case("L2.allgather", "every type, equal parts", seconds=120)
def allgather(kit: Kit) -> None:
    sweep(kit, ALLGATHER, lambda t, n: _gather(t, [n] * t.comm.size, False))


@case("L2.allgatherv", "every type, uneven parts, some empty", seconds=120)
def allgatherv(kit: Kit) -> None:
    sweep(kit, ALLGATHER, lambda t, n: _gather(t, uneven(n, t.comm.size), True), varying=True)


def _exchange(t: Try, table: list[list[int]], varying: bool) -> str:
    """table[i][j]: elements from rank i to rank j."""
    me = t.comm.rank
    gives, gets = table[me], [row[me] for row in table]
    pieces = [sample(t.dtype, me, n, salt=to + 1) for to, n in enumerate(gives)]
    wanted = [sample(t.dtype, r, n, salt=me + 1) for r, n in enumerate(gets)]
    source, out = t.comm.space.of(np.concatenate(pieces), t.alignment), _out(t, sum(gets))
    t.comm.run(
        ALLTOALL, t.number, [source], [out], counts=[sum(gives)], in_counts=gives if varying else None,
        out_counts=gets if varying else None, seconds=t.seconds,
    )  # fmt: skip
    return compare(t.dtype, out.read(stored(t.dtype)), np.concatenate(wanted))


@case("L2.alltoall", "every type, equal parts", seconds=120)
def alltoall(kit: Kit) -> None:
    sweep(kit, ALLTOALL, lambda t, n: _exchange(t, [[n] * t.comm.size] * t.comm.size, False))


@case("L2.alltoallv", "every type, uneven parts, some empty", seconds=120)
def alltoallv(kit: Kit) -> None:
    def attempt(t: Try, count: int) -> str:
        size = t.comm.size
        return _exchange(
            t, [[(i * 3 + j + 1) % 4 * count // 2 for j in range(size)] for i in range(size)], True
        )

    sweep(kit, ALLTOALL, attempt, varying=True)


@case("L2.send_recv", "every type from each rank to the next", ranks=2, seconds=120)
def send_recv(kit: Kit) -> None:
    def attempt(t: Try, count: int) -> str:
        wrong = ""
        for turn in range(t.comm.size):
            to = (turn + 1) % t.comm.size
            value = sample(t.dtype, turn, count)
            if t.comm.rank == turn:
                source = t.comm.space.of(value, t.alignment)
                t.comm.run(SEND, t.number, ins=[source], counts=[count], peer=to, seconds=t.seconds)
            elif t.comm.rank == to:
                out = _out(t, count)
                t.comm.run(RECV, t.number, outs=[out], counts=[count], peer=turn, seconds=t.seconds)
                wrong = wrong or compare(t.dtype, out.read(stored(t.dtype)), value)
        return wrong

    sweep(kit, SEND, attempt)


@case("L2.barrier", "no rank passes before the last rank has entered")
def barrier(kit: Kit) -> None:
    for space in kit.spaces():
        comm = kit.comm(space)
        if kit.backend.query(BARRIER, 0, 0, kit.size).support == abi.UNSERVED:
            kit.row(f"barrier [{space.name}]", EMULATED, "by hvd-core")
            continue
        for turn in range(kit.size):
            if kit.rank == turn:
                kit.pause(0.02)
                kit.tell(f"came {space.kind} {turn}")
            comm.run(BARRIER, 0, how="poll" if turn % 2 else "wait", seconds=kit.limit(20))
            kit.expect(
                kit.hear(f"came {space.kind} {turn}", 0),
                f"a rank passed the barrier before rank {turn} had entered it",
            )
        kit.row(f"barrier [{space.name}]", NATIVE)
    if all(row.verdict == EMULATED for row in kit.rows):
        raise Composed("not declared; hvd-core composes it from an allreduce or allgather")
