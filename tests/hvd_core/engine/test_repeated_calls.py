"""Calls that are like earlier ones: the engine remembers their signatures. A call that differs in anything must not get
the signature of another one."""

import itertools

import numpy as np
import pytest

import hvd_core as hvd
from hvd_core._frontend.operations import ENGINE_NUMBERS

SHAPES = [(), (1,), (2,), (1, 2), (2, 1), (0,), (3, 5), (5, 3), (15,)]
DTYPES = [np.float32, np.int32, np.float64, np.uint8]
SETTINGS = [
    {"op": hvd.Sum},
    {"op": hvd.Max},
    {"op": hvd.Average},
    {"op": hvd.Sum, "prescale_factor": 2.0},
    {"op": hvd.Sum, "postscale_factor": 2.0},
]


def _expected(dtype, settings):
    total = hvd.size() * (hvd.size() + 1) // 2
    if settings["op"] == hvd.Max:
        return hvd.size()
    factor = settings.get("prescale_factor", 1) * settings.get("postscale_factor", 1)
    value = total * factor / (hvd.size() if settings["op"] == hvd.Average else 1)
    return np.array(value).astype(dtype)


@pytest.mark.ranks(2)
def test_calls_that_differ_in_one_thing_do_not_share_a_signature():
    """Three rounds, so that each call comes again after all others, with and without a name."""
    cases = list(itertools.product(SHAPES, DTYPES, SETTINGS))
    for turn, (number, (shape, dtype, settings)) in itertools.product(range(3), enumerate(cases)):
        x = np.full(shape, hvd.rank() + 1, dtype)
        result = hvd.allreduce(x, name=f"case.{number}" if turn != 1 else None, **settings)
        assert result.shape == shape and result.dtype == dtype, (shape, dtype, settings)
        assert (result == _expected(dtype, settings)).all(), (shape, dtype, settings, result)


@pytest.mark.ranks(2)
def test_groups_of_the_same_tensors_in_another_order_differ():
    a, b = np.ones(2, np.float32), np.ones(3, np.float32)
    for _ in range(3):
        for tensors in ([a, b], [b, a], [a], [a, a]):
            results = hvd.grouped_allreduce(tensors, op=hvd.Sum)
            assert [r.shape for r in results] == [t.shape for t in tensors]
            assert all((r == hvd.size()).all() for r in results)


@pytest.mark.ranks(2)
def test_a_disagreement_is_found_after_any_number_of_equal_calls():
    """Both signatures of the disagreement are known to their ranks."""
    short, long = np.ones(2, np.float32), np.ones(3, np.float32)
    for x in (short, long):
        for _ in range(5):
            assert (hvd.allreduce(x, op=hvd.Sum, name="x") == hvd.size()).all()
    with pytest.raises(hvd.HorovodInternalError, match=r"Mismatched ALLREDUCE tensor shapes"):
        hvd.allreduce(short if hvd.rank() else long, op=hvd.Sum, name="x")
    with pytest.raises(hvd.HorovodInternalError, match=r"Mismatched"):
        hvd.allreduce(short, op=hvd.Sum if hvd.rank() else hvd.Max, name="x")
    assert (hvd.allreduce(long, op=hvd.Sum, name="x") == hvd.size()).all()


@pytest.mark.ranks(2)
def test_an_output_of_another_shape_is_refused_although_the_call_is_known():
    core, total = hvd._runtime.runtime.engine(), ENGINE_NUMBERS[hvd.Sum]
    x, other = np.ones(2, np.float32), np.ones(3, np.float32)
    for _ in range(2):
        core.allreduce(x, x, "known", total, 1.0, 1.0, 0, True)
    with pytest.raises(ValueError, match="the shape and type of its input"):
        core.allreduce(x, other, "known", total, 1.0, 1.0, 0, True)
    hvd.barrier()
