"""L2: marks that the host gives to a backend: operations that all ranks have agreed on, memory that is registered.

Neither mark may change a result.
"""

from __future__ import annotations

import ctypes as C

from hvd_core.conformance import abi
from hvd_core.conformance.abi import ALLGATHER, ALLREDUCE, BROADCAST, OK, SUM, UNSUPPORTED, P
from hvd_core.conformance.cases import Kit, at_most, case, plain_type, served
from hvd_core.conformance.comm import Comm
from hvd_core.conformance.memory import Region
from hvd_core.conformance.numerics import NUMBERS, compare, reduced, sample, stored


@case("L2.agreed", "operations marked HVD_COLL_AGREED: the same results, small and large", ranks=2)
def agreed(kit: Kit) -> None:
    dtype, alignment = plain_type(kit)
    for space in kit.spaces():
        comm = kit.comm(space)
        for turn, count in enumerate((1, 17, 40_000, 17, 0, 300_001)):
            count = at_most(kit, dtype, count)
            for how in ("wait", "poll"):
                wrong = _sum(comm, dtype, count, alignment, turn, how=how, flags=abi.COLL_AGREED)
                kit.expect(not wrong, f"allreduce of {count}: {wrong}")
            _move(kit, comm, dtype, count, turn)


def _sum(
    comm: Comm, dtype: str, count: int, alignment: int, salt: int, out: Region | None = None, **more
) -> str:
    """The fault of an allreduce's result, in words; in place in ``out`` where that is given."""
    columns = [sample(dtype, r, count, salt) for r in range(comm.size)]
    if out is None:
        source, out = (
            comm.space.of(columns[comm.rank], alignment),
            comm.space.region(columns[0].nbytes, alignment),
        )
        out.poison()
    else:
        source = out
        out.write(columns[comm.rank])
    comm.run(ALLREDUCE, NUMBERS[dtype], [source], [out], op=SUM, counts=[count], **more)
    return compare(dtype, out.read(stored(dtype)), *reduced(dtype, SUM, columns))


def _move(kit: Kit, comm: Comm, dtype: str, count: int, turn: int) -> None:
    """A broadcast and an allgather, where they are served."""
    for coll, parts in ((BROADCAST, 1), (ALLGATHER, kit.size)):
        caps = served(kit, coll, dtype)
        if caps is None or (caps.max_count and count * parts > caps.max_count):
            continue
        root = turn % kit.size
        columns = [sample(dtype, r, count, turn) for r in range(kit.size)]
        source = comm.space.of(columns[comm.rank], caps.alignment)
        out = comm.space.region(columns[0].nbytes * parts, caps.alignment)
        out.poison()
        comm.run(coll, NUMBERS[dtype], [source], [out], counts=[count], root=root, flags=abi.COLL_AGREED)
        got = out.read(stored(dtype))
        for part in range(parts):
            wanted = columns[part if parts > 1 else root]
            wrong = compare(dtype, got[part * count : (part + 1) * count], wanted)
            kit.expect(not wrong, f"{'broadcast' if parts == 1 else 'allgather'} of {count}: {wrong}")


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
                wrong = _sum(comm, dtype, count, alignment, salt, out=room)
                kit.expect(not wrong, f"turn {turn}, registered, in place: {wrong}")
            if code == OK:
                kit.backend.call("comm", "mem_deregister", comm.handle, handle)
            wrong = _sum(comm, dtype, count, alignment, turn, out=room)
            kit.expect(not wrong, f"turn {turn}, no longer registered: {wrong}")
