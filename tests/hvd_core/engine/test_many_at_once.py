"""The fast entry of an allreduce, for one tensor and for many in one call."""

import numpy as np
import pytest

import hvd_core as hvd
from harness.rank import expect
from hvd_core import HorovodInternalError
from hvd_core._frontend.operations import ENGINE_NUMBERS
from hvd_core._runtime.current_job import engine

SUM = ENGINE_NUMBERS[hvd.Sum]


def allreduce_each(core, arrays, names, postscale=1.0):
    handles = []
    core.try_allreduce_each(arrays, names, SUM, 1.0, postscale, 0, handles)
    return handles


@pytest.mark.ranks(2)
def test_each_tensor_is_an_operation_of_its_own():
    core, rank = engine(), hvd.rank()
    for _ in range(6):  # the fourth time they are a known batch
        arrays = [np.full(n, rank + 1.0) for n in (1, 7, 100_000)]
        handles = allreduce_each(core, arrays, [f"allreduce.a{n}" for n in range(3)], 2.0)
        assert len(set(handles)) == 3
        core.wait_many(handles)
        assert all((array == 6).all() for array in arrays)
        core.release_each(handles)
        assert not any(core.known(handle) for handle in handles)
    assert allreduce_each(core, [], []) == []
    expect(ValueError, lambda: allreduce_each(core, [arrays[0]], []), "as many names")


@pytest.mark.ranks(2)
def test_a_mistake_is_that_of_one_tensor():
    core, rank = engine(), hvd.rank()
    names = ["allreduce.one", "allreduce.two", "allreduce.three"]
    arrays = [np.ones(3), np.ones(4) if rank else "no tensor", np.ones(5)]
    if rank:
        hvd.barrier()  # rank 0 has called: its first tensor cannot be done before its fourth one comes
        handles = allreduce_each(core, arrays, names)
        text = expect(HorovodInternalError, lambda: core.wait(handles[1]))
        assert "expected a NumPy array" in text
    else:
        handles = allreduce_each(core, [*arrays, np.ones(3)], [*names, names[0]])
        hvd.barrier()
        assert handles[1] is None  # it needs the general entry, which reports the mistake to rank 1
        expect(
            TypeError,
            lambda: core.allreduce("no tensor", "no tensor", names[1], SUM),
            "expected a NumPy array",
        )
        # The name is in use: that call fails here, and counts.
        assert isinstance(handles[3], ValueError) and "same name" in str(handles[3]), handles[3]
    for i in (0, 2):
        core.wait(handles[i])
        assert (arrays[i] == 2).all()
    core.release_each([handle for handle in handles if isinstance(handle, int)])
    if rank:
        (handle,) = allreduce_each(core, [np.ones(3)], names[:1])
        assert "same name" in expect(HorovodInternalError, lambda: core.wait(handle))
        core.release(handle)
    assert (hvd.allreduce_(np.ones(2), op=hvd.Sum) == 2).all()


@pytest.mark.ranks(1)
def test_arguments_of_allreduce():
    core, array = engine(), np.ones(3)
    core.allreduce(array, array, None, SUM, 1.0, 1.0, 0, True)
    core.allreduce(array, array, "a name", SUM, 1.0, 4.0, 0, True)
    assert (array == 4).all()
    handle = core.allreduce(array, array, None, SUM)
    core.wait(handle)
    core.release(handle)
    for arguments, part in [
        ((array, array, None), "takes 4 to 8 arguments"),
        ((array,) * 9, "takes 4 to 8 arguments"),
        ((array, array, None, "plus"), "op must be"),
        ((array, array, 7, SUM), "name must be a str or None"),
    ]:
        expect(TypeError, lambda: core.allreduce(*arguments), part)
    expect(TypeError, lambda: type(core).allreduce(7, array, array, None, SUM))


@pytest.mark.ranks(1)
def test_the_fast_entry_takes_what_needs_no_conversion():
    core, array = engine(), np.ones(3)
    some = (SUM, 1.0, 1.0, 0, True)
    assert core.try_allreduce(array, np.empty(3), "a name", *some) == 0
    read_only = np.ones(3)
    read_only.flags.writeable = False
    assert core.try_allreduce(read_only, np.empty(3), None, *some) == 0
    for arguments in [
        (array, read_only, None, *some),
        (read_only, read_only, None, *some),
        (np.ones((3, 3))[:, 1], array, None, *some),
        (array.astype(">f8"), array, None, *some),
        ("no tensor", array, None, *some),
        (array, array, 7, *some),
        (array, array, None, "plus", 1.0, 1.0, 0, True),
        (array, array, None, SUM, 2, 1.0, 0, True),
        (array, array, None, SUM, 1.0, None, 0, True),
        (array, array, None, SUM, 1.0, 1.0, 2**40, True),
        (array, array, None, SUM, 1.0, 1.0, 0, 1),
    ]:
        assert core.try_allreduce(*arguments) is None
    expect(TypeError, lambda: core.try_allreduce(array, array), "takes 8 arguments")
    expect(TypeError, lambda: type(core).try_allreduce(7, array, array, None, *some))


@pytest.mark.ranks(2)
def test_calls_like_earlier_ones_and_unlike_them():
    rank = hvd.rank()
    for dtype, op, factor in [
        (np.float32, hvd.Sum, 1.0),
        (np.float32, hvd.Max, 1.0),
        (np.int64, hvd.Sum, 1.0),
        (np.float32, hvd.Sum, 0.5),
        (np.float32, hvd.Sum, 1.0),
    ]:
        for name in ("same", None):
            for _ in range(3):
                array = np.full((2, 3), rank + 1, dtype)
                hvd.allreduce_(array, name=name, op=op, prescale_factor=factor)
                assert (array == (2 if op == hvd.Max else 3 * factor)).all()
    # Ranks that disagree after many calls that were alike, then agree again; and a mistake after calls like it.
    array = np.ones(2 + rank)
    text = expect(HorovodInternalError, lambda: hvd.allreduce_(array, name="same", op=hvd.Sum))
    assert "Mismatched ALLREDUCE tensor shapes" in text
    assert (hvd.allreduce_(np.ones(4), name="same", op=hvd.Sum) == 2).all()
    expect(ValueError, lambda: hvd.allreduce_(np.ones((4, 4))[:, 1], name="same"), "contiguous")
    assert (hvd.allreduce_(np.ones(4), op=hvd.Sum) == 2).all()
