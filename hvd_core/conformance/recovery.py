"""L4: communicators made repeatedly, in other sizes, after failures; leaks."""

from __future__ import annotations

import numpy as np

from hvd_core.conformance.abi import BROADCAST, OK
from hvd_core.conformance.cases import Kit, Sum, case, served
from hvd_core.conformance.comm import Comm
from hvd_core.conformance.leaks import SharedNames, leaked, settled
from hvd_core.conformance.numerics import NUMBERS, compare


def _use(kit: Kit, comm: Comm, turn: int) -> None:
    for count in (40, 20_000):
        step = Sum(kit, comm, count, turn)
        step.start(seconds=kit.limit(20)).wait()
        kit.expect(not step.wrong(), f"turn {turn}: {step.wrong()}")


@case(
    "L4.recreate",
    "50 communicators one after the other: no descriptors, threads, memory, store keys left",
    seconds=240,
)
def recreate(kit: Kit) -> None:
    turns = 20 if kit.quick else 50
    for space in kit.spaces():
        before, shared, kept = {}, SharedNames(), len(kit.backend.host.keys)
        for turn in range(turns):
            if turn == 5:
                before, shared = settled(), SharedNames()
                kit.meet()
            comm = kit.comm(space)
            shared.look()
            if turn < 3 or turn % 10 == 0:
                _use(kit, comm, turn)
            comm.finalize(kit.limit(20))
            kit.forget(comm)
            comm.destroy()
        left = leaked(before, turns - 5)
        kit.expect(not left, f"{turns - 5} communicators have leaked {left}")
        kit.meet()  # until the rank that removes a name has done so
        names = sorted(shared.left(turns - 5))
        kit.expect(
            not names, f"{turns - 5} communicators have left {len(names)} names in /dev/shm: {names[:3]}"
        )
        _check_keys(kit, kept)


def _check_keys(kit: Kit, since: int) -> None:
    """All keys that ranks put into the store were deleted, each by some rank."""
    kit.meet()
    all_keys = kit.share(kit.backend.host.keys[since:])
    put = {key for keys in all_keys for verb, key in keys if verb == "set"}
    gone = {key for keys in all_keys for verb, key in keys if verb == "del"}
    left = sorted(put - gone)
    kit.expect(not left, f"{len(left)} keys are left in the store, such as {left[0] if left else ''}")


@case("L4.resize", "communicators over fewer ranks, then over all ranks again, as in an elastic job", ranks=2)
def resize(kit: Kit) -> None:
    for space in kit.spaces():
        for turn, members in enumerate(
            (range(kit.size), range(kit.size - 1), range(kit.size), range(1, kit.size), range(kit.size))
        ):
            comm = kit.comm(space, list(members), tag=f"turn{turn}")
            if comm is not None:
                _use(kit, comm, turn)
                kit.forget(comm)
                comm.destroy()
            kit.meet()


@case("L4.alone", "a communicator of one rank: every operation is the identity")
def alone(kit: Kit) -> None:
    for space in kit.spaces():
        comm = kit.comm(space, [kit.rank], tag=f"of{kit.rank}")
        _use(kit, comm, 1)
        code, text = comm.async_error()
        kit.expect(code in (OK, 3), f"async_error: {text}")


@case("L4.split", "split makes communicators of parts of a communicator", ranks=2)
def split(kit: Kit) -> None:
    kit.need_comm()
    if not kit.backend.has("comm", "split"):
        kit.skip("the table has no split; hvd-core creates such communicators")
    for space in kit.spaces():
        parent = kit.comm(space)
        # Another order of ranks than the parent's, and not all of them.
        for members in ([kit.size - 1, 0], list(reversed(range(kit.size))), [kit.size - 1]):
            child = kit.comm(space, members, tag="split", parent=parent)
            if child is not None:
                _use(kit, child, 1)
                wrong = _first_member_is_root_0(kit, child)
                kit.expect(not wrong, f"members {members}: {wrong}")
            _use(kit, parent, 2)


def _first_member_is_root_0(kit: Kit, comm: Comm) -> str:
    caps = served(kit, BROADCAST, "uint8")
    if caps is None:
        return ""
    mine = np.full(64, comm.members[comm.rank], np.uint8)
    buffer = comm.space.of(mine, caps.alignment)
    comm.run(BROADCAST, NUMBERS["uint8"], [buffer], [buffer], counts=[64], root=0)
    return compare("uint8", buffer.read(), np.full(64, comm.members[0], np.uint8))
