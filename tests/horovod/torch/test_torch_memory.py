"""Checks of the memory of tensors in flight: it stays what it was at the submission, and tensors without memory of their
own are refused. Run by tests/harness."""

import gc
import weakref

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from harness.heap import bytes_in_memory
from harness.rank import await_told, interrupted, tell
from horovod.common.exceptions import HorovodInternalError
from horovod.torch._operand import BY_ADDRESS
from horovod.torch._reducer import ABANDONED, wait_for
from torch_support import NO_DLPACK_API, raises

pytestmark = [
    pytest.mark.ranks(2, framework="torch"),
    pytest.mark.ranks(2, framework="torch", id="no-dlpack", process_env=NO_DLPACK_API),
]

COUNT = 40_000


def fresh():
    """Tensors of zeros in memory that has just been freed, if any has."""
    return [torch.zeros(COUNT) for _ in range(64)]


def untouched(tensors):
    assert not any(tensor.any() for tensor in tensors), "memory of other tensors was overwritten"


def test_a_watchdogs_exception_keeps_the_memory():
    calls = {
        "allreduce": lambda x, name: hvd.allreduce(x, name=name, op=hvd.Sum),
        "allreduce_": lambda x, name: hvd.allreduce_(x, name=name, op=hvd.Sum),
        "broadcast": lambda x, name: hvd.broadcast(x, 1, name=name),
        "broadcast_": lambda x, name: hvd.broadcast_(x, 1, name=name),
        "grouped": lambda x, name: hvd.grouped_allreduce([x], name=name, op=hvd.Sum),
        "reducescatter": lambda x, name: hvd.reducescatter(x, name=name, op=hvd.Sum),
    }
    for name, call in calls.items():
        if hvd.rank() == 0:
            interrupted(lambda call=call, name=name: call(torch.full((COUNT,), 3.0), name))
            zeros = fresh()
            tell(name)
            hvd.barrier()
            untouched(zeros)
        else:
            await_told(name)
            call(torch.full((COUNT,), 3.0), name)
            hvd.barrier()
    hvd.mpi_ops._handle_map.clear()  # of the calls with a handle that the program cannot know


def test_an_operation_that_ends_during_an_interruption_keeps_its_result():
    """The exception comes from the wait, although the operation is done by then: its handle is as before."""
    for turn in range(3):
        name = f"during.{turn}"
        if hvd.rank() == 0:
            handle = hvd.allreduce_async_(torch.full((2,), 3.0), name=name, op=hvd.Sum)
            interrupted(lambda handle=handle: hvd.synchronize(handle), lambda name=name: tell(name))
            assert hvd.synchronize(handle).tolist() == [6.0, 6.0]
            assert handle not in hvd.mpi_ops._handle_map
        else:
            await_told(name)
            hvd.allreduce_(torch.full((2,), 3.0), name=name, op=hvd.Sum)


def test_memory_that_is_exchanged_in_flight():
    def other(x):
        x.data = torch.zeros(5)

    def other_type(x):
        module = torch.nn.Module()
        module.register_parameter("x", x)
        module.to(torch.float64)

    for name, exchange in (("data", other), ("to", other_type)):
        x = torch.nn.Parameter(torch.full((COUNT,), float(hvd.rank() + 1)), requires_grad=False)
        if hvd.rank() == 0:
            handle = hvd.allreduce_async_(x, name=name, op=hvd.Sum)
            y = torch.nn.Parameter(torch.ones(COUNT), requires_grad=False)
            many = hvd.grouped_allreduce_async_([torch.ones(2), y], name=name, op=hvd.Sum)
            exchange(x)
            exchange(y)
            zeros = fresh()
            tell(name)
            hvd.synchronize(handle)
            hvd.synchronize(many)
            untouched(zeros)
        else:
            await_told(name)
            assert hvd.allreduce(x, name=name, op=hvd.Sum)[0] == 3
            hvd.grouped_allreduce([torch.ones(2), x], name=name, op=hvd.Sum)
    hvd.barrier()


def test_the_memory_is_let_go_at_the_end():
    array = np.ones(COUNT)
    alive = weakref.ref(array)
    x = torch.from_numpy(array)  # its storage holds the array
    del array
    for _ in range(2):
        handle = hvd.allreduce_async_(x, name="x")
        hvd.synchronize(handle)
    del x
    gc.collect()
    assert alive() is None


def test_a_new_name_does_not_cost_a_tensor():
    """What the engine keeps of a name must not lie between the tensors in the heap, and keep freed ones apart."""

    def reduce_under_new_names(names):
        for k in names:
            hvd.allreduce(torch.ones(100_000), name=f"a tensor with a name that is not short, {k}")

    reduce_under_new_names(range(100))
    before = bytes_in_memory()
    reduce_under_new_names(range(100, 1500))
    assert bytes_in_memory() - before < 20_000_000


def test_a_wait_for_a_name_that_is_interrupted():
    """A reduction that its optimizer has given up keeps its name; the wait for the name can be repeated."""
    x = torch.ones(COUNT)
    if hvd.rank() == 0:
        handle = hvd.allreduce_async_(x, name="left")
        ABANDONED[0, "allreduce.left"] = (handle,)
        interrupted(lambda: wait_for(0, "allreduce.left"))
        tell("left")
        wait_for(0, "allreduce.left")
        assert not ABANDONED and not hvd.mpi_ops._handle_map
    else:
        await_told("left")
        hvd.allreduce_(x, name="left")
    hvd.allreduce_(x, name="left")


def test_a_step_that_is_interrupted_leaves_the_gradients_to_the_engine():
    """The program goes on with zero_grad(set_to_none=False), which keeps the memory of gradients."""
    model = torch.nn.Linear(COUNT, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
    )

    def step(value):
        model(torch.full((1, COUNT), value)).sum().backward()
        optimizer.step()

    if hvd.rank() == 0:
        interrupted(lambda: step(1.0))
        optimizer.zero_grad(set_to_none=False)
        tell("again")
        model(torch.full((1, COUNT), 2.0)).sum().backward()
        optimizer.synchronize()
        assert set(model.weight.grad.flatten().tolist()) == {4.0}  # the mean of 2 and 6
    else:
        await_told("again")
        step(3.0)
        optimizer.zero_grad(set_to_none=False)
        model(torch.full((1, COUNT), 6.0)).sum().backward()
        optimizer.synchronize()
        assert set(model.weight.grad.flatten().tolist()) == {4.0}
    optimizer.zero_grad()


class Wrapper(torch.Tensor):
    """A tensor around another one, without memory of its own."""

    @staticmethod
    def __new__(cls, tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls, tensor.shape, dtype=tensor.dtype, device=tensor.device
        )

    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def inner(value):
            return value.tensor if isinstance(value, Wrapper) else value

        return function(*[inner(a) for a in args], **(kwargs or {}))


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(COUNT)


def dtensor():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.tensor import Replicate, distribute_tensor
    except ImportError:  # PyTorch 2.4
        from torch.distributed._tensor import Replicate, distribute_tensor

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return distribute_tensor(torch.ones(COUNT), init_device_mesh("cpu", (1,)), [Replicate()])


def without_memory():
    kinds = [lambda: Wrapper(torch.ones(COUNT)), fake, lambda: torch._to_functional_tensor(torch.ones(COUNT))]
    if torch.distributed.is_available():
        kinds.append(dtensor)
    return kinds


def test_tensors_without_memory_are_refused():
    calls = {
        "allreduce": lambda x: hvd.allreduce(x, name="x"),
        "allreduce_": lambda x: hvd.allreduce_(x, name="x"),
        "grouped": lambda x: hvd.grouped_allreduce([torch.ones(2), x], name="x"),
        "allgather": lambda x: hvd.allgather(x, name="x"),
        "broadcast_": lambda x: hvd.broadcast_(x, 0, name="x"),
        "alltoall": lambda x: hvd.alltoall(x, name="x"),
    }
    good = torch.ones(COUNT)
    for name, call in calls.items():
        for make in without_memory():
            if hvd.rank() == 0:
                with raises(ValueError, "has no memory that can be sent", "tensor.to_local()"):
                    call(make())
            else:
                with raises(HorovodInternalError, "has no memory that can be sent"):
                    call(good)
        assert call(good) is not None, name
    if BY_ADDRESS:
        pass  # the address of a batched tensor cannot be asked for
    elif hvd.rank() == 0:
        with raises(ValueError, "has no memory that can be sent"):
            torch.func.vmap(lambda t: hvd.allreduce(t, name="v"))(torch.ones(3, 4))
    else:
        with raises(HorovodInternalError, "has no memory that can be sent"):
            hvd.allreduce(torch.ones(4), name="v")
    if hvd.rank() == 0:
        if not BY_ADDRESS:
            # Nothing of PyTorch's stack between the reason and the advice.
            with raises(ValueError, "doesn't support sizes. Please file an issue. Wrappers"):
                hvd.allreduce(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), name="n")
    elif not BY_ADDRESS:
        with raises(HorovodInternalError, "has no memory that can be sent"):
            hvd.allreduce(good, name="n")
    hvd.allreduce(good, name="x")
    if hvd.rank() == 0 and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
