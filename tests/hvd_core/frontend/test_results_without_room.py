"""Memory is tight on one rank: the result of a call cannot be allocated there. No rank waits for ever.

Where the front end allocates the result, before it submits the call, that call fails on all ranks and the job goes on.
Where the engine allocates it, in the middle of the operation, the other ranks may be in the data exchange already: the
job ends, with this cause on all ranks (docs/architecture.md, Failure).
"""

import resource
from contextlib import contextmanager, suppress

import numpy as np
import pytest

import hvd_core as hvd
from harness.installed import is_installed
from harness.rank import expect
from hvd_core.errors import JobEndedError, OperationFailedError

ROOM, NEEDED = 16 << 20, 96 << 20  # bytes


@contextmanager
def little_room():
    """This process gets no more than ROOM bytes of memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))
    freed = []  # what earlier checks have freed, and the process has kept
    try:
        with suppress(MemoryError):
            while True:
                freed.append(np.empty(NEEDED // 2, np.uint8))  # the size of a reducescatter's result
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def on_rank_0_without_room(here, there, call, *parts):
    """call() raises `here` on rank 0, which has no room, and `there` on the other ranks."""
    if hvd.rank() == 0:
        with little_room():
            expect(here, call)
    else:
        expect(there, call, "rank 0", *parts)


@pytest.mark.ranks(2)
def test_a_result_that_numpy_cannot_allocate():
    x = np.ones(NEEDED // 4, np.float32)
    for call in (hvd.allreduce, hvd.reducescatter, lambda x: hvd.broadcast(x, 0)):
        on_rank_0_without_room(MemoryError, OperationFailedError, lambda call=call: call(x), "allocate")
        assert hvd.allreduce(x[:2], op=hvd.Sum).tolist() == [2, 2]


@pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")
@pytest.mark.ranks(2, framework="torch")
def test_a_result_that_torch_cannot_allocate():
    import torch

    import horovod.torch as ht

    x = torch.ones(NEEDED // 4)
    for call in (ht.allreduce, lambda x: ht.grouped_allreduce([x]), lambda x: ht.broadcast(x, 0)):
        on_rank_0_without_room(RuntimeError, OperationFailedError, lambda call=call: call(x), "allocate")
        assert ht.allreduce(x[:2], op=ht.Sum).tolist() == [2, 2]


@pytest.mark.parametrize("operation", ["allgather", "alltoall"])
@pytest.mark.ranks(2)
def test_a_result_that_the_engine_cannot_allocate(operation):
    x = np.ones(NEEDED // 4, np.float32)
    call = getattr(hvd, operation)
    on_rank_0_without_room(JobEndedError, JobEndedError, lambda: call(x), "out of memory")
    expect(JobEndedError, lambda: hvd.allreduce(x[:2]))
