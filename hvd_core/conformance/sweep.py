"""One collective over every element type and reduction, with the two-sided verdict.

Declared by query: it must be right. Not declared: it must be refused (hvd-core then composes it), or else be right all
the same; an OK with wrong values fails either way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import numpy as np

from hvd_core.conformance import abi
from hvd_core.conformance.backend import BackendFailure, code_name
from hvd_core.conformance.cases import Kit
from hvd_core.conformance.comm import Comm
from hvd_core.conformance.numerics import NUMBERS, OPS
from hvd_core.conformance.verdicts import EMULATED, FAIL, NATIVE, REFUSED, Composed, Failed

COUNTS = (0, 1, 17, 1023)
LARGE = 1_000_001
# The types that are tried with the large count; it is divided among the ranks where all parts come together.
LARGE_TYPES = {"sum": ("float32", "bfloat16", "float64", "int8"), "": ("float32", "uint8")}


class Try:
    """One combination of memory, collective and alignment. ``digests`` are compared across ranks."""

    def __init__(self, kit: Kit, comm: Comm, dtype: str, op: int, alignment: int, seconds: float) -> None:
        self.kit, self.comm, self.dtype, self.op = kit, comm, dtype, op
        self.number, self.alignment, self.seconds = NUMBERS[dtype], alignment, seconds
        self.digests: list[str] = []

    def note_bits(self, got: np.ndarray) -> None:
        """The bits that all ranks must have alike."""
        self.digests.append(hashlib.sha256(got.tobytes()).hexdigest()[:16])


Attempt = Callable[[Try, int], str]
_PARTED = (abi.ALLGATHER, abi.REDUCESCATTER, abi.ALLTOALL)


def sweep(
    kit: Kit, coll: int, attempt: Attempt, ops: Iterable[str] | None = None, varying: bool = False,
    replicated: bool = False,
) -> None:  # fmt: skip
    """Runs ``attempt(try, count)`` for all types and ``ops`` (None: the collective only moves). It returns "" or what is
    wrong, in step on all ranks. ``replicated``: results must be the same bits on all ranks.
    """
    digests: dict[str, list[str]] = {}
    served = asked = 0
    for space in kit.spaces():
        comm = kit.comm(space)
        for dtype in NUMBERS:
            for op in ops or ("",):
                what = " ".join(filter(None, (dtype, op, f"[{space.name}]")))
                # The answer for this communicator: without a communicator, query answers for the best case.
                caps = kit.backend.query(coll, NUMBERS[dtype], OPS.get(op, 0), kit.size, varying, comm.handle)
                if dtype == "bool" and op == "avg":
                    if caps.support != abi.UNSERVED:
                        kit.row(what, FAIL, "declared, but the ABI has no average of bool")
                    continue
                asked += 1
                if caps.support != abi.UNSERVED:
                    served += 1
                    digests[what] = _declared(kit, comm, coll, dtype, op, caps, attempt, what)
                else:
                    _undeclared(kit, comm, dtype, op, attempt, what)
    if replicated:
        _compare_bits(kit, digests)
    if not served and asked:
        raise Composed("not declared for any type; hvd-core composes it from other collectives")


def _counts(kit: Kit, dtype: str, op: str, max_count: int, per_rank: int) -> list[int]:
    counts = list(COUNTS)
    if not kit.quick and dtype in LARGE_TYPES.get(op, ()):
        counts.append(LARGE // per_rank | 1)
    return [c for c in counts if not max_count or c * per_rank <= max_count]


def _declared(kit, comm, coll, dtype, op, caps, attempt, what) -> list[str]:
    trial = Try(kit, comm, dtype, OPS.get(op, 0), caps.alignment, kit.limit(20))
    per_rank, first = kit.size if coll in _PARTED else 1, ""
    for count in _counts(kit, dtype, op, caps.max_count, per_rank):
        try:
            wrong = attempt(trial, count)
        except BackendFailure as problem:
            wrong = f"declared, but {problem}"
            if problem.code not in (abi.INVALID, abi.UNSUPPORTED) or problem.flags & abi.COMM_DEAD:
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
    by_backend = caps.support == abi.EMULATED
    kit.row(what, EMULATED if by_backend else NATIVE, "by the backend" if by_backend else "")
    return trial.digests


def _undeclared(kit, comm, dtype, op, attempt, what) -> None:
    trial = Try(kit, comm, dtype, OPS.get(op, 0), 64, kit.limit(5))
    try:
        wrong = attempt(trial, 17)
    except BackendFailure as problem:
        if problem.code not in (abi.INVALID, abi.UNSUPPORTED) or problem.flags & abi.COMM_DEAD:
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
