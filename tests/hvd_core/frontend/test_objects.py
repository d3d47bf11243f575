"""Objects that travel between ranks (horovod.common.objects), and objects that cannot."""

import threading

import pytest

import hvd_core as hvd
from harness.rank import expect
from horovod.common.objects import allgather_object, broadcast_object
from hvd_core.errors import HorovodInternalError


@pytest.mark.ranks(2)
def test_an_object_that_cannot_be_pickled_fails_the_call_on_all_ranks():
    rank = hvd.rank()
    for call in (broadcast_object, allgather_object):
        error = TypeError if rank == 0 else HorovodInternalError
        expect(error, lambda call=call: call(threading.Lock() if rank == 0 else None), "pickle")
        # The next call of the same name meets the other ranks' next call.
        assert call(rank) == {broadcast_object: 0, allgather_object: [0, 1]}[call]


@pytest.mark.ranks(2)
def test_a_reason_with_surrogates_reaches_the_other_ranks():
    class Unreadable:
        def __reduce__(self):
            raise ValueError("no file named caf\udce9")

    rank = hvd.rank()
    error = ValueError if rank == 0 else HorovodInternalError
    expect(error, lambda: broadcast_object(Unreadable() if rank == 0 else None), "no file named caf")
    hvd.barrier()
