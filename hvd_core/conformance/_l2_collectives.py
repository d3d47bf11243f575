"""L2: each collective over every element type and reduction, with the two-sided verdict.

Declared by query: it must be right. Not declared: it must be refused (hvd-core then composes it), or else be right all
the same; an OK with wrong values fails either way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hvd_core.conformance import _abi
from hvd_core.conformance._abi import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    RECV,
    REDUCE,
    REDUCESCATTER,
    SEND,
)
from hvd_core.conformance._backend import BackendFailure, code_name
from hvd_core.conformance._cases import Kit, Operation, case
from hvd_core.conformance._comm import Comm
from hvd_core.conformance._numerics import NUMBERS, OPS, compare, sample, stored
from hvd_core.conformance._verdicts import EMULATED, FAIL, NATIVE, REFUSED, Composed, Failed

COUNTS = (0, 1, 17, 1023)
LARGE = 1_000_001
# The types that are tried with the large count; it is divided among the ranks where all parts come together.
LARGE_TYPES = {"sum": ("float32", "bfloat16", "float64", "int8"), "": ("float32", "uint8")}


class Try:
    """One combination of memory, type and alignment. ``digests`` are compared across ranks."""

    def __init__(self, kit: Kit, comm: Comm, dtype: str, op: int, alignment: int, seconds: float) -> None:
        self.kit, self.comm, self.dtype, self.op = kit, comm, dtype, op
        self.alignment, self.seconds = alignment, seconds
        self.digests: list[str] = []

    def note_bits(self, got: np.ndarray) -> None:
        """The bits that all ranks must have alike."""
        self.digests.append(hashlib.sha256(got.tobytes()).hexdigest()[:16])

    def operation(self, coll: int, lengths: list[int], **more: Any) -> Operation:
        """A collective of samples, of ``lengths[rank]`` elements each."""
        inputs = [sample(self.dtype, r, n) for r, n in enumerate(lengths)]
        return Operation(self.comm, coll, self.dtype, inputs, op=self.op, alignment=self.alignment, **more)


Attempt = Callable[[Try, int], str]
_PARTED = (_abi.ALLGATHER, _abi.REDUCESCATTER, _abi.ALLTOALL)


def sweep(
    kit: Kit, coll: int, attempt: Attempt, ops: Iterable[str] | None = None, varying: bool = False,
    replicated: bool = False,
) -> None:  # fmt: skip
    """Runs ``attempt(try, count)`` for all types and ``ops`` (None: the collective only moves). It returns "" or what is
    wrong, in step on all ranks. ``replicated``: results must be the same bits on all ranks.
    """
    digests: dict[str, list[str]] = {}
    served = queried = 0
    for space in kit.spaces():
        comm = kit.comm(space)
        for dtype in NUMBERS:
            for op in ops or ("",):
                what = " ".join(filter(None, (dtype, op, f"[{space.name}]")))
                # The answer for this communicator: without a communicator, query answers for the best case.
                caps = kit.backend.query(coll, NUMBERS[dtype], OPS.get(op, 0), kit.size, varying, comm.handle)
                if dtype == "bool" and op == "avg":
                    if caps.support != _abi.UNSERVED:
                        kit.row(what, FAIL, "declared, but the ABI has no average of bool")
                    continue
                queried += 1
                if caps.support != _abi.UNSERVED:
                    served += 1
                    digests[what] = _declared(kit, comm, coll, dtype, op, caps, attempt, what)
                else:
                    _undeclared(kit, comm, dtype, op, attempt, what)
    if replicated:
        _compare_bits(kit, digests)
    if not served and queried:
        raise Composed("not declared for any type; hvd-core composes it from other collectives")


def _counts(kit: Kit, dtype: str, op: str, max_count: int, per_rank: int) -> list[int]:
    counts = list(COUNTS)
    if not kit.quick and dtype in LARGE_TYPES.get(op, ()):
        counts.append(LARGE // per_rank | 1)
    return [c for c in counts if not max_count or c * per_rank <= max_count]


def _declared(
    kit: Kit, comm: Comm, coll: int, dtype: str, op: str, caps: _abi.CollCaps, attempt: Attempt, what: str
) -> list[str]:
    trial = Try(kit, comm, dtype, OPS.get(op, 0), caps.alignment, kit.limit(20))
    per_rank, first = kit.size if coll in _PARTED else 1, ""
    for count in _counts(kit, dtype, op, caps.max_count, per_rank):
        try:
            wrong = attempt(trial, count)
        except BackendFailure as problem:
            wrong = f"declared, but {problem}"
            if problem.code not in (_abi.INVALID, _abi.UNSUPPORTED) or problem.flags & _abi.COMM_DEAD:
                kit.row(what, FAIL, f"with {count} elements: {wrong}")
                raise
        except Failed as problem:
            kit.row(what, FAIL, f"with {count} elements: {problem}")
            raise
        # Another rank may have the right result and continue, so this rank continues too.
        first = first or (wrong and f"with {count} elements: {wrong}")
    if first:
        kit.row(what, FAIL, first)
        return []
    by_backend = caps.support == _abi.EMULATED
    kit.row(what, EMULATED if by_backend else NATIVE, "by the backend" if by_backend else "")
    return trial.digests


def _undeclared(kit: Kit, comm: Comm, dtype: str, op: str, attempt: Attempt, what: str) -> None:
    trial = Try(kit, comm, dtype, OPS.get(op, 0), 64, kit.limit(5))
    try:
        wrong = attempt(trial, 17)
    except BackendFailure as problem:
        if problem.code not in (_abi.INVALID, _abi.UNSUPPORTED) or problem.flags & _abi.COMM_DEAD:
            kit.row(
                what, FAIL, f"not declared, and refused in a way that ends the communicator: {code_name(problem.code)}; "
                f"it must answer UNSUPPORTED. {problem.text}",
            )  # fmt: skip
            raise
        composed = not (op and dtype.startswith("float8"))
        kit.row(what, EMULATED if composed else REFUSED, "by hvd-core" if composed else "not served")
        return
    if wrong:
        kit.row(what, FAIL, f"not declared, yet answered OK with wrong values: {wrong}")
    else:
        kit.row(what, EMULATED, "by hvd-core, although the backend serves it: query does not declare it")


def _compare_bits(kit: Kit, digests: dict[str, list[str]]) -> None:
    all_digests = kit.share(digests)
    for what, mine in digests.items():
        others = [
            r for r, theirs in enumerate(all_digests) if theirs.get(what) and mine and theirs[what] != mine
        ]
        if others:
            kit.row(what, FAIL, f"the bits differ from those of rank {others[0]}")


# ---- collectives that reduce ------------------------------------------------------------------------------------------


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
                            question = f"collective {coll}, {dtype}, {name}{', varying' if varying else ''}"
                            answers[question] = [caps.support, caps.score, caps.alignment, caps.max_count]
            for rank, theirs in enumerate(kit.share(answers)):
                different = [question for question in answers if theirs[question] != answers[question]]
                kit.expect(
                    not different,
                    f"with {whose}, rank {rank} gets a different answer: {'; '.join(different[:2])}",
                )


@case("L2.allreduce", "every type and reduction, out of place, the same bits on all ranks", seconds=180)
def allreduce(kit: Kit) -> None:
    def attempt(t: Try, count: int) -> str:
        operation = t.operation(ALLREDUCE, [count] * t.comm.size)
        t.note_bits(operation.complete(seconds=t.seconds))
        changed = compare(t.dtype, operation.source.read(stored(t.dtype)), operation.inputs[t.comm.rank])
        return operation.wrong() or (changed and f"the input changed: {changed}")

    sweep(kit, ALLREDUCE, attempt, OPS, replicated=True)


@case("L2.reduce", "every type and reduction to every root", seconds=180)
def reduce(kit: Kit) -> None:
    def attempt(t: Try, count: int) -> str:
        first = ""
        for root in range(t.comm.size) if count == 17 else (t.comm.size - 1,):
            wrong = t.operation(REDUCE, [count] * t.comm.size, root=root).check(seconds=t.seconds)
            first = first or (wrong and f"at root {root}: {wrong}")
        return first

    sweep(kit, REDUCE, attempt, OPS)


def _scatter(t: Try, parts: list[int], varying: bool) -> str:
    lengths = [sum(parts)] * t.comm.size
    return t.operation(REDUCESCATTER, lengths, parts=parts, varying=varying).check(seconds=t.seconds)


@case("L2.reducescatter", "every type and reduction, equal parts", seconds=180)
def reducescatter(kit: Kit) -> None:
    sweep(kit, REDUCESCATTER, lambda t, n: _scatter(t, [n] * t.comm.size, False), OPS)


def uneven(count: int, size: int) -> list[int]:
    """A part for each rank, from count elements on average: none for the second rank, the more the later."""
    return [0 if r == 1 else count + 3 * r if count else 0 for r in range(size)]


@case("L2.reducescatterv", "every type and reduction, uneven parts, some empty", seconds=180)
def reducescatterv(kit: Kit) -> None:
    sweep(kit, REDUCESCATTER, lambda t, n: _scatter(t, uneven(n, t.comm.size), True), OPS, varying=True)


# ---- collectives that only move data ----------------------------------------------------------------------------------


@case("L2.broadcast", "every type from every root, in and out of place", seconds=120)
def broadcast(kit: Kit) -> None:
    def attempt(t: Try, count: int) -> str:
        first = ""
        for root in range(t.comm.size) if count == 17 else (0,):
            for in_place, form in ((False, ""), (True, "in place, ")):
                made = t.operation(BROADCAST, [count] * t.comm.size, root=root, in_place=in_place)
                wrong = made.check(seconds=t.seconds)
                first = first or (wrong and f"{form}root {root}: {wrong}")
        return first

    sweep(kit, BROADCAST, attempt)


def _gather(t: Try, parts: list[int], varying: bool) -> str:
    return t.operation(ALLGATHER, parts, varying=varying).check(seconds=t.seconds)


@case("L2.allgather", "every type, equal parts", seconds=120)
def allgather(kit: Kit) -> None:
    sweep(kit, ALLGATHER, lambda t, n: _gather(t, [n] * t.comm.size, False))


@case("L2.allgatherv", "every type, uneven parts, some empty", seconds=120)
def allgatherv(kit: Kit) -> None:
    sweep(kit, ALLGATHER, lambda t, n: _gather(t, uneven(n, t.comm.size), True), varying=True)


def _exchange(t: Try, parts: list[list[int]], varying: bool) -> str:
    """parts[i][j]: elements from rank i to rank j."""
    inputs = [
        np.concatenate([sample(t.dtype, r, n, salt=to + 1) for to, n in enumerate(gives)])
        for r, gives in enumerate(parts)
    ]
    made = Operation(t.comm, ALLTOALL, t.dtype, inputs, alignment=t.alignment, parts=parts, varying=varying)
    return made.check(seconds=t.seconds)


@case("L2.alltoall", "every type, equal parts", seconds=120)
def alltoall(kit: Kit) -> None:
    sweep(kit, ALLTOALL, lambda t, n: _exchange(t, [[n] * t.comm.size] * t.comm.size, False))


@case("L2.alltoallv", "every type, uneven parts, some empty", seconds=120)
def alltoallv(kit: Kit) -> None:
    def attempt(t: Try, count: int) -> str:
        ranks = range(t.comm.size)
        return _exchange(t, [[(i * 3 + j + 1) % 4 * count // 2 for j in ranks] for i in ranks], True)

    sweep(kit, ALLTOALL, attempt, varying=True)


@case("L2.send_recv", "every type from each rank to the next", ranks=2, seconds=120)
def send_recv(kit: Kit) -> None:
    def attempt(t: Try, count: int) -> str:
        wrong, number = "", NUMBERS[t.dtype]
        for turn in range(t.comm.size):
            to = (turn + 1) % t.comm.size
            value = sample(t.dtype, turn, count)
            if t.comm.rank == turn:
                source = t.comm.space.of(value, t.alignment)
                t.comm.run(SEND, number, ins=[source], counts=[count], peer=to, seconds=t.seconds)
            elif t.comm.rank == to:
                out = t.comm.space.region(value.nbytes, t.alignment)
                out.poison()
                t.comm.run(RECV, number, outs=[out], counts=[count], peer=turn, seconds=t.seconds)
                wrong = wrong or compare(t.dtype, out.read(stored(t.dtype)), value)
        return wrong

    sweep(kit, SEND, attempt)


@case("L2.barrier", "no rank passes before the last rank has entered")
def barrier(kit: Kit) -> None:
    for space in kit.spaces():
        comm = kit.comm(space)
        if kit.backend.query(BARRIER, 0, 0, kit.size).support == _abi.UNSERVED:
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
