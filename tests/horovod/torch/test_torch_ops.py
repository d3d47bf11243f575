"""Checks of the operations, run on every rank by tests/harness."""

import os
import warnings

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from torch_support import (
    FLOATS,
    NO_DLPACK_API,
    REDUCIBLE,
    as_float64,
    data_of,
    expect,
    raises,
    reduced,
    same_everywhere,
)

pytestmark = [
    pytest.mark.ranks(1, 3, framework="torch"),
    pytest.mark.ranks(2, framework="torch", id="no-dlpack", process_env=NO_DLPACK_API),
]

OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]


def test_basics():
    assert 0 <= hvd.rank() < hvd.size() and 0 <= hvd.local_rank() < hvd.local_size() <= hvd.size()
    assert hvd.cross_size() == 1 and hvd.cross_rank() == 0 and hvd.mpi_ops.is_homogeneous() is True
    assert hvd.is_initialized() and hvd.global_process_set.ranks == list(range(hvd.size()))
    assert hvd.global_process_set.size() == hvd.size() and hvd.global_process_set.rank() == hvd.rank()
    assert hvd.global_process_set.included()
    hvd.init()
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]
    assert type(hvd.nccl_built()) is int and hvd.mpi_enabled() is False


def test_allreduce_default_is_average():
    mine = data_of(hvd.rank(), (6,), torch.float64)
    expect(hvd.allreduce(mine), reduced(hvd.Average, range(hvd.size()), (6,), torch.float64), torch.float64)
    handle = hvd.allreduce_async(mine)
    expect(
        hvd.synchronize(handle), reduced(hvd.Average, range(hvd.size()), (6,), torch.float64), torch.float64
    )


def test_integer_average_truncates_toward_zero():
    mine = torch.tensor([-1 - hvd.rank(), 1 + hvd.rank(), -7, 7 * hvd.rank()], dtype=torch.int32)
    parts = np.array([[-1 - r, 1 + r, -7, 7 * r] for r in range(hvd.size())], dtype=np.float64)
    expect(hvd.allreduce(mine), np.trunc(parts.sum(axis=0) / hvd.size()), torch.int32)


def test_factors():
    for dtype in FLOATS + [torch.int32, torch.int64]:
        for op in (hvd.Sum, hvd.Average):
            mine = data_of(hvd.rank(), (3, 5), dtype)
            out = hvd.allreduce(
                mine, op=op, prescale_factor=0.5, postscale_factor=3.0, name=f"f.{dtype}.{op}"
            )
            wanted = reduced(op, range(hvd.size()), (3, 5), dtype, 0.5, 3.0)
            expect(out, wanted, dtype, f"factors {dtype} op {op}")


def test_large_tensors_are_the_same_on_all_ranks():
    for dtype in (torch.float32, torch.bfloat16):
        generator = torch.Generator().manual_seed(hvd.rank())
        mine = torch.randn(300_001, generator=generator).to(dtype)
        everybody = [
            torch.randn(300_001, generator=torch.Generator().manual_seed(r)).to(dtype)
            for r in range(hvd.size())
        ]
        out = hvd.allreduce(mine, op=hvd.Sum, name=f"large.{dtype}")
        expect(out, sum(as_float64(t) for t in everybody), dtype, "large")
        same_everywhere(out, f"large.same.{dtype}")


def test_average_argument():
    mine = data_of(hvd.rank(), (4,), torch.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        average = hvd.allreduce(mine, True)
        total = hvd.allreduce(mine, average=False)
        named = hvd.allreduce(mine, "loss")  # a name in the place of `average`
    assert [w.category for w in caught] == [DeprecationWarning] * 3
    expect(average, reduced(hvd.Average, range(hvd.size()), (4,), torch.float32), torch.float32)
    expect(total, reduced(hvd.Sum, range(hvd.size()), (4,), torch.float32), torch.float32)
    assert torch.equal(named, average)
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.allreduce_async_):
        with raises(ValueError, "The op parameter supersedes average. Please provide only one of them."):
            call(mine, average=True, op=hvd.Sum)
    with raises(ValueError, "supersedes"):
        hvd.grouped_allreduce([mine], average=True, op=hvd.Sum)


def test_async_in_another_order_on_each_rank():
    order = np.random.RandomState(hvd.rank()).permutation(40)
    handles = {}
    for i in order:
        tensor = data_of(hvd.rank(), (int(i) + 1, 3), torch.float32, seed=int(i))
        handles[i] = hvd.allreduce_async(tensor, name=f"shuffled.{i}", op=hvd.Sum)
        del tensor  # the engine must not need our reference
    for i in np.random.RandomState(100 + hvd.rank()).permutation(40):
        out = hvd.synchronize(handles[i])
        expect(
            out,
            reduced(hvd.Sum, range(hvd.size()), (int(i) + 1, 3), torch.float32, seed=int(i)),
            torch.float32,
        )


def test_a_rank_may_wait_for_one_before_it_submits_the_other():
    # Odd ranks submit B first and then A; even ranks wait for A before they submit B. Several rounds, so that the pair
    # would become a known batch.
    for step in range(30):
        a, b = torch.full((2,), float(hvd.rank())), torch.full((2,), float(10 * hvd.rank() + step))
        if hvd.rank() % 2:
            second = hvd.allreduce_async(b, name="order.b", op=hvd.Sum)
        first = hvd.synchronize(hvd.allreduce_async(a, name="order.a", op=hvd.Sum))
        if hvd.rank() % 2 == 0:
            second = hvd.allreduce_async(b, name="order.b", op=hvd.Sum)
        assert first.tolist() == [float(sum(range(hvd.size())))] * 2
        assert hvd.synchronize(second).tolist() == [float(sum(10 * r + step for r in range(hvd.size())))] * 2


def test_poll_and_synchronize():
    handle = hvd.allreduce_async(torch.ones(5), name="polled", op=hvd.Sum)
    assert type(handle) is int
    while not hvd.poll(handle):
        pass
    expect(hvd.synchronize(handle), np.full(5, hvd.size()), torch.float32)
    assert hvd.synchronize(handle) is None
    with raises(ValueError, f"Handle {handle} was not created or has been cleared."):
        hvd.poll(handle)
    assert not hvd.mpi_ops._handle_map


def test_grouped_allreduce():
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        shapes = [(3,), (), (0,), (4, 4), (1000,)]
        mine = [data_of(hvd.rank(), s, dtype, seed=i) for i, s in enumerate(shapes)]
        wanted = [reduced(hvd.Sum, range(hvd.size()), s, dtype, seed=i) for i, s in enumerate(shapes)]
        for name in (None, f"group.{dtype}"):
            outs = hvd.grouped_allreduce(mine, op=hvd.Sum, name=name)
            assert isinstance(outs, list)
            for out, value in zip(outs, wanted):
                expect(out, value, dtype)
            for out, value in zip(hvd.synchronize(hvd.grouped_allreduce_async(mine, op=hvd.Sum)), wanted):
                expect(out, value, dtype)
        copies = [t.clone() for t in mine]
        outs = hvd.grouped_allreduce_(copies, op=hvd.Sum)
        for out, copy, value in zip(outs, copies, wanted):
            assert out is copy
            expect(out, value, dtype)
        compressed = hvd.grouped_allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16)
        for out, value in zip(compressed, wanted):
            expect(out, value, dtype)
    assert hvd.grouped_allreduce([]) == [] and hvd.grouped_allreduce_([]) == []
    with raises(ValueError, "at least one tensor"):
        hvd.grouped_allreduce_async([])


def test_grouped_allreduce_of_several_types():
    mine = [data_of(hvd.rank(), (5,), d) for d in (torch.float32, torch.int32, torch.float64)]
    for out, dtype in zip(
        hvd.grouped_allreduce(mine, op=hvd.Sum), (torch.float32, torch.int32, torch.float64)
    ):
        expect(out, reduced(hvd.Sum, range(hvd.size()), (5,), dtype), dtype)


def test_the_gathered_belongs_to_the_caller():
    out = hvd.synchronize(hvd.allgather_async(torch.full((2,), hvd.rank()), name="gathered"))
    out += 1  # the output belongs to the caller
    assert out.tolist() == [r + 1 for r in range(hvd.size()) for _ in range(2)]


def test_grouped_allgather():
    mine = [
        data_of(hvd.rank(), (hvd.rank() + 1, 2), torch.float32),
        data_of(hvd.rank(), (2,), torch.int64),
        data_of(hvd.rank(), (0, 3), torch.bool),
    ]
    outs = hvd.grouped_allgather(mine, name="several")
    assert isinstance(outs, list) and len(outs) == 3
    for out, shape in zip(outs, [lambda r: (r + 1, 2), lambda r: (2,), lambda r: (0, 3)]):
        expect(
            out,
            np.concatenate([as_float64(data_of(r, shape(r), out.dtype)) for r in range(hvd.size())]),
            out.dtype,
        )
    assert hvd.grouped_allgather([]) == []


def test_inputs_that_require_grad():
    leaf = torch.full((4,), float(hvd.rank()), requires_grad=True)
    out = hvd.synchronize(hvd.allreduce_async(leaf, op=hvd.Sum))
    assert not out.requires_grad and float(out[0]) == sum(range(hvd.size()))
    gathered = hvd.synchronize(hvd.allgather_async(leaf))
    assert not gathered.requires_grad and len(gathered) == 4 * hvd.size()
    parameter = torch.nn.Parameter(torch.full((3,), float(hvd.rank())))
    for target in (parameter, parameter.data, parameter.detach()):
        hvd.broadcast_(target, 0)
        assert parameter.tolist() == [0.0] * 3
    hvd.allreduce_(parameter, op=hvd.Sum)
    assert parameter.requires_grad and parameter.is_leaf


def test_views_and_slices():
    base = torch.arange(20.0).reshape(4, 5) + hvd.rank()
    hvd.allreduce_(base[1:3], op=hvd.Sum)
    wanted = np.arange(20.0).reshape(4, 5) + hvd.rank()
    wanted[1:3] = sum(np.arange(20.0).reshape(4, 5)[1:3] + r for r in range(hvd.size()))
    expect(base, wanted, torch.float32)


def test_compression():
    for compression, wire in ((hvd.Compression.fp16, torch.float16), (hvd.Compression.bf16, torch.bfloat16)):
        for dtype in REDUCIBLE:
            mine = data_of(hvd.rank(), (9,), dtype)
            sent, context = compression.compress(mine)
            wide = dtype in (torch.float32, torch.float64)
            assert sent.dtype == (wire if wide else dtype) and (context is None) != wide
            out = hvd.allreduce(mine, compression=compression, op=hvd.Sum)
            expect(out, reduced(hvd.Sum, range(hvd.size()), (9,), dtype), dtype, f"{compression} {dtype}")


def test_sparse_allreduce():
    for op in (hvd.Average, hvd.Sum):
        rows = torch.tensor([[hvd.rank(), 4]])
        mine = torch.sparse_coo_tensor(rows, torch.full((2, 3), float(hvd.rank() + 1)), (6, 3))
        finish = hvd.sparse_allreduce_async(mine, name=f"sparse.{op}", op=op)
        out = finish()
        wanted = np.zeros((6, 3))
        for r in range(hvd.size()):
            wanted[r] += r + 1
            wanted[4] += r + 1
        expect(out.to_dense(), wanted / (hvd.size() if op == hvd.Average else 1), torch.float32)
        empty = torch.sparse_coo_tensor((6, 3))
        assert hvd.synchronize(hvd.sparse_allreduce_async(empty, "sparse.empty", op)).to_dense().sum() == 0
    with raises(NotImplementedError, "hvd.Average and hvd.Sum"):
        hvd.sparse_allreduce_async(mine, "sparse.min", hvd.Min)


def test_barrier_and_join():
    hvd.barrier()
    hvd.barrier(process_set=hvd.global_process_set)
    last = hvd.join()
    assert 0 <= last < hvd.size()
    everybody = hvd.allgather(torch.tensor([last])).tolist()
    assert everybody == [last] * hvd.size()


def test_join_with_uneven_data():
    # Rank r has r + 1 batches; a rank that is finished adds nothing to the sums of the others.
    for batch in range(hvd.rank() + 1):
        total = hvd.allreduce(torch.ones(3), op=hvd.Sum, name=f"batch.{batch}")
        assert total.tolist() == [float(sum(1 for r in range(hvd.size()) if r >= batch))] * 3
    assert hvd.join() == hvd.size() - 1


def test_many_small_tensors():
    for step in range(3):
        handles = [
            hvd.allreduce_async_(torch.full((3,), float(hvd.rank() + i + step)), name=f"many.{i}", op=hvd.Sum)
            for i in range(300)
        ]
        for i, handle in enumerate(handles):
            assert float(hvd.synchronize(handle)[2]) == sum(r + i + step for r in range(hvd.size()))


def test_process_sets():
    size = hvd.size()
    hvd.shutdown()
    named = hvd.ProcessSet(range(size)[:-1] or [0])
    hvd.init(process_sets=[named] if size > 1 else "dynamic")
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    last = hvd.add_process_set([size - 1]) if size > 1 else hvd.global_process_set
    for process_set in (named, last):
        if size > 1 and process_set.included():
            mine = hvd.allreduce(torch.full((3,), float(hvd.rank())), op=hvd.Sum, process_set=process_set)
            assert mine.tolist() == [float(sum(process_set.ranks))] * 3
            gathered = hvd.allgather(torch.tensor([hvd.rank()]), process_set=process_set)
            assert gathered.tolist() == process_set.ranks
            root = process_set.ranks[-1]
            assert int(hvd.broadcast(torch.tensor([hvd.rank()]), root, process_set=process_set)) == root
    hvd.barrier()
    if size > 1:
        assert hvd.remove_process_set(last) and last.process_set_id is None
        with raises(ValueError, "has not been registered"):
            hvd.allreduce(torch.ones(1), process_set=last)


def test_shutdown_and_init_again():
    place = hvd.rank(), hvd.size()
    for _ in range(2):
        hvd.shutdown()
        assert not hvd.is_initialized() and not hvd.mpi_ops._handle_map
        with raises(ValueError, "Horovod has not been initialized; use hvd.init()."):
            hvd.rank()
        with raises(ValueError, "Horovod has not been initialized; use hvd.init()."):
            hvd.allreduce(torch.ones(2))
        hvd.init()
        assert (hvd.rank(), hvd.size()) == place
        assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()
