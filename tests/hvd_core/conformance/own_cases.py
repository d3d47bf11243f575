"""Cases that are no part of the kit: what a vendor may add, and ways in which one can go wrong."""

import os
import signal
import time

from hvd_core.conformance import case


@case("X.adds_up", "a case of one's own")
def adds_up(kit):
    for space in kit.spaces():
        comm = kit.comm(space)
        kit.expect(comm.size == kit.size, "the communicator has another size")
    kit.note("ranks", str(kit.size))


@case("X.hangs", "one rank never comes back", seconds=5)
def hangs(kit):
    if kit.rank == 1:
        time.sleep(600)


@case("X.dies", "one rank is gone")
def dies(kit):
    if kit.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)


@case("X.raises", "one rank finds something wrong")
def raises(kit):
    kit.expect(kit.rank != 1, "rank 1 does not like it")


@case("X.stumbles", "a mistake in the case itself")
def stumbles(kit):
    return {}["nothing"]


@case("X.cannot", "not here", ranks=2)
def cannot(kit):
    kit.skip("there is no such thing on this machine")


@case("X.needs_many", "more ranks than there are", ranks=64)
def needs_many(kit):
    raise AssertionError("never run")
