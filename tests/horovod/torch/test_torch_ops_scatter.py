"""Checks of alltoall and reducescatter beyond the matrix, of mistakes in every operation, of 8-bit floats and Adasum. Run
on every rank by tests/harness."""

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from torch_support import data_of, expect, raises

pytestmark = pytest.mark.ranks(1, 3, framework="torch")

FLOAT8 = torch.float8_e5m2 if hasattr(torch, "float8_e5m2") else torch.bool

# Each operation with a tensor, with a name and without.
OPERATIONS = {
    "allreduce": lambda t, name=None, **how: hvd.allreduce(t, name=name, **how),
    "allreduce_": lambda t, name=None, **how: hvd.allreduce_(t, name=name, **how),
    "grouped_allreduce": lambda t, name=None, **how: hvd.grouped_allreduce([t], name=name, **how),
    "reducescatter": lambda t, name=None, **how: hvd.reducescatter(t, name=name, **how),
    "grouped_reducescatter": lambda t, name=None, **how: hvd.grouped_reducescatter([t], name=name, **how),
    "allgather": lambda t, name=None, **how: hvd.allgather(t, name=name, **how),
    "grouped_allgather": lambda t, name=None, **how: hvd.grouped_allgather([t], name=name, **how),
    "broadcast": lambda t, name=None, **how: hvd.broadcast(t, how.pop("root_rank", 0), name=name, **how),
    "alltoall": lambda t, name=None, **how: hvd.alltoall(t, name=name, **how),
}
REDUCING = [name for name in OPERATIONS if "reduce" in name]


def still_works():
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="still.works")) == hvd.size()
    assert all(float(call(torch.ones(hvd.size()))[0].sum()) > 0 for call in (hvd.allgather, hvd.alltoall))
    assert not hvd.mpi_ops._handle_map, hvd.mpi_ops._handle_map


def fails_everywhere(operation, tensor, *fragments, **how):
    """A disagreement, twice under one name, which is free again afterwards."""
    for _ in range(2):
        if hvd.size() == 1:
            OPERATIONS[operation](tensor, name="differs", **how)
        else:
            with raises(HorovodInternalError, *fragments):
                OPERATIONS[operation](tensor, name="differs", **how)
    still_works()


def refused_on_rank_0(operation, bad, *fragments, kind=ValueError, **how):
    """Rank 0 makes a mistake, the others do not: the call fails on all ranks, with the reason; named and unnamed."""
    for name in ("mistaken", None):
        if hvd.rank() == 0:
            with raises(kind, *fragments):
                OPERATIONS[operation](bad, name=name, **how)
        else:
            with raises(HorovodInternalError, *fragments):
                OPERATIONS[operation](torch.ones(hvd.size(), 2), name=name)
        OPERATIONS[operation](torch.ones(hvd.size(), 2), name=name)
    still_works()


def test_ranks_that_differ():
    for operation in OPERATIONS:
        kinds = torch.ones(hvd.size(), dtype=torch.float32 if hvd.rank() == 0 else torch.int32)
        fails_everywhere(operation, kinds, "Mismatched data types", "float32", "int32")
        fails_everywhere(
            operation, torch.ones([hvd.size()] * (1 + min(hvd.rank(), 1))), "Mismatched", "shape"
        )
        fails_everywhere(operation, torch.ones(hvd.size(), 3 + hvd.rank()), "Mismatched", "shape")
    for operation in REDUCING:
        op = hvd.Sum if hvd.rank() == 0 else hvd.Average
        fails_everywhere(operation, torch.ones(hvd.size()), "Mismatched", "reduction", op=op)
        factor = 1.0 + hvd.rank()
        fails_everywhere(operation, torch.ones(hvd.size()), "Mismatched", "factors", postscale_factor=factor)
    fails_everywhere("reducescatter", torch.ones(hvd.size() + hvd.rank()), "Mismatched", "shape")
    mine = [torch.ones(2)] * (2 + (hvd.rank() == 0))
    for grouped in (hvd.grouped_allgather, hvd.grouped_reducescatter):
        if hvd.size() != 1:
            with raises(HorovodInternalError, "Mismatched groups"):
                grouped(mine, name="members")
        still_works()


def test_mistakes_of_one_rank():
    strided = torch.ones(2, hvd.size() + 1).t()
    for operation in OPERATIONS:
        if operation.endswith("_"):
            refused_on_rank_0(operation, strided, "Tensor is required to be contiguous.")
        refused_on_rank_0(
            operation, torch.ones(hvd.size(), dtype=torch.complex64), "torch.ComplexFloatTensor"
        )
        refused_on_rank_0(operation, [1.0], "torch.Tensor is required", "list")
    for operation in REDUCING:
        refused_on_rank_0(operation, torch.ones(hvd.size(), dtype=torch.bool), "torch.BoolTensor", "int32")
        advice = "int32" if FLOAT8 is torch.bool else "8-bit floats are too coarse"
        refused_on_rank_0(operation, torch.ones(hvd.size()).to(FLOAT8), "is not supported", advice)
        refused_on_rank_0(operation, torch.ones(hvd.size()), "Unknown reduce op 99", op=99)
        refused_on_rank_0(
            operation, torch.ones(hvd.size()), "prescale_factor", kind=TypeError, prescale_factor="x"
        )
    for operation in ("allreduce", "allreduce_", "grouped_allreduce"):
        refused_on_rank_0(operation, torch.ones(2), "supersedes", average=True, op=hvd.Sum)
        refused_on_rank_0(operation, torch.ones(2, dtype=torch.int64), "floating", op=hvd.Adasum)
    for operation in ("reducescatter", "grouped_reducescatter"):
        refused_on_rank_0(operation, torch.tensor(1.0), "Reducescatter does not support scalar inputs")
        refused_on_rank_0(operation, torch.ones(2), "Reducescatter has no op Adasum", op=hvd.Adasum)
    refused_on_rank_0("broadcast", torch.ones(hvd.size()), "invalid root rank 77", root_rank=77)
    with raises(ValueError, "hvd.ProcessSet", "NoneType"):
        hvd.allreduce(torch.ones(2), process_set=None)


def test_splits_that_do_not_fit():
    rows = torch.ones(hvd.size(), 2)
    for splits, text in {
        (hvd.size() + 1,) + (0,) * (hvd.size() - 1): "greater than the first dimension of tensor",
        (0,) * (hvd.size() + 1): "Number of entries in splits does not equal number of workers.",
        (-1,) + (0,) * (hvd.size() - 1): "negative",
        (0.5,) * hvd.size(): "alltoall expects splits to contain 32-bit integer elements",
        7: "alltoall expects a 1D splits tensor",
    }.items():
        refused_on_rank_0("alltoall", rows, text, splits=splits)
    for splits, text in (
        (torch.ones(hvd.size()), "alltoall expects splits to contain 32-bit integer elements"),
        (torch.ones((hvd.size(), 1), dtype=torch.int32), "alltoall expects a 1D splits tensor"),
    ):
        refused_on_rank_0("alltoall", rows, text, splits=splits)
    if hvd.size() != 1:
        refused_on_rank_0(
            "alltoall", torch.ones(hvd.size() + 1, 2), "not an even multiple of the number of workers"
        )
    for operation in ("alltoall", "allgather"):
        with raises(HorovodInternalError, "rank-zero tensor"):
            OPERATIONS[operation](torch.tensor(1.0), name="scalar")
    still_works()


def test_a_group_that_is_no_list():
    for grouped in (
        hvd.grouped_allreduce_async,
        hvd.grouped_allgather_async,
        hvd.grouped_reducescatter_async,
    ):
        with raises(ValueError, "list of tensors", "Tensor"):
            grouped(torch.ones(3), name="no.list")
        with raises(ValueError, "at least one tensor"):
            grouped([], name="no.list")
        with raises(ValueError, "list of tensors", "NoneType"):
            grouped(None, name="no.list")
        # Any iterable is accepted.
        assert (
            len(hvd.synchronize(grouped((torch.ones(hvd.size()) for _ in range(2)), name="a.generator"))) == 2
        )
    assert hvd.grouped_reducescatter([]) == [] and hvd.grouped_allgather([]) == []
    still_works()


def test_a_sparse_mistake_of_one_rank():
    good = torch.sparse_coo_tensor(torch.tensor([[hvd.rank()]]), torch.ones(1, 2), (hvd.size(), 2))
    for bad, op, kind in (
        (torch.ones(2), hvd.Sum, ValueError),
        (good, hvd.Max, NotImplementedError),
        (good.to(torch.complex64), hvd.Sum, ValueError),
    ):
        for name in ("sparse", None):
            if hvd.rank() == 0:
                with raises(kind):
                    hvd.sparse_allreduce_async(bad, name, op)
            else:
                with raises(HorovodInternalError):
                    hvd.sparse_allreduce_async(good, name, hvd.Sum)()
            hvd.barrier()
            assert hvd.sparse_allreduce_async(good, name, hvd.Sum)().to_dense().sum() == 2 * hvd.size()
    still_works()


def test_sparse_reductions_of_every_type():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64):
        # Entry 0 twice on each rank, not coalesced; one rank has no entries.
        count = 0 if hvd.rank() == 1 else 2
        mine = torch.sparse_coo_tensor(
            torch.zeros(1, count, dtype=torch.int64), torch.full((count,), 3.0).to(dtype), (4,)
        )
        total = hvd.synchronize(hvd.sparse_allreduce_async(mine, f"sparse.{dtype}", hvd.Sum))
        who = sum(1 for r in range(hvd.size()) if r != 1)
        assert total.is_sparse and total.dtype is dtype and total.to_dense().tolist() == [6.0 * who, 0, 0, 0]
    never = torch.sparse_coo_tensor(torch.zeros(0, 1, dtype=torch.int64), torch.ones(1), ())
    assert float(hvd.sparse_allreduce_async(never, "sparse.0-dim", hvd.Sum)().to_dense()) == hvd.size()


def test_inputs_that_require_grad():
    leaf = torch.full((hvd.size(), 2), float(hvd.rank()), requires_grad=True)
    for handle in (
        hvd.alltoall_async(leaf),
        hvd.reducescatter_async(leaf),
        hvd.grouped_reducescatter_async([leaf]),
        hvd.grouped_allgather_async([leaf]),
        hvd.broadcast_async(leaf, 0),
    ):
        result = hvd.synchronize(handle)
        result = result[0] if isinstance(result, (list, tuple)) else result
        assert not result.requires_grad
    assert leaf.requires_grad and leaf.grad is None


def test_handles():
    handle = hvd.alltoall_async(torch.arange(hvd.size()), name="handle")
    while not hvd.poll(handle):
        pass
    assert type(handle) is int and hvd.synchronize(handle)[0].tolist() == [hvd.rank()] * hvd.size()
    assert hvd.synchronize(handle) is None and hvd.synchronize(-1) is None
    with raises(ValueError, f"Handle {handle} was not created or has been cleared."):
        hvd.poll(handle)


def test_results_outlive_their_inputs():
    handles = [hvd.alltoall_async(torch.full((hvd.size(), 100), float(hvd.rank() + i))) for i in range(10)]
    handles += [
        hvd.reducescatter_async(torch.full((hvd.size(), 100), float(hvd.rank() + i)), op=hvd.Max)
        for i in range(10)
    ]
    results = [hvd.synchronize(handle) for handle in handles]
    for i in range(10):
        assert results[i][0][:, 0].tolist() == [float(r + i) for r in range(hvd.size())]
        assert float(results[10 + i][0, 99]) == hvd.size() - 1 + i


def test_alltoall_of_large_tensors():
    rows = [(100_000 * (hvd.rank() + to)) % 70_000 + 1 for to in range(hvd.size())]
    output, received = hvd.alltoall(
        data_of(hvd.rank(), (sum(rows), 3), torch.int32), splits=rows, name="large"
    )
    assert received.tolist() == [(100_000 * (r + hvd.rank())) % 70_000 + 1 for r in range(hvd.size())]
    start = 0
    for r in range(hvd.size()):
        theirs = [(100_000 * (r + to)) % 70_000 + 1 for to in range(hvd.size())]
        whole = data_of(r, (sum(theirs), 3), torch.int32)
        begin = sum(theirs[: hvd.rank()])
        assert torch.equal(
            output[start : start + theirs[hvd.rank()]], whole[begin : begin + theirs[hvd.rank()]]
        )
        start += theirs[hvd.rank()]


def test_compressed_reducescatter():
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        mine = torch.full((hvd.size(), 3), float(hvd.rank()), dtype=torch.float64)
        expect(
            hvd.reducescatter(mine, None, compression, hvd.Sum),
            np.full((1, 3), sum(range(hvd.size()))),
            torch.float64,
        )
        grouped = hvd.grouped_reducescatter([mine, mine * 2], compression=compression, op=hvd.Sum)
        expect(grouped[1], np.full((1, 3), 2 * sum(range(hvd.size()))), torch.float64)


def test_adasum():
    # Orthogonal vectors are added up, parallel ones averaged; with factors.
    mine = torch.zeros(4, dtype=torch.float64)
    mine[hvd.rank()] = hvd.rank() + 1.0
    wanted = np.array([r + 1.0 if r < hvd.size() else 0.0 for r in range(4)])
    expect(hvd.allreduce(mine, op=hvd.Adasum), wanted, torch.float64)
    same = torch.full((5,), 2.0)
    out = hvd.allreduce_(same, op=hvd.Adasum, prescale_factor=0.5, postscale_factor=3.0, name="parallel")
    assert out is same
    expect(out, np.full(5, 3.0), torch.float32)
    # Each tensor of a group is a vector of its own.
    first, second = hvd.grouped_allreduce([mine.clone(), torch.full((2, 2), 6.0)], op=hvd.Adasum)
    expect(first, wanted, torch.float64)
    expect(second, np.full((2, 2), 6.0), torch.float32)
    leaf = torch.ones(2, requires_grad=True)
    hvd.allreduce(leaf, op=hvd.Adasum).sum().backward()
    expect(leaf.grad, np.ones(2), torch.float32)


def test_errors_of_a_reducescatter_with_another_op():
    for op in (hvd.Adasum, 77, "Sum"):
        for kind in (ValueError, NotImplementedError, RuntimeError):
            with raises(kind, "hvd.Average, Sum, Min, Max"):
                hvd.reducescatter(torch.ones(hvd.size()), op=op)
            with raises(kind, "hvd.Average, Sum, Min, Max"):
                hvd.grouped_reducescatter_async([torch.ones(hvd.size())], op=op)
