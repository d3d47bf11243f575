"""The calls of the NumPy API for the words of a program's signatures, their data, and the expected results.

Data depend on rank, key and round, so that no two operations could be mistaken for each other; rows that may differ
from rank to rank do. Expectations are NumPy's (tests/hvd_core/engine/expected.py). Any thread.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np

import expected
from ideal import Round


class Call(NamedTuple):
    kind: str
    op: str  # reduction, or ""
    dtypes: list[np.dtype]
    counts: list[int]  # elements, or the second dimension where rows vary
    root: int


def parse(sig: str) -> Call:
    kind, *words = sig.split(" ")
    if kind == "barrier":
        return Call(kind, "", [], [], 0)
    if kind == "grouped_allreduce":
        members = [word.split(":") for word in words[1:]]
        return Call(kind, words[0], [np.dtype(t) for t, _ in members], [int(n) for _, n in members], 0)
    first = words.pop(0) if kind in ("allreduce", "reducescatter", "broadcast") else ""
    root = int(first) if kind == "broadcast" else 0
    return Call(kind, "" if kind == "broadcast" else first, [np.dtype(words[0])], [int(words[1])], root)


def splits(key: tuple, n: tuple, rank: int, ranks: tuple[int, ...]) -> list[int]:
    """Rows that a rank sends to each rank of the set."""
    return [_number(key, n, rank, to) % 4 for to in ranks]


def inputs(call: Call, key: tuple, n: tuple, rank: int, ranks: tuple[int, ...]) -> list[np.ndarray]:
    """What a rank gives to an operation."""
    shapes: list[Any] = list(call.counts)
    if call.kind == "allgather":
        shapes = [(_number(key, n, rank, -1) % 4, call.counts[0])]
    elif call.kind == "alltoall":
        shapes = [(sum(splits(key, n, rank, ranks)), call.counts[0])]
    return [
        expected.sample(dtype, rank, shape, _number(key, n, i, -2) % 1000)
        for i, (dtype, shape) in enumerate(zip(call.dtypes, shapes, strict=True))
    ]


def wrong(round_: Round, rank: int, got: list[np.ndarray]) -> str:
    """The fault in a rank's results of an executed round, in words; empty when they are right."""
    ranks = round_.ranks
    call = parse(next(iter(round_.said.values()))[1])
    given = {r: inputs(call, round_.key, n, r, ranks) for r, (n, _) in round_.said.items()}
    for i, result in enumerate(got):
        columns = [given[r][i] for r in sorted(given)]
        wanted, tolerance = _expected(call, round_, columns, rank)
        if result.dtype != columns[0].dtype:
            return f"{result.dtype} instead of {columns[0].dtype}"
        if said := expected.difference(result, wanted, tolerance):
            return f"{round_.key}, round {round_.said.get(rank)}: {said}"
    return ""


def _expected(call: Call, round_: Round, columns: list[np.ndarray], rank: int) -> tuple[np.ndarray, float]:
    ranks, said = round_.ranks, sorted(round_.said)
    me = ranks.index(rank)
    if call.kind in ("allreduce", "grouped_allreduce"):
        return expected.reduced(call.op, columns, divisor=len(ranks))
    if call.kind == "reducescatter":
        value, tolerance = expected.reduced(call.op, columns, divisor=len(ranks))
        share, more = divmod(len(value), len(ranks))
        begin = me * share + min(me, more)
        return value[begin : begin + share + (me < more)], tolerance
    if call.kind == "broadcast":
        return expected.broadcast(said.index(call.root), columns).arrays[0], 0.0
    if call.kind == "allgather":
        return expected.allgather(columns).arrays[0], 0.0
    rows = [splits(round_.key, round_.said[r][0], r, ranks) for r in said]
    parts = [np.split(column, np.cumsum(row))[me] for column, row in zip(columns, rows, strict=True)]
    return expected.allgather(parts).arrays[0], 0.0


def _number(*what: Any) -> int:
    return zlib.crc32(repr(what).encode())
