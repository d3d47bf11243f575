"""The operations of horovod.mxnet; values are compared with NumPy's."""

import ctypes
import warnings

import numpy as np

from harness.rank import expect
from mxnet_support import hvd, mx, on_mxnet

pytestmark = [on_mxnet(2), on_mxnet(1, slow=True)]

REDUCIBLE = ["uint8", "int8", "int32", "int64", "float16", "float32", "float64"]
MOVABLE = [*REDUCIBLE, "bool"]
SHAPES = [(1,), (17,), (5, 7), (2, 3, 4, 5)]
COMBINE = {
    "Sum": lambda parts: parts.sum(0),
    "Average": lambda parts: parts.sum(0) / len(parts),
    "Min": lambda parts: parts.min(0),
    "Max": lambda parts: parts.max(0),
    "Product": lambda parts: parts.prod(0),
}
TOLERANCE = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}


def values_of(rank, shape, dtype="float32", seed=0):
    """The array that a rank contributes: small integers, so that sums of a few ranks are exact in every type."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 7 + rank * 3 + seed) % 5 + 1).reshape(shape).astype(dtype)


def mine(shape, dtype="float32", seed=0):
    return mx.nd.array(values_of(hvd.rank(), shape, dtype, seed), dtype=dtype)


def same(found, wanted, dtype="float32"):
    assert np.dtype(found.dtype) == dtype and found.shape == wanted.shape
    wanted = np.asarray(wanted, np.float64)
    if dtype not in TOLERANCE:
        wanted = np.trunc(wanted)
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(
        found.asnumpy().astype(np.float64), wanted, rtol=0, atol=TOLERANCE.get(dtype, 0) * scale
    )


def reduced(op, shape, dtype="float32", seed=0, ranks=None):
    parts = [values_of(r, shape, dtype, seed) for r in ranks or range(hvd.size())]
    return COMBINE[op](np.stack(parts).astype(np.float64))


def test_allreduce():
    for dtype in REDUCIBLE:
        for op in COMBINE:
            for shape in SHAPES:
                same(hvd.allreduce(mine(shape, dtype), op=getattr(hvd, op)), reduced(op, shape, dtype), dtype)
                tensor = mine(shape, dtype)
                assert hvd.allreduce_(tensor, op=getattr(hvd, op), name=f"in_place.{dtype}") is tensor
                same(tensor, reduced(op, shape, dtype), dtype)


def test_groups():
    dtypes = ["float32", "int32", "float64"]
    tensors = [mine((3, i + 1), dtype, seed=i) for i, dtype in enumerate(dtypes)]
    found = hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group")
    for i, dtype in enumerate(dtypes):
        same(found[i], reduced("Sum", (3, i + 1), dtype, i), dtype)
        same(tensors[i], values_of(hvd.rank(), (3, i + 1), dtype, i), dtype)
    assert all(a is b for a, b in zip(hvd.grouped_allreduce_(tensors), tensors))
    same(tensors[2], reduced("Average", (3, 3), "float64", 2), "float64")
    for _ in range(2):
        expect(ValueError, lambda: hvd.grouped_allreduce_([tensors[0], tensors[0]]), "lie in the same memory")
    assert hvd.grouped_allreduce([]) == [] and hvd.grouped_allgather([]) == []
    gathered = hvd.grouped_allgather([mine((2, 3)), mine((hvd.rank() + 1,), "int64")])
    same(gathered[0], np.concatenate([values_of(r, (2, 3)) for r in range(hvd.size())]))
    same(gathered[1], np.concatenate([values_of(r, (r + 1,)) for r in range(hvd.size())]), "int64")
    scattered = hvd.grouped_reducescatter(
        [mine((2 * hvd.size(), 3)), mine((hvd.size(),), "int32")], op=hvd.Sum
    )
    same(scattered[0], reduced("Sum", (2 * hvd.size(), 3))[2 * hvd.rank() : 2 * hvd.rank() + 2])
    same(scattered[1], reduced("Sum", (hvd.size(),))[hvd.rank() : hvd.rank() + 1], "int32")


def test_factors_and_average():
    same(
        hvd.allreduce(mine((4,)), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        1.5 * reduced("Sum", (4,)),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same(hvd.allreduce(mine((4,)), average=False), reduced("Sum", (4,)))
        same(hvd.allreduce(mine((4,)), True), reduced("Average", (4,)))
        same(hvd.grouped_allreduce([mine((4,))], False)[0], reduced("Sum", (4,)))
    ours = [w.filename for w in caught if "`average`" in str(w.message)]
    assert ours == [__file__] * 3
    expect(ValueError, lambda: hvd.allreduce(mine((4,)), True, op=hvd.Sum), "supersedes")


@on_mxnet(2, 3)
def test_moves():
    for dtype in MOVABLE:
        rows = mine((hvd.rank() + 1, 3), dtype)
        same(
            hvd.allgather(rows, name=dtype),
            np.concatenate([values_of(r, (r + 1, 3), dtype) for r in range(hvd.size())]),
            dtype,
        )
        tensor = mine((4, 2), dtype)
        same(hvd.broadcast(tensor, hvd.size() - 1), values_of(hvd.size() - 1, (4, 2), dtype), dtype)
        same(tensor, values_of(hvd.rank(), (4, 2), dtype), dtype)
        assert hvd.broadcast_(tensor, 0) is tensor
        same(tensor, values_of(0, (4, 2), dtype), dtype)
        parts = [
            values_of(r, (2 * hvd.size(), 3), dtype)[2 * hvd.rank() : 2 * hvd.rank() + 2]
            for r in range(hvd.size())
        ]
        same(hvd.alltoall(mine((2 * hvd.size(), 3), dtype)), np.concatenate(parts), dtype)


@on_mxnet(2, 3)
def test_alltoall_with_splits():
    counts = [r + 1 for r in range(hvd.size())]
    sent = mine((sum(counts), 2))
    start = sum(counts[: hvd.rank()])
    wanted = np.concatenate(
        [values_of(r, (sum(counts), 2))[start : start + hvd.rank() + 1] for r in range(hvd.size())]
    )
    for splits in (counts, mx.nd.array(counts, dtype="int32")):
        output, received = hvd.alltoall(sent, splits)
        same(output, wanted)
        assert received.asnumpy().tolist() == [hvd.rank() + 1] * hvd.size() and received.dtype == np.int32
    # Rank 0 gets all rows, the others none.
    output, received = hvd.alltoall(mine((2, 3)), [2] + [0] * (hvd.size() - 1))
    assert output.shape == (2 * hvd.size() if hvd.rank() == 0 else 0, 3)


@on_mxnet(2, 3)
def test_reducescatter():
    shape = (2 * hvd.size() + 1, 3)
    rows = slice(0, 3) if hvd.rank() == 0 else slice(2 * hvd.rank() + 1, 2 * hvd.rank() + 3)
    for dtype in REDUCIBLE:
        for op in COMBINE:
            same(
                hvd.reducescatter(mine(shape, dtype), op=getattr(hvd, op)),
                reduced(op, shape, dtype)[rows],
                dtype,
            )
    expect(AssertionError, lambda: hvd.reducescatter(mine(shape), op=hvd.Adasum), "has no op Adasum")
    with mx.util.np_shape(True):
        expect(ValueError, lambda: hvd.reducescatter(mx.nd.zeros(())), "does not support scalar")


def test_adasum():
    tensor = mx.nd.array(np.eye(hvd.size(), 4)[hvd.rank()])  # orthogonal: Adasum is the sum
    same(hvd.allreduce(tensor, op=hvd.Adasum), np.eye(hvd.size(), 4).sum(0))


def test_numpy_arrays_of_mxnet():
    """mx.np.ndarray, with scalars and empty arrays, which MXNet has in this mode only."""
    with mx.util.np_shape(True), mx.util.np_array(True):
        scalar = hvd.allreduce(mx.np.array(hvd.rank() + 1.0), op=hvd.Sum)
        assert isinstance(scalar, mx.np.ndarray) and scalar.shape == ()
        assert float(scalar) == hvd.size() * (hvd.size() + 1) / 2
        rows = hvd.allgather(mx.np.ones((hvd.rank(), 2)))
        assert isinstance(rows, mx.np.ndarray) and rows.shape == (sum(range(hvd.size())), 2)
        empty = mx.np.zeros((0, 3))
        assert hvd.broadcast_(empty, 0).shape == (0, 3)


@on_mxnet(3)
def test_process_sets():
    last = hvd.add_process_set([hvd.size() - 1])
    first = hvd.add_process_set([0, 1])
    if hvd.rank() < 2:
        found = hvd.allreduce(mine((3,)), op=hvd.Sum, process_set=first)
        same(found, reduced("Sum", (3,), ranks=range(2)))
    if hvd.rank() == hvd.size() - 1:
        same(hvd.allreduce(mine((3,)), op=hvd.Sum, process_set=last), values_of(hvd.rank(), (3,)))
        same(hvd.broadcast(mine((3,)), hvd.rank(), process_set=last), values_of(hvd.rank(), (3,)))
        same(hvd.allgather(mine((3,)), process_set=last), values_of(hvd.rank(), (3,)))
    assert hvd.remove_process_set(last)
    expect(ValueError, lambda: hvd.allreduce(mine((3,)), process_set=last), "not been registered")


def _address(array):
    found = ctypes.c_void_p()
    assert mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(found)) == 0
    return found.value


def test_memory_is_mxnets():
    """In place nothing is copied or allocated; a slice is reduced within its array."""
    tensor = mine((1000,))
    before = _address(tensor)
    hvd.allreduce_(tensor, op=hvd.Sum)
    assert _address(tensor) == before
    hvd.allreduce_(tensor[10:20], op=hvd.Sum)
    wanted = reduced("Sum", (1000,))
    wanted[10:20] *= hvd.size()
    same(tensor, wanted)


def test_waits_for_what_mxnet_computes():
    """MXNet computes on its own threads: inputs are awaited, and so are reads of arrays that are overwritten."""
    size = 400
    factor = mx.nd.ones((size, size)) / size
    for _ in range(10):
        late = mx.nd.full((size, size), hvd.rank() + 1.0)
        for _ in range(5):
            late = mx.nd.dot(late, factor)
        reads = mx.nd.dot(late, factor)
        hvd.allreduce_(late, op=hvd.Sum)
        np.testing.assert_allclose(late.asnumpy(), hvd.size() * (hvd.size() + 1) / 2, rtol=1e-4)
        np.testing.assert_allclose(reads.asnumpy(), hvd.rank() + 1.0, rtol=1e-4)


def test_objects():
    assert (
        hvd.broadcast_object({"rank": hvd.rank(), "w": [1, 2]}, root_rank=hvd.size() - 1)["rank"]
        == hvd.size() - 1
    )
    assert hvd.allgather_object(("a" * hvd.rank(), hvd.rank())) == [("a" * r, r) for r in range(hvd.size())]


def test_wrong_arguments_fail_everywhere():
    """A mistake of the last rank is an error on all ranks, at once, and says whose mistake it was."""
    wrong = {
        "no array": (lambda: hvd.allreduce([1.0, 2.0], name="e1"), "NDArray is required", "e1", mine((2,))),
        "sparse": (
            lambda: hvd.allreduce(mx.nd.ones((2, 2)).tostype("row_sparse"), name="e2"),
            "storage type row_sparse",
            "e2",
            mine((2, 2)),
        ),
        "type": (
            lambda: hvd.allreduce(mine((2,), "bool"), name="e3"),
            "Tensor type bool is not supported",
            "e3",
            mine((2,)),
        ),
        "op": (lambda: hvd.allreduce(mine((2,)), op=99, name="e4"), "Unknown reduce op", "e4", mine((2,))),
        "failed work": (
            lambda: hvd.allreduce(mx.nd.random.normal(0, -1, (2,)), name="e5"),
            "",
            "e5",
            mine((2,)),
        ),
    }
    for call, text, name, right in wrong.values():
        if hvd.rank() == hvd.size() - 1:
            kind = mx.base.MXNetError if not text else ValueError
            expect(kind, call, text)
        else:
            expect(hvd.HorovodInternalError, lambda n=name, t=right: hvd.allreduce(t, name=n), text)


@on_mxnet(2)
def test_mismatch_names_the_ranks():
    text = expect(hvd.HorovodInternalError, lambda: hvd.allreduce(mine((2 + hvd.rank(),)), name="unequal"))
    assert "unequal" in text and "rank 0" in text and "rank 1" in text
