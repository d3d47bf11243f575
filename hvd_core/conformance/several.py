"""L2: several at once: lists of buffers, groups of collectives, communicators over parts of the ranks."""

from __future__ import annotations

import numpy as np

from hvd_core.conformance import abi
from hvd_core.conformance.abi import ALLGATHER, ALLREDUCE, AVG, BROADCAST, MAX, MIN, PROD, SUM
from hvd_core.conformance.cases import Kit, case, served
from hvd_core.conformance.comm import Comm
from hvd_core.conformance.numerics import (
    NUMBERS,
    compare,
    reduced,
    sample,
    stored,
)
from hvd_core.conformance.rules import allreduce
from hvd_core.conformance.verdicts import EMULATED, FAIL, NATIVE, Composed


@case("L2.vectored", "lists of many buffers of all sizes, some of them empty", ranks=2)
def vectored(kit: Kit) -> None:
    if not kit.backend.caps & abi.CAP_VECTORED:
        kit.need_comm()
        raise Composed("VECTORED is not declared; hvd-core packs lists into one buffer")
    dtype = next((d for d in ("float32", "int32", "uint8") if served(kit, ALLREDUCE, d)), None)
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
            what = f"{len(lengths)} buffers of {min(lengths)} to {max(lengths)} [{space.name}]"
            if dtype:
                _reduce_list(kit, comm, dtype, lengths, what)
            _broadcast_list(kit, comm, lengths, what)


def _reduce_list(kit: Kit, comm: Comm, dtype: str, lengths: list[int], what: str) -> None:
    alignment = served(kit, ALLREDUCE, dtype).alignment
    columns = [[sample(dtype, r, n, salt=i) for i, n in enumerate(lengths)] for r in range(comm.size)]
    ins = [comm.space.of(c, alignment) for c in columns[comm.rank]]
    outs = [comm.space.region(r.nbytes, alignment) for r in ins]
    for out in outs:
        out.poison()
    comm.run(ALLREDUCE, NUMBERS[dtype], ins, outs, op=SUM, counts=lengths)
    wrong = ""
    for i, out in enumerate(outs):
        wrong = wrong or compare(
            dtype, out.read(stored(dtype)), *reduced(dtype, SUM, [c[i] for c in columns])
        )
        wrong = wrong and f"buffer {i}: {wrong}"
    kit.row(f"allreduce of {what}", FAIL if wrong else NATIVE, wrong)


def _broadcast_list(kit: Kit, comm: Comm, lengths: list[int], what: str) -> None:
    caps = served(kit, BROADCAST, "uint8")
    if caps is None:
        return
    root = comm.size - 1
    values = [sample("uint8", root, n, salt=i) for i, n in enumerate(lengths)]
    buffers = [comm.space.region(n, caps.alignment) for n in lengths]
    for buffer, value in zip(buffers, values):
        buffer.poison()
        if comm.rank == root:
            buffer.write(value)
    comm.run(BROADCAST, NUMBERS["uint8"], buffers, buffers, counts=lengths, root=root)
    bad = [i for i, (b, v) in enumerate(zip(buffers, values)) if compare("uint8", b.read(), v)]
    kit.row(f"broadcast of {what}", FAIL if bad else NATIVE, f"buffers {bad[:5]} are wrong" if bad else "")


@case("L2.groups", "several collectives between group_begin and group_end", ranks=2)
def groups(kit: Kit) -> None:
    kit.need_comm()
    caps = kit.backend.caps
    if not caps & (abi.CAP_GROUP_SAME | abi.CAP_GROUP_MIXED):
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
            if len(kinds) > 1 and not caps & abi.CAP_GROUP_MIXED:
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
    calls, wanted = [], []
    for i, coll in enumerate(kinds):
        count = 50 * i + (i % 3)
        columns = [sample(dtype, r, count, salt=i) for r in range(comm.size)]
        alignment = served(kit, coll, dtype).alignment
        out = comm.space.region(columns[0].nbytes * (comm.size if coll == ALLGATHER else 1), alignment)
        out.poison()
        call = {"coll": coll, "dtype": NUMBERS[dtype], "outs": [out], "counts": [count]}
        calls.append({**call, "ins": [comm.space.of(columns[comm.rank], alignment)], "root": i % comm.size})
        if coll == ALLREDUCE:
            wanted.append(reduced(dtype, SUM, columns))
        else:
            wanted.append((columns[i % comm.size] if coll == BROADCAST else np.concatenate(columns), None))
    for pending in comm.group(calls):
        pending.wait()
    for i, (call, (value, allowed)) in enumerate(zip(calls, wanted)):
        wrong = compare(dtype, call["outs"][0].read(stored(dtype)), value, allowed)
        if wrong:
            return f"call {i} of {len(calls)}: {wrong}"
    return ""


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
    alignment = served(kit, ALLREDUCE, dtype).alignment
    even, odd = list(range(0, kit.size, 2)), list(range(1, kit.size, 2))
    mine = even if kit.rank in even else odd
    for space in kit.spaces():
        all_ranks = kit.comm(space)
        half = kit.comm(space, mine, tag=f"of{mine[0]}")
        backwards = kit.comm(space, list(reversed(range(kit.size))))
        for turn in range(5):
            for comm in (half, all_ranks, backwards, half):
                columns = [sample(dtype, m, 100 + turn) for m in comm.members]
                got = allreduce(comm, dtype, columns[comm.rank], (SUM, PROD, MIN, MAX, AVG)[0], alignment)
                wrong = compare(dtype, got, *reduced(dtype, SUM, columns))
                kit.expect(not wrong, f"set {comm.members}: {wrong}")
        if served(kit, BROADCAST, dtype):
            value = sample(dtype, 77, 64)
            buffer = space.of(
                value if backwards.rank == 0 else value * 0, served(kit, BROADCAST, dtype).alignment
            )
            backwards.run(BROADCAST, NUMBERS[dtype], [buffer], [buffer], counts=[64], root=0)
            wrong = compare(dtype, buffer.read(stored(dtype)), value)
            kit.expect(
                not wrong,
                f"root 0 of a set in reverse order is its first member, global rank {kit.size - 1}: {wrong}",
            )
