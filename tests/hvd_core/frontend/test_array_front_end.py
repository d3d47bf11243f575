"""The front end of docs/write-a-front-end.md works, and its mistakes reach the other ranks."""

from array import array

import pytest

import array_front_end as hvd
import hvd_core
from harness.rank import expect


@pytest.mark.ranks(2)
def test_operations():
    me, ranks = hvd.rank(), hvd.size()
    total = sum(range(ranks))
    assert hvd.allreduce_(array("d", [me, 1]), "a", op=hvd.Sum) == array("d", [total, ranks])
    assert hvd.synchronize(hvd.allreduce_async_(array("f", [2.0]))) == array("f", [2.0])
    group = hvd.grouped_allreduce_([array("i", [me]), array("f", [1.5])], op=hvd.Max)
    assert group == [array("i", [ranks - 1]), array("f", [1.5])]
    assert hvd.allgather(array("l", [me] * me)) == array("l", [r for r in range(ranks) for _ in range(r)])
    assert hvd.broadcast_object({"from": me}, root_rank=ranks - 1) == {"from": ranks - 1}
    assert not hvd._pending


@pytest.mark.ranks(2)
def test_a_mistake_on_one_rank_fails_the_call_of_the_others():
    right, told = array("f", [1.0]), "failed before it was submitted on rank 0"
    for wrong, reason in (
        (lambda: hvd.allreduce_([1.0], "b"), "An array.array is required"),
        (lambda: hvd.allreduce_(array("I", [1]), "b"), "not supported. Reductions take"),
        (lambda: hvd.allreduce_(right, "b", op=17), "Unknown reduce op"),
    ):
        if hvd.rank() == 0:
            expect(ValueError, wrong, reason)
        else:
            expect(hvd_core.HorovodInternalError, lambda: hvd.allreduce_(right, "b"), told)
        assert hvd.allreduce_(array("f", [1.0]), "b") == array("f", [1.0])
    if hvd.rank() == 0:
        expect(ValueError, lambda: hvd.grouped_allreduce_(right, "c"), "takes a list of tensors")
    else:
        expect(hvd_core.HorovodInternalError, lambda: hvd.grouped_allreduce_([right], "c"), told)
    assert hvd.allreduce_(array("f", [1.0])) == array("f", [1.0])


def test_before_init():
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.allreduce_(array("f", [1.0]))


def test_exports():
    assert all(hasattr(hvd, name) for name in hvd.__all__)
