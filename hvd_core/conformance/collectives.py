"""L2: the collectives that reduce."""

from __future__ import annotations

from hvd_core.conformance.abi import ALLREDUCE, REDUCE, REDUCESCATTER
from hvd_core.conformance.cases import Kit, case
from hvd_core.conformance.numerics import NUMBERS, OPS, compare, reduced, sample, stored
from hvd_core.conformance.sweep import Try, sweep


@case("L2.query", "all ranks get the same answers from query, with and without a communicator", ranks=2)
def query(kit: Kit) -> None:
    for space in kit.spaces():
        comm = kit.comm(space)
        for handle, whose in ((None, "no communicator"), (comm.handle, "a communicator")):
            answers = {}
            for coll in range(9):
                for dtype, number in NUMBERS.items():
                    for name, op in OPS.items():
                        for varying in (False, True):
                            caps = kit.backend.query(coll, number, op, kit.size, varying, handle)
                            asked = f"collective {coll}, {dtype}, {name}{', varying' if varying else ''}"
                            answers[asked] = [caps.support, caps.score, caps.alignment, caps.max_count]
            for rank, theirs in enumerate(kit.share(answers)):
                different = [asked for asked in answers if theirs[asked] != answers[asked]]
                kit.expect(
                    not different,
                    f"with {whose}, rank {rank} gets a different answer: {'; '.join(different[:2])}",
                )


def _check(t: Try, got, columns) -> str:
    value, allowed = reduced(t.dtype, t.op, columns)
    return compare(t.dtype, got, value, allowed)


def _buffers(t: Try, mine, elements: int):
    out = t.comm.space.region(elements * stored(t.dtype).itemsize, t.alignment)
    out.poison()
    return t.comm.space.of(mine, t.alignment), out


@case("L2.allreduce", "every type and reduction, out of place, the same bits on all ranks", seconds=180)
def allreduce(kit: Kit) -> None:
    def attempt(t: Try, count: int) -> str:
        columns = [sample(t.dtype, r, count) for r in range(t.comm.size)]
        source, out = _buffers(t, columns[t.comm.rank], count)
        t.comm.run(ALLREDUCE, t.number, [source], [out], op=t.op, counts=[count], seconds=t.seconds)
        got = out.read(stored(t.dtype))
        t.note_bits(got)
        changed = compare(t.dtype, source.read(stored(t.dtype)), columns[t.comm.rank])
        return _check(t, got, columns) or (changed and f"the input changed: {changed}")

    sweep(kit, ALLREDUCE, attempt, OPS, replicated=True)


@case("L2.reduce", "every type and reduction to every root", seconds=180)
def reduce(kit: Kit) -> None:
    def attempt(t: Try, count: int) -> str:
        columns = [sample(t.dtype, r, count) for r in range(t.comm.size)]
        wrong = ""
        for root in range(t.comm.size) if count == 17 else (t.comm.size - 1,):
            source, out = _buffers(t, columns[t.comm.rank], count)
            t.comm.run(
                REDUCE, t.number, [source], [out], op=t.op, counts=[count], root=root, seconds=t.seconds
            )
            got = out.read(stored(t.dtype))
            if t.comm.rank == root and not wrong:
                wrong = _check(t, got, columns)
                wrong = wrong and f"at root {root}: {wrong}"
        return wrong

    sweep(kit, REDUCE, attempt, OPS)


def _scatter(t: Try, parts: list[int], varying: bool) -> str:
    total, at = sum(parts), sum(parts[: t.comm.rank])
    columns = [sample(t.dtype, r, total) for r in range(t.comm.size)]
    source, out = _buffers(t, columns[t.comm.rank], parts[t.comm.rank])
    t.comm.run(
        REDUCESCATTER, t.number, [source], [out], op=t.op, counts=[total],
        out_counts=parts if varying else None, seconds=t.seconds,
    )  # fmt: skip
    return _check(t, out.read(stored(t.dtype)), [c[at : at + parts[t.comm.rank]] for c in columns])


@case("L2.reducescatter", "every type and reduction, equal parts", seconds=180)
def reducescatter(kit: Kit) -> None:
    sweep(kit, REDUCESCATTER, lambda t, n: _scatter(t, [n] * t.comm.size, False), OPS)


def uneven(count: int, size: int) -> list[int]:
    """A part for each rank, from count elements on average: none for the second rank, the more the later."""
    return [0 if r == 1 else count + 3 * r if count else 0 for r in range(size)]


@case("L2.reducescatterv", "every type and reduction, uneven parts, some empty", seconds=180)
def reducescatterv(kit: Kit) -> None:
    sweep(kit, REDUCESCATTER, lambda t, n: _scatter(t, uneven(n, t.comm.size), True), OPS, varying=True)
