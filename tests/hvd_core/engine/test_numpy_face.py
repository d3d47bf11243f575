"""The NumPy API on real ranks, against NumPy in float64."""

import numpy as np
import pytest

import hvd_core as hvd
from harness.rank import await_told, expect, tell
from hvd_core._runtime import runtime

RANKS = pytest.mark.parametrize("ranks", [1, 2, 3, 4])


@pytest.mark.ranks(1, 2, 3, 4)
def test_operations():
    rank, size = hvd.rank(), hvd.size()
    everyone = [np.random.default_rng(r).normal(size=(3, 5)) for r in range(size)]
    for dtype, tolerance in (("float64", 1e-12), ("float32", 1e-5), ("float16", 2e-2)):
        mine = everyone[rank].astype(dtype)
        for op, expected in (
            (hvd.Sum, np.sum(everyone, 0)),
            (hvd.Average, np.mean(everyone, 0)),
            (hvd.Min, np.min(everyone, 0)),
            (hvd.Max, np.max(everyone, 0)),
            (hvd.Product, np.prod(everyone, 0)),
        ):
            got = hvd.allreduce(mine, op=op)
            assert got.dtype == mine.dtype and got.shape == mine.shape
            np.testing.assert_allclose(got.astype("f8"), expected, rtol=tolerance, atol=tolerance)
    assert mine is not got and np.array_equal(
        mine, everyone[rank].astype("float16")
    )  # the input is untouched

    scaled = hvd.allreduce(everyone[rank], op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    np.testing.assert_allclose(scaled, 1.5 * np.sum(everyone, 0))
    assert hvd.allreduce(np.int64(-3 * rank - 1), op=hvd.Average) == int(
        sum(-3 * r - 1 for r in range(size)) / size
    )
    assert hvd.allreduce(np.zeros((0, 4))).shape == (0, 4)

    rows = [np.full((r % 3, 2), r, dtype="int16") for r in range(size)]
    np.testing.assert_array_equal(hvd.allgather(rows[rank]), np.concatenate(rows))
    first, second = hvd.grouped_allgather([rows[rank], np.array([rank == 0])])
    np.testing.assert_array_equal(first, np.concatenate(rows))
    assert second.dtype == bool and second.tolist() == [r == 0 for r in range(size)]

    for root in range(size):
        np.testing.assert_array_equal(hvd.broadcast(everyone[rank], root), everyone[root])
    one, two = hvd.grouped_allreduce([everyone[rank], np.arange(4, dtype="int32") + rank], op=hvd.Sum)
    np.testing.assert_allclose(one, np.sum(everyone, 0))
    np.testing.assert_array_equal(two, size * np.arange(4) + size * (size - 1) // 2)
    hvd.barrier()


@pytest.mark.ranks(2)
def test_extension_dtype():
    rank = hvd.rank()
    pytest.importorskip("ml_dtypes", reason="bfloat16 arrays need ml_dtypes")
    import ml_dtypes

    x = np.full((2, 3), rank + 1.5, dtype=ml_dtypes.bfloat16)
    total = hvd.allreduce(x, op=hvd.Sum)
    assert total.dtype == x.dtype and (total == 4).all()
    gathered = hvd.allgather(x)
    assert gathered.dtype == x.dtype and gathered.astype("f8")[:, 0].tolist() == [1.5, 1.5, 2.5, 2.5]
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        moved = hvd.broadcast(np.full(3, rank + 1.5, dtype), 1)
        assert moved.dtype == dtype and moved.astype("f8").tolist() == [2.5] * 3


@pytest.mark.ranks(2, 3)
def test_disagreement_is_told_to_all_ranks():
    rank, size = hvd.rank(), hvd.size()
    others = "ranks 1, 2" if size == 3 else "rank 1"
    odd = rank > 0
    cases = [
        (
            lambda: hvd.allreduce(np.ones(3 + odd), name="a"),
            "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [3], but another rank sent a tensor of shape [4].",
        ),
        (
            lambda: hvd.allreduce(np.ones(3, dtype="f4" if odd else "f8"), name="a"),
            "Mismatched data types: One rank had type float64, but another rank had type float32.",
        ),
        (
            lambda: hvd.allreduce(np.ones(3), name="a", op=hvd.Min if odd else hvd.Sum),
            "Mismatched reduction operation: One rank sent reduction op Sum, but another rank sent reduction op Min.",
        ),
        (
            lambda: hvd.allreduce(np.ones(3), name="a", prescale_factor=2.0 if odd else 1.0),
            "Mismatched prescale and/or postscale factors: One rank sent factors (1, 1), but another rank sent factors (2, 1).",
        ),
        (
            lambda: hvd.broadcast(np.ones(3), root_rank=int(odd), name="a"),
            "Mismatched BROADCAST root ranks: One rank specified root rank 0, but another rank specified root rank 1.",
        ),
        (
            lambda: hvd.allgather(np.ones((2, 3 + odd)), name="a"),
            "Mismatched ALLGATHER tensor shapes: One rank sent a tensor with dimension 1 equal to 3, but another rank sent a tensor with dimension 1 equal to 4.",
        ),
        (
            lambda: hvd.allgather(np.ones((2, 3) if odd else 2), name="a"),
            "Mismatched ALLGATHER tensor shapes: One rank sent a tensor of rank 1, but another rank sent a tensor of rank 2.",
        ),
        (lambda: hvd.grouped_allreduce([np.ones(2)] * (2 + odd), name="a"), "Mismatched groups"),
        (lambda: hvd.allgather(np.float64(1), name="a"), "tried to ALLGATHER a rank-zero tensor"),
    ]
    for call, sentence in cases:
        for _again in range(2):
            text = expect(hvd.HorovodInternalError, call, sentence)
            if "Mismatched" in sentence:
                assert "rank 0:" in text and others + ":" in text, text
        assert (
            hvd.allreduce(np.ones(3), name="a", op=hvd.Sum).tolist() == [size] * 3
        )  # the name is usable again
    # Operations under one user's name are different tensors, as in Horovod; only the raw engine can mix them up.
    engine = runtime.engine()

    def mixed():
        x = np.ones(2)
        handle = engine.allreduce(x, x, "raw", 0) if odd else engine.broadcast(x, x, 0, "raw")
        engine.wait(handle)

    expect(
        hvd.HorovodInternalError,
        mixed,
        "Mismatched operations: One rank did an BROADCAST, but another rank did an ALLREDUCE.",
    )


@pytest.mark.ranks(3)
def test_local_errors_reach_the_peers():
    rank = hvd.rank()

    def bad():
        hvd.allreduce_(np.ones((4, 4)).T if rank == 1 else np.ones((4, 4)), name="x")

    if rank == 1:
        expect(ValueError, bad, "Tensor is required to be contiguous.")
    else:
        expect(hvd.HorovodInternalError, bad, "rank 1: Tensor is required to be contiguous.")
    assert hvd.allreduce(np.ones(2), name="x", op=hvd.Sum).tolist() == [3, 3]

    # The same without a name: the failed call takes the number it would have had.
    def unnamed():
        hvd.allreduce_(np.ones((4, 4)).T if rank == 1 else np.ones((4, 4)))

    if rank == 1:
        expect(ValueError, unnamed, "Tensor is required to be contiguous.")
    else:
        expect(hvd.HorovodInternalError, unnamed, "rank 1: Tensor is required to be contiguous.")
    assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [3, 3]

    def bad_root():
        hvd.broadcast(np.ones(2), 7, name="y")

    expect(ValueError, bad_root, "invalid root rank 7")
    expect(ValueError, lambda: hvd.allreduce(np.array(["a"]), name="z"), "is not supported")
    expect(ValueError, lambda: hvd.allreduce(np.ones(2, bool)), "Average of bool")
    hvd.barrier()
    assert hvd.broadcast(np.full(2, rank), 2, name="y").tolist() == [2, 2]


@pytest.mark.ranks(2)
def test_duplicate_names():
    rank = hvd.rank()
    # Both ranks repeat a name that is in flight: both hear of it, and the name works on.
    handle = hvd.allreduce_async(np.ones(3_000_000), name="big", op=hvd.Sum)
    try:
        again = hvd.allreduce_async(np.ones(3_000_000), name="big", op=hvd.Sum)
    except ValueError as error:
        assert "same name as another tensor" in str(error)
    else:
        try:  # the first was through already here, but perhaps not over there
            hvd.synchronize(again)
        except hvd.HorovodInternalError as error:
            assert "same name as another tensor" in str(error)
    assert hvd.synchronize(handle)[0] == 2
    assert hvd.allreduce(np.ones(2), name="big", op=hvd.Sum).tolist() == [2, 2]

    # Only one rank does: the n-th call here meets the n-th call there, so the other's next call fails, not hangs.
    if rank == 1:
        await_told("refused")  # so that rank 0's tensor is still waiting
    handle = hvd.allreduce_async(np.ones(2), name="d", op=hvd.Sum)
    if rank == 0:
        expect(ValueError, lambda: hvd.allreduce_async(np.ones(2), name="d"), "same name as another tensor")
        tell("refused")
    assert hvd.synchronize(handle).tolist() == [2, 2]
    if rank == 1:
        expect(
            hvd.HorovodInternalError,
            lambda: hvd.allreduce(np.ones(2), name="d"),
            "rank 0: Requested to allreduce",
        )
    assert hvd.allreduce(np.ones(2), name="d", op=hvd.Sum).tolist() == [2, 2]
    hvd.barrier()


@pytest.mark.ranks(2)
def test_before_init_and_after_shutdown():
    size = hvd.size()
    for _ in range(3):
        assert hvd.allreduce(np.ones(1), op=hvd.Sum) == size
        hvd.shutdown()
        for call in (
            hvd.rank,
            hvd.size,
            hvd.local_rank,
            hvd.cross_size,
            lambda: hvd.allreduce(np.ones(1)),
            hvd.barrier,
        ):
            expect(ValueError, call, "Horovod has not been initialized; use hvd.init().")
        assert not hvd.is_initialized()
        hvd.shutdown()
        hvd.init()
        hvd.init()


@pytest.mark.ranks(3)
def test_join_with_uneven_data():
    rank, size = hvd.rank(), hvd.size()
    for step in range(2 + 2 * rank):
        x = np.array([1.0, step])
        total = hvd.allreduce(x, name=f"s{step % 2}", op=hvd.Sum)
        here = sum(step < 2 + 2 * r for r in range(size))
        assert total.tolist() == [here, here * step], (step, total)
        assert hvd.allreduce(x, op=hvd.Min).tolist() == [1, step]
        assert hvd.allreduce(x, op=hvd.Product).tolist() == [1, step**here]
        assert len(hvd.allgather(x)) == 2 * here
    assert hvd.join() == 2, "the rank that joined last"
    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == 3


@pytest.mark.ranks(2)
def test_results_that_the_engine_allocates_are_writable():
    size = hvd.size()
    for dtype in (np.float32, np.float16, np.bool_, np.int8, np.uint64, np.complex64):
        mine = np.ones((size, 3), dtype)
        results = [hvd.allgather(mine), hvd.alltoall(mine), *hvd.grouped_allgather([mine, mine])]
        results += hvd.grouped_alltoall([mine], [[1] * size])[0]
        for result in results:
            result[...] = 0
            assert result.dtype == dtype and not result.any()
    empty = hvd.allgather(np.ones((0, 2)))
    assert empty.shape == (0, 2) and empty.flags.writeable
