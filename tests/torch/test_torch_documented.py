"""The checks of ranks_documented.py on two living ranks; names of the original that programs import from modules of
horovod.torch."""

import importlib

import pytest

pytest.importorskip("torch")

import torch

import horovod.torch as hvd
from harness import check_names
from harness.frameworks import run_check
from horovod.common import exceptions, util
from horovod.torch import compression, mpi_ops, optimizer


@pytest.mark.parametrize("check", check_names("torch/ranks_documented.py"))
def test_documented_program(check):
    run_check("torch", 2, "torch", "ranks_documented", check)


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


def test_elastic_training_is_missing_and_says_so():
    assert not hasattr(hvd, "elastic")
    with pytest.raises(AttributeError, match=r"horovod\.torch\.elastic is not part of .* there yet"):
        hvd.elastic.run(print)
    for module in ("horovod.torch.elastic", "horovod.torch.elastic.state"):
        with pytest.raises(ImportError, match=r"horovod\.torch\.elastic is not part of .* there yet"):
            importlib.import_module(module)
    with pytest.raises(ImportError, match="there yet"):
        from horovod.torch import elastic  # noqa: F401
