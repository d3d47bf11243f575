"""The programs of Horovod's documentation, in our words: process sets, a compressor of one's own, inference; names
that programs import from modules of horovod.torch. Run by tests/harness on two ranks."""

import io

import pytest
import torch

import horovod.torch as hvd
from horovod.common import exceptions, util
from horovod.torch import compression, mpi_ops, optimizer
from horovod.torch.compression import Compressor
from torch_support import raises

pytestmark = pytest.mark.ranks(2, framework="torch")


def begin_again(**options):
    """A job with other options than the harness has given."""
    hvd.shutdown()
    hvd.init(**options)


def test_process_sets_that_are_named_at_the_beginning():
    first, second = hvd.ProcessSet([0]), hvd.ProcessSet([1])
    begin_again(process_sets=[first, second])
    assert [s.process_set_id for s in (hvd.global_process_set, first, second)] == [0, 1, 2]
    assert str(first) == "ProcessSet(process_set_id=1, ranks=[0], mpi_comm=None)"
    mine, others = (first, second) if hvd.rank() == 0 else (second, first)
    assert (mine.included(), mine.rank(), mine.size(), others.included()) == (True, 0, 1, False)
    alone = hvd.allreduce(torch.full((3,), float(hvd.rank())), op=hvd.Sum, process_set=mine)
    assert alone.tolist() == [float(hvd.rank())] * 3
    together = hvd.allreduce(torch.full((3,), float(hvd.rank())), op=hvd.Sum)
    assert together.tolist() == [1.0] * 3
    with raises(ValueError, "not part of"):
        others.rank()


def test_process_sets_that_come_and_go():
    begin_again(process_sets="dynamic")
    last = hvd.add_process_set([1])
    assert (last.process_set_id, last.included()) == (1, hvd.rank() == 1)
    if last.included():
        assert hvd.allgather(torch.tensor([7]), process_set=last).tolist() == [7]
    with raises(ValueError, "duplicate"):
        hvd.add_process_set([0, 1])  # these are all ranks
    assert hvd.remove_process_set(last) is True and last.process_set_id is None
    assert hvd.remove_process_set(hvd.global_process_set) is False


class ScaledHalves(Compressor):
    """Sends half precision, scaled so that the largest value of this rank is 1; the context is the scale."""

    @staticmethod
    def compress(tensor):
        scale = float(hvd.allreduce(tensor.abs().max(), op=hvd.Max, name="scale")) or 1.0
        return (tensor / scale).half(), (tensor.dtype, scale)

    @staticmethod
    def decompress(tensor, ctx):
        dtype, scale = ctx
        return tensor.to(dtype) * scale


def test_a_compressor_of_ones_own():
    values = torch.tensor([1000.0 * (hvd.rank() + 1), -3.0, 0.5])
    mean = hvd.allreduce(values, name="values", compression=ScaledHalves)
    assert mean.dtype == torch.float32
    assert torch.allclose(mean, torch.tensor([1500.0, -3.0, 0.5]), rtol=1e-3, atol=1.0)

    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    plain = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), compression=ScaledHalves)
    model(torch.full((1, 3), hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    assert torch.allclose(model.weight, torch.full((1, 3), 1 - 0.5 * 1.5), rtol=1e-3)


def test_inference_needs_no_horovod():
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), hvd.SyncBatchNorm(3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    assert b"horovod" not in file.getvalue() and b"hvd_core" not in file.getvalue()
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    plain.load_state_dict(saved["model"])
    torch.optim.Adam(plain.parameters()).load_state_dict(saved["optimizer"])
    hvd.shutdown()  # for the prediction there is no job
    inputs = torch.randn(5, 4)
    assert torch.equal(plain.eval()(inputs), model.eval()(inputs))
    hvd.init()


def test_names_of_modules_are_those_of_the_package():
    assert mpi_ops.HorovodInternalError is exceptions.HorovodInternalError
    assert mpi_ops.Compression is compression.Compression and mpi_ops.gpu_available is util.gpu_available
    assert mpi_ops.add_process_set is hvd.add_process_set and mpi_ops.ProcessSet is hvd.ProcessSet
    assert mpi_ops.gpu_available("torch", verbose=True) == torch.cuda.is_available()
    assert mpi_ops.num_rank_is_power_2(4) and not mpi_ops.num_rank_is_power_2(6)
    for name in (
        "allreduce_async_",
        "grouped_allreduce_async_",
        "sparse_allreduce_async",
        "synchronize",
        "size",
    ):
        assert getattr(optimizer, name) is getattr(hvd, name)
