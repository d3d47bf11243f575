"""Checks of one process: imports, signatures, calls before init(), arguments. In processes of their own (torch_alone.py)
if the state of the module matters."""

import inspect
import re
import sys

import pytest
import torch

import horovod.torch as hvd
import torch_alone
from harness import run_on_ranks
from horovod.torch import compression, functions, mpi_ops, optimizer
from torch_support import in_one_process

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


def alone(function):
    """The result and the output of a function of torch_alone.py in a new process without a launcher."""
    done = run_on_ranks(
        1, function, framework="torch", init=None, command=[sys.executable], fresh=True, timeout=280
    )
    return done.results[0], done.output


def test_import_prints_nothing():
    assert alone(torch_alone.import_horovod) == (None, "")


def test_import_and_calls_where_the_engine_is_missing():
    said, output = alone(torch_alone.errors_without_the_engine)
    assert output == "" and said["initialized"] is False and said["available"] is False
    assert said["init"][0] in ("ImportError", "ModuleNotFoundError")
    assert "its engine could not be loaded" in said["init"][1]
    assert set(said) == {"available", "init", "rank", "allreduce", "initialized"}


CALLS_BEFORE_INIT = {
    name: (lambda name=name: getattr(hvd, name)())
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "barrier", "join")
}
CALLS_BEFORE_INIT |= {
    "is_homogeneous": lambda: mpi_ops.is_homogeneous(),
    "stop_timeline": lambda: hvd.stop_timeline(),
    "start_timeline": lambda: hvd.start_timeline("x"),
    "allreduce": lambda: hvd.allreduce(torch.ones(2)),
    "allreduce_": lambda: hvd.allreduce_(torch.ones(2)),
    "allreduce of a strided tensor": lambda: hvd.allreduce(torch.ones(2, 3).t(), name="strided"),
    "allreduce_async": lambda: hvd.allreduce_async(torch.ones(2)),
    "grouped_allreduce": lambda: hvd.grouped_allreduce([torch.ones(2)]),
    "allgather": lambda: hvd.allgather(torch.ones(2)),
    "grouped_allgather": lambda: hvd.grouped_allgather([torch.ones(2)]),
    "broadcast": lambda: hvd.broadcast(torch.ones(2), 0),
    "broadcast_object": lambda: hvd.broadcast_object(1),
    "allgather_object": lambda: hvd.allgather_object(1),
    "broadcast_parameters": lambda: hvd.broadcast_parameters({"a": torch.ones(2)}, 0),
    "optimizer": lambda: hvd.DistributedOptimizer(
        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    ),
}


@pytest.mark.parametrize("name", CALLS_BEFORE_INIT)
@in_one_process
def test_before_init(name):
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match=re.escape(NOT_INITIALIZED)):
        CALLS_BEFORE_INIT[name]()


@in_one_process
def test_answers_that_need_no_init():
    assert hvd.is_initialized() is False
    hvd.shutdown()
    for name in ("mpi", "gloo", "ddl", "ccl", "cuda", "rocm"):
        assert getattr(hvd, f"{name}_built")() in (True, False)
    assert type(hvd.nccl_built()) is int
    assert hvd.mpi_enabled() is False and hvd.gloo_enabled() is False
    with pytest.raises(ValueError, match="MPI is not enabled"):
        hvd.mpi_threads_supported()


# Programs rely on names and order of arguments.
SIGNATURES = {
    "allreduce": "tensor average name compression op prescale_factor postscale_factor process_set",
    "allreduce_": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async_": "tensor average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce": "tensors average name compression op prescale_factor postscale_factor process_set",
    "grouped_allreduce_": "tensors average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce_async": "tensors average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce_async_": "tensors average name op prescale_factor postscale_factor process_set",
    "sparse_allreduce_async": "tensor name op process_set",
    "allgather": "tensor name process_set",
    "allgather_async": "tensor name process_set",
    "grouped_allgather": "tensors name process_set",
    "grouped_allgather_async": "tensors name process_set",
    "broadcast": "tensor root_rank name process_set",
    "broadcast_": "tensor root_rank name process_set",
    "broadcast_async": "tensor root_rank name process_set",
    "broadcast_async_": "tensor root_rank name process_set",
    "alltoall": "tensor splits name process_set",
    "alltoall_async": "tensor splits name process_set",
    "reducescatter": "tensor name compression op process_set prescale_factor postscale_factor",
    "reducescatter_async": "tensor name op process_set prescale_factor postscale_factor",
    "grouped_reducescatter": "tensors name compression op process_set prescale_factor postscale_factor",
    "grouped_reducescatter_async": "tensors name op process_set prescale_factor postscale_factor",
    "join": "device",
    "barrier": "process_set",
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params root_rank name process_set",
    "broadcast_optimizer_state": "optimizer root_rank model name process_set",
    "broadcast_object": "obj root_rank name process_set",
    "allgather_object": "obj name process_set",
    "DistributedOptimizer": "optimizer named_parameters compression backward_passes_per_step op "
    "gradient_predivide_factor num_groups groups sparse_as_dense process_set "
    "gradient_buffers",  # our own, as a keyword only
}


@pytest.mark.parametrize("function_name", SIGNATURES)
@in_one_process
def test_signature(function_name):
    function = getattr(hvd, function_name)
    parameters = inspect.signature(function).parameters
    assert " ".join(parameters) == SIGNATURES[function_name]
    assert all(p.kind is p.KEYWORD_ONLY for name, p in parameters.items() if name == "gradient_buffers")
    if "process_set" in parameters:
        assert parameters["process_set"].default is hvd.global_process_set
    for name, default in {
        "prescale_factor": 1.0,
        "average": None,
        "op": hvd.Average if "reducescatter" in function_name else None,
        "name": None,
        "device": -1,
    }.items():
        if name in parameters and function_name not in ("sparse_allreduce_async", "DistributedOptimizer"):
            assert parameters[name].default == default
    assert function.__doc__


@in_one_process
def test_public_names():
    for name in hvd.__all__:
        assert hasattr(hvd, name), name
    for name in mpi_ops.__all__:
        assert hasattr(mpi_ops, name), name
    assert hvd.elastic.__all__ == ["ElasticSampler", "TorchState", "run"]
    assert optimizer._DistributedOptimizer and functions.broadcast_object is hvd.broadcast_object
    assert hvd.mpi_ops._basics.size and hvd.mpi_ops._handle_map == {}


@in_one_process
def test_names_that_programs_import():
    """Private and undocumented names that programs written for Horovod use."""
    from unittest import mock

    import horovod
    from horovod.common.basics import HorovodBasics
    from horovod.common.process_sets import _temp_process_set_object
    from horovod.common.util import num_rank_is_power_2, split_list

    kinds = ("Allreduce", "Allgather", "Broadcast", "Alltoall", "Reducescatter")
    grouped = ("GroupedAllreduce", "GroupedAllgather", "GroupedReducescatter")
    for name in (*kinds, *grouped):
        assert issubclass(getattr(mpi_ops, f"Horovod{name}"), torch.autograd.Function)
    for name in ("Average", "Sum", "Adasum", "Min", "Max", "Product", "rank", "size", "is_homogeneous"):
        assert getattr(mpi_ops, name) == getattr(hvd, name)
    assert mpi_ops.handle_average_backwards_compatibility(None, None) == hvd.Average
    for name in ("_get_process_set_ids_and_ranks", "_process_set_rank", "_process_set_size"):
        assert callable(getattr(mpi_ops._basics, name))
    for name in ("_add_process_set_impl", "_remove_process_set_impl", "_comm_process_set_id"):
        assert callable(getattr(mpi_ops._basics, name))
    errors = ("INIT", "DYNAMIC", "UNKNOWN_SET", "FOREIGN_SET", "SHUTDOWN", "EXISTING_SET")
    codes = [getattr(HorovodBasics, f"HOROVOD_PROCESS_SET_ERROR_{name}") for name in errors]
    assert codes == [-1, -2, -3, -4, -5, -6]
    assert _temp_process_set_object(3).process_set_id == 3
    assert num_rank_is_power_2(8) and not num_rank_is_power_2(6) and split_list([1, 2, 3], 2) == [[1, 2], [3]]
    assert callable(horovod.run)
    with pytest.raises(ImportError):
        __import__("horovod.run.runner")
    with mock.patch("horovod.torch.size", return_value=7):
        assert hvd.size() == 7


@in_one_process
def test_compressors():
    for name in ("Compressor", "NoneCompressor", "FP16Compressor", "BF16Compressor"):
        assert inspect.isclass(getattr(compression, name))
    x = torch.ones(3)
    assert hvd.Compression.none.compress(x) == (x, None) and hvd.Compression.none.decompress(x, None) is x
    sent, context = hvd.Compression.fp16.compress(x)
    assert (
        sent.dtype is torch.float16 and hvd.Compression.fp16.decompress(sent, context).dtype is torch.float32
    )


@in_one_process
def test_init_refuses():
    with pytest.raises(ValueError, match="dynamic"):
        hvd.init(process_sets="static")
    assert not hvd.is_initialized()


def test_one_process_without_a_launcher():
    assert alone(torch_alone.use_without_a_launcher) == (None, "")


def test_ctrl_c_ends_a_wait():
    run_on_ranks(2, torch_alone.interrupt_waits_of_rank_0, framework="torch", timeout=280)
