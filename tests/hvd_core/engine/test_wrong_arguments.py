"""Arguments of the wrong type or value on one rank: that rank hears what is wrong, the others that it failed there.

Without it they would wait for a call that never comes.
"""

import numpy as np
import pytest

import hvd_core as hvd
from harness.rank import expect


class Foreign:
    """An array in memory of another device."""

    def __dlpack__(self, **_):
        raise BufferError("far memory")

    def __dlpack_device__(self):
        return (2, 0)


def _plan(**n):
    """What one rank does instead of the call that all make, with the error it gets, by the call."""
    x = np.ones((2, 2))
    read_only = np.ones(2)
    read_only.flags.writeable = False
    some = {"op": hvd.Sum}
    return [
        (
            lambda: hvd.allreduce(x, **n, **some),
            [
                (ValueError, lambda: hvd.allreduce(x, **n, op=17), "Unknown reduce op"),
                (ValueError, lambda: hvd.allreduce(x, **n, op=[]), "Unknown reduce op"),
                (TypeError, lambda: hvd.allreduce(x, **n, **some, prescale_factor="big"), "prescale_factor"),
                (TypeError, lambda: hvd.allreduce(x, **n, **some, postscale_factor=None), "postscale_factor"),
                (BufferError, lambda: hvd.allreduce(Foreign(), **n, **some), "far memory"),
                (ValueError, lambda: hvd.allreduce(np.array(["text"]), **n, **some), "not supported"),
                (ValueError, lambda: hvd.allreduce_(x, **n, op="Sum"), "Unknown reduce op"),
                (TypeError, lambda: hvd.allreduce_("text", **n, **some), "expected a NumPy array"),
            ],
        ),
        (
            lambda: hvd.grouped_allreduce([x], **n, **some),
            [
                (TypeError, lambda: hvd.grouped_allreduce(5, **n, **some), "not iterable"),
                (ValueError, lambda: hvd.grouped_allreduce([], **n, **some), "at least one tensor"),
                (TypeError, lambda: hvd.grouped_allreduce_(5, **n, **some), "not iterable"),
            ],
        ),
        (
            lambda: hvd.allgather(x, **n),
            [
                (BufferError, lambda: hvd.allgather(Foreign(), **n), "far memory"),
                (TypeError, lambda: hvd.allgather(np.array([object()]), **n), ""),
            ],
        ),
        (
            lambda: hvd.broadcast(x, 0, **n),
            [
                (TypeError, lambda: hvd.broadcast(x, None, **n), "root_rank must be a rank"),
                (TypeError, lambda: hvd.broadcast(x, 2**40, **n), "root_rank must be a rank"),
                (ValueError, lambda: hvd.broadcast(x, -1, **n), "invalid root rank"),
                (ValueError, lambda: hvd.broadcast_(read_only, 0, **n), "read-only"),
                (BufferError, lambda: hvd.broadcast(Foreign(), 0, **n), "far memory"),
            ],
        ),
        (
            lambda: hvd.alltoall(x, **n),
            [
                (ValueError, lambda: hvd.alltoall(x, 5, **n), "1D splits"),
                (ValueError, lambda: hvd.alltoall(x, [0.5, 1], **n), "32-bit integer"),
                (TypeError, lambda: hvd.alltoall(x, [2**70, 1], **n), "splits must be"),
                (ValueError, lambda: hvd.alltoall(x, [1], **n), "Number of entries"),
                (ValueError, lambda: hvd.alltoall(x, [-1, 1], **n), "negative"),
            ],
        ),
        (
            lambda: hvd.reducescatter(x, **n, **some),
            [
                (ValueError, lambda: hvd.reducescatter(x, **n, op=None), "Unknown reduce op"),
                (ValueError, lambda: hvd.reducescatter(np.float32(1), **n, **some), "scalar"),
                (TypeError, lambda: hvd.reducescatter(x, **n, **some, prescale_factor=[]), "prescale_factor"),
                (BufferError, lambda: hvd.reducescatter(Foreign(), **n, **some), "far memory"),
            ],
        ),
    ]


@pytest.mark.ranks(2)
def test_the_others_hear_of_it():
    rank, turn = hvd.rank(), 0
    for extra in ({}, {"name": "n"}):
        for right, wrong in _plan(**extra):
            for kind, call, part in wrong:
                turn += 1
                if rank == turn % 2:
                    expect(kind, call, part)
                else:
                    text = f"failed before it was submitted on rank {1 - rank}"
                    expect(hvd.HorovodInternalError, right, text)
            right()


@pytest.mark.ranks(2)
def test_unnamed_adasum_meets_unnamed_allreduce():
    """Both are calls of allreduce: ranks that disagree about the reduction hear it."""
    rank = hvd.rank()

    def call():
        return hvd.allreduce(np.ones(2), op=hvd.Adasum if rank else hvd.Sum)

    expect(hvd.HorovodInternalError, call, "Mismatched operations", "ALLREDUCE", "ADASUM")
    assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [2, 2]


@pytest.mark.ranks(3, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})
def test_a_factor_is_refused_only_where_joined_ranks_take_part():
    rank = hvd.rank()
    pair = hvd.add_process_set([0, 1])
    if rank < 2:
        hvd.add_process_set([2])  # complete once rank 2 has joined
        for op in (hvd.Min, hvd.Max, hvd.Product):
            out = hvd.allreduce(np.ones(2), op=op, prescale_factor=2.0, process_set=pair)
            assert out.tolist() == ([4, 4] if op == hvd.Product else [2, 2])

            def call():
                return hvd.allreduce(np.ones(2), op=op, prescale_factor=3.0)

            expect(hvd.HorovodInternalError, call, "is not supported while ranks have joined")
    hvd.join()
