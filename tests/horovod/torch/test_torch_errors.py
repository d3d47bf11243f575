"""Checks of bad input: the right exception on every rank, and an engine that goes on. Run by tests/harness."""

import pytest
import torch

import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet
from torch_support import raises

pytestmark = pytest.mark.ranks(1, 3, framework="torch")


def still_works():
    """The engine still reduces, named and unnamed, and no handle is left over."""
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="still.works")) == hvd.size()
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()
    assert not hvd.mpi_ops._handle_map, hvd.mpi_ops._handle_map


def fails_everywhere(call, *fragments):
    """A disagreement between ranks: HorovodInternalError on all of them. A single rank succeeds."""
    for _ in range(2):  # the name is free again afterwards
        if hvd.size() == 1:
            call()
        else:
            with raises(HorovodInternalError, *fragments):
                call()
    still_works()


def test_mismatched_shapes():
    fails_everywhere(
        lambda: hvd.allreduce(torch.ones(3 + hvd.rank()), name="shape"), "Mismatched", "shape", "[3]", "[4]"
    )
    fails_everywhere(
        lambda: hvd.allreduce(torch.ones([3] * (1 + hvd.rank() % 2)), name="ndim"), "Mismatched", "shape"
    )
    fails_everywhere(
        lambda: hvd.broadcast(torch.ones(3 + hvd.rank()), 0, name="bshape"), "Mismatched", "shape"
    )
    fails_everywhere(lambda: hvd.allgather(torch.ones(2, 3 + hvd.rank()), name="gdim"), "Mismatched")
    fails_everywhere(
        lambda: hvd.allgather(torch.ones([2] * (1 + hvd.rank() % 2)), name="gndim"), "Mismatched"
    )


def test_one_tensor_twice_in_place():
    w = torch.ones(6)
    for name, tensors in {"twice": [w, w], "overlap": [w[:4], w[3:]], "view": [w, w.view(2, 3)]}.items():
        for _ in range(2):
            with raises(ValueError, "lie in the same memory"):
                hvd.grouped_allreduce_(tensors, name=name, op=hvd.Sum)
            with raises(ValueError, "lie in the same memory"):
                hvd.synchronize(hvd.grouped_allreduce_async_(tensors, name=name, op=hvd.Sum))
        still_works()
    assert w.tolist() == [1] * 6
    hvd.grouped_allreduce_([w[:3], w[3:]], name="halves", op=hvd.Sum)
    assert w.tolist() == [hvd.size()] * 6
    doubled = hvd.grouped_allreduce([w, w[2:]], name="read", op=hvd.Average)
    assert [t.tolist() for t in doubled] == [[hvd.size()] * 6, [hvd.size()] * 4]


def test_mismatched_types():
    mine = torch.ones(3, dtype=torch.float32 if hvd.rank() == 0 else torch.int32)
    fails_everywhere(lambda: hvd.allreduce(mine, name="dtype"), "Mismatched data types", "float32", "int32")
    fails_everywhere(lambda: hvd.allgather(mine, name="gdtype"), "Mismatched data types", "float32", "int32")
    fails_everywhere(
        lambda: hvd.broadcast(mine, 0, name="bdtype"), "Mismatched data types", "float32", "int32"
    )


def test_mismatched_op_factors_and_root():
    op = hvd.Sum if hvd.rank() == 0 else hvd.Max
    fails_everywhere(lambda: hvd.allreduce(torch.ones(3), op=op, name="op"), "Mismatched reduction operation")
    factor = 1.0 if hvd.rank() == 0 else 0.5
    fails_everywhere(
        lambda: hvd.allreduce(torch.ones(3), op=hvd.Sum, prescale_factor=factor, name="factor"),
        "Mismatched",
        "factors",
    )
    fails_everywhere(
        lambda: hvd.broadcast(torch.ones(3), min(hvd.rank(), 1), name="root"), "Mismatched", "root"
    )


def test_mismatched_groups():
    mine = [torch.ones(2)] * (2 + (hvd.rank() == 0))
    fails_everywhere(lambda: hvd.grouped_allreduce(mine, name="members"), "Mismatched")


def test_errors_of_in_flight_neighbours():
    # The failure of one operation leaves the others alone.
    good = [hvd.allreduce_async(torch.full((4,), float(i)), name=f"good.{i}", op=hvd.Sum) for i in range(5)]
    bad = hvd.allreduce_async(torch.ones(2 + hvd.rank()), name="bad")
    good += [
        hvd.allreduce_async(torch.full((4,), float(i)), name=f"good.{i}", op=hvd.Sum) for i in range(5, 9)
    ]
    for i, handle in enumerate(good):
        assert float(hvd.synchronize(handle)[0]) == i * hvd.size()
    if hvd.size() == 1:
        hvd.synchronize(bad)
    else:
        with raises(HorovodInternalError, "Mismatched"):
            hvd.synchronize(bad)
    still_works()


def test_scalar_allgather():
    for _ in range(2):
        try:
            hvd.allgather(torch.tensor(1.0), name="scalar")
        except (HorovodInternalError, ValueError) as error:
            assert "rank-zero" in str(error) or "scalar" in str(error).lower() or "0-dim" in str(error), error
        else:
            raise AssertionError("allgather of a 0-dim tensor succeeded")
    still_works()


def test_unsupported_types():
    calls = {
        "allreduce": (hvd.allreduce, torch.ones(2, dtype=torch.complex64), "torch.ComplexFloatTensor"),
        "inplace": (hvd.allreduce_, torch.ones(2, dtype=torch.bool), "torch.BoolTensor"),
        "allgather": (hvd.allgather, torch.ones(2, dtype=torch.complex128), "torch.ComplexDoubleTensor"),
        "broadcast": (
            lambda tensor, name: hvd.broadcast(tensor, 0, name),
            torch.ones(2).to_sparse(),
            "torch.sparse.FloatTensor",
        ),
    }
    # Layouts for whose tensors PyTorch has no name of a type.
    nowhere = torch.sparse_coo_tensor(
        torch.empty(1, 0, dtype=torch.long), torch.empty(0), (3,), device="meta"
    )
    for name, tensor, says in (
        ("csr", torch.eye(3).to_sparse_csr(), "torch.sparse_csr on cpu"),
        ("meta", nowhere, "on meta"),
        ("mkldnn", torch.ones(2, 2).to_mkldnn(), "torch._mkldnn on cpu"),
    ):
        with raises(ValueError, "torch.float32 with the layout", says, "sparse_allreduce_async()"):
            hvd.allreduce(tensor, name=f"unsupported.{name}")
        still_works()
    for name, (call, tensor, kind) in calls.items():
        with raises(ValueError, f"Tensor type {kind} is not supported."):
            call(tensor, name=f"unsupported.{name}")
        with raises(ValueError, f"Tensor type {kind} is not supported."):
            call(tensor, name=None)
        still_works()
    with raises(ValueError, "torch.Tensor is required", "list"):
        hvd.allreduce([1.0, 2.0], name="list")
    with raises(ValueError, "torch.Tensor is required", "ndarray"):
        hvd.allgather(torch.ones(2).numpy(), name="ndarray")
    still_works()


def test_non_contiguous():
    """It is copied where it is only read; an operation in place refuses it."""
    tensor = torch.arange(24.0).reshape(4, 6).t()
    rows = torch.cat([tensor] * hvd.size())
    for found, wanted in (
        (hvd.allreduce(tensor, name="strided"), tensor),
        (hvd.allgather(tensor, name="strided"), rows),
        (hvd.broadcast(tensor, 0, name="strided"), tensor),
        (hvd.grouped_allreduce([torch.ones(2), tensor], name="strided")[1], tensor),
        (hvd.grouped_allgather([tensor], name="strided")[0], rows),
        (hvd.reducescatter(rows, name="strided"), tensor),
        (hvd.synchronize(hvd.alltoall_async(rows.t().contiguous().t(), name="strided"))[0], rows),
    ):
        assert torch.equal(found, wanted), (found, wanted)
    with raises(
        ValueError, "Tensor is required to be contiguous. Its shape is (6, 4)", "tensor.contiguous()"
    ):
        hvd.allreduce_(tensor)
    still_works()


def test_negative_bit():
    tensor = torch.tensor([1 + 2j]).conj().imag  # -2, and the memory holds 2
    assert tensor.is_neg() and tensor.is_contiguous()
    for call in (
        hvd.allreduce,
        hvd.allreduce_,
        hvd.allgather,
        hvd.alltoall,
        hvd.reducescatter,
        lambda t: hvd.broadcast_(t, 0),
        lambda t: hvd.grouped_allreduce([torch.ones(2), t]),
    ):
        with raises(ValueError, "negative bit", "resolve_neg()"):
            call(tensor)
    assert hvd.allreduce(tensor.resolve_neg()).item() == -2
    still_works()


def test_a_device_without_data():
    with raises(ValueError, "device 'meta'", "no data", "to_empty"):
        hvd.allreduce(torch.ones(2, device="meta"), name="device")
    still_works()


def test_a_local_error_fails_the_name_on_all_ranks():
    # Rank 0 cannot submit; the others must not wait forever.
    if hvd.rank() == 0:
        with raises(ValueError, "contiguous"):
            hvd.allreduce_(torch.ones(4, 6).t(), name="poisoned")
    else:
        with raises(HorovodInternalError, "contiguous"):
            hvd.allreduce(torch.ones(6, 4), name="poisoned")
    still_works()
    assert float(hvd.allreduce(torch.ones(6, 4), name="poisoned", op=hvd.Sum)[0, 0]) == hvd.size()


def test_groups_from_iterators():
    def tensors():
        return [torch.ones(2 * hvd.size()), torch.full((hvd.size(),), 2.0)]

    def interrupted():
        yield torch.ones(2)
        raise KeyError("no such tensor")

    gathered = [hvd.size()] * 2
    for call, length in (
        (hvd.grouped_allreduce, [1] * 2),
        (hvd.grouped_allreduce_, [1] * 2),
        (hvd.grouped_allgather, gathered),
        (hvd.grouped_reducescatter, [1 / hvd.size()] * 2),
    ):
        # One rank has a generator, the others a list: they are the same.
        results = call((t for t in tensors()) if hvd.rank() == 0 else tensors(), name="iterator")
        assert [r.numel() / t.numel() for r, t in zip(results, tensors(), strict=True)] == length, call
        assert call(iter(()), name="nothing") == []
        for wrong, kind, text in (
            (3.0, ValueError, "list of tensors, but found float"),
            (None, KeyError, "no such tensor"),
        ):
            if hvd.rank() == 0:
                with raises(kind, text):
                    call(wrong or interrupted(), name="no.group")
            else:
                with raises(HorovodInternalError, text):
                    call(tensors(), name="no.group")
    still_works()


class Fails(hvd.Compression.none):
    @staticmethod
    def compress(tensor):
        raise KeyError("cannot be compressed")


def test_compressors_that_fail():
    for call in (
        lambda tensor, how: hvd.allreduce(tensor, name="compressed", compression=how),
        lambda tensor, how: hvd.grouped_allreduce([tensor], name="compressed", compression=how),
        lambda tensor, how: hvd.reducescatter(tensor, name="compressed", compression=how),
        lambda tensor, how: hvd.grouped_reducescatter([tensor], name="compressed", compression=how),
    ):
        for wrong, how, kind, text in (
            (3.0, hvd.Compression.fp16, ValueError, "A torch.Tensor is required, but found float"),
            (torch.ones(2), Fails, KeyError, "cannot be compressed"),
        ):
            if hvd.rank() == 0:
                with raises(kind, text):
                    call(wrong, how)
            else:
                with raises(HorovodInternalError, text):
                    call(torch.ones(2), hvd.Compression.fp16)
    still_works()


def test_duplicate_names():
    first = hvd.allreduce_async(torch.ones(5), name="twice", op=hvd.Sum)
    try:
        second = hvd.allreduce_async(torch.ones(5), name="twice", op=hvd.Sum)
    except ValueError as error:
        assert "twice" in str(error) or "same name" in str(error), error
    else:
        # On this rank the first was done already. On a rank where it was not, the second failed, so it fails here too.
        try:
            hvd.synchronize(second)
        except HorovodInternalError as error:
            assert "same name" in str(error), error
    assert float(hvd.synchronize(first)[0]) == hvd.size()
    hvd.barrier()


def test_bad_roots():
    for root in (-1, hvd.size(), 1000):
        with raises(ValueError, str(root)):
            hvd.broadcast(torch.ones(2), root, name="bad.root")
        still_works()


def test_bad_reduce_ops():
    with raises(ValueError, "Adasum works on floating-point tensors", "int32"):
        hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum, name="adasum")
    # Programs written for Horovod expect either class.
    for kind in (ValueError, NotImplementedError):
        with raises(kind, "Unknown reduce op 17"):
            hvd.allreduce(torch.ones(2), op=17, name="no.op")
        with raises(kind, "Unknown reduce op 17"):
            hvd.grouped_allreduce([torch.ones(2)], op=17, name="no.op")
    still_works()


def test_factors_of_zero():
    for factor in ("prescale_factor", "postscale_factor"):
        with raises(ValueError, f"{factor} must not be 0"):
            hvd.allreduce(torch.ones(2), name="zero.factor", **{factor: 0.0})
        still_works()


def test_process_sets():
    unregistered = ProcessSet(list(range(hvd.size())))
    assert unregistered.size() is None and unregistered.rank() is None and unregistered.included()
    with raises(ValueError, "has not been registered"):
        hvd.allreduce(torch.ones(2), name="no.set", process_set=unregistered)
    with raises(ValueError, "must be integers"):
        ProcessSet([0, "1"])
    with raises(ValueError, "list of ranks"):
        ProcessSet(5)
    assert ProcessSet([2, 0, 1]).ranks == [0, 1, 2]
    still_works()
