"""Ranks that ask for different things: what is told, and whether the communicator survives it."""

import numpy as np
import pytest

from abi_ctypes import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    COMM_DEAD,
    INVALID,
    MAX,
    REMOTE,
    SUM,
)
from table_driver import failure

pytestmark = pytest.mark.timeout(120)


def disagree(comm, kind, survives):
    a, big = np.ones(8, np.float32), np.ones(400_000, np.float32)
    first = comm.rank == 0
    split = [big[:5], big[5:]] if first else [big[:6], big[6:]]
    parts = [4] * comm.size
    if comm.rank != comm.size - 1:
        parts[-1] += 1 + comm.rank
    gets = [1] * (comm.size - 1) + [2 if first else 1]

    def sized(this, other):
        x = this if first else other
        comm.run(ALLREDUCE, [x], [x])

    cases = {
        "dtype": lambda: comm.run(ALLREDUCE, [a if first else a.view(np.int32)], [np.zeros_like(a)]),
        "op": lambda: comm.run(ALLREDUCE, [a], [a], op=SUM if first else MAX),
        "count": lambda: sized(a, a[:7]),
        "size": lambda: sized(a, big),
        "big": lambda: sized(big[1:], big),
        "collective": lambda: comm.run(BARRIER) if first else comm.run(BROADCAST, [big], [big]),
        "root": lambda: comm.run(BROADCAST, [a], [a], root=comm.rank % 2),
        "factor": lambda: comm.run(ALLREDUCE, [a], [a], pre=1.0 + comm.rank),
        "split": lambda: comm.run(ALLREDUCE, split, split),
        "parts": lambda: comm.run(ALLGATHER, [a[:4]], [big[: sum(parts)]], counts=[4], out_counts=parts),
        "sizes": lambda: comm.run(
            ALLTOALL, [a[: comm.size]], [big[: sum(gets)]], in_counts=[1] * comm.size, out_counts=gets
        ),
    }

    def attempt():
        cases[kind]()
        # Two that both believe to be the root only send; they meet the other's message in the next operation.
        comm.run(BARRIER)

    error = failure(attempt)
    assert "rank" in error.text
    if survives:
        assert error.code == INVALID and error.flags == 0, str(error)
        for n in (3, 50_000):
            x = np.full(n, comm.rank, np.float32)
            comm.run(ALLREDUCE, [x], [x])
            assert (x == comm.size * (comm.size - 1) / 2).all()
    else:
        # A rank that has found out may be gone before another has heard why.
        assert error.code in (INVALID, REMOTE) and error.flags == COMM_DEAD, str(error)
        assert failure(comm.run, BARRIER).code == error.code
    return error.code, error.text


KINDS = ["dtype", "op", "count", "size", "big", "collective", "root", "factor", "split", "parts", "sizes"]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_disagreement_is_told(ranks, backend_name, kind, size):
    """shm compares before it moves anything, so nothing is harmed; tcp ends the communicator."""
    answers = ranks(size, disagree, kind, backend_name == "shm")
    assert INVALID in [code for code, _ in answers]
    if kind == "op":
        assert any("allreduce sum" in text and "allreduce max" in text for _, text in answers), answers
