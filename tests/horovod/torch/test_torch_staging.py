"""Checks of tensors on a device that no backend serves, which PyTorch copies through host memory; run by tests/harness.

The device's streams are late (TOPS_SIM_DELAY_US, hold()), so that a copy which does not wait has wrong numbers. The
checks of ranks_device_*.py run on such a device too."""

import dataclasses
import logging
import threading

import pytest
import torch

import horovod.torch as hvd
from harness.rank import needs
from horovod.common.exceptions import HorovodInternalError
from horovod.torch import _devices, _staging
from hvd_core._config.hints import pip_install
from hvd_core._frontend import memory
from hvd_core._runtime import current_job
from torch_device import COUNT, KIND, MODULE, device, hold
from torch_support import raises

pytestmark = pytest.mark.ranks(2, framework="torch", env={"HOROVOD_BACKEND": "shm"})


def total():
    """The sum of what mine() has on all ranks."""
    return hvd.size() * (hvd.size() + 1) / 2


def mine(*shape):
    return torch.full(shape or (4,), hvd.rank() + 1.0, device=device())


def still_works():
    assert hvd.allreduce(mine(), op=hvd.Sum, name="still.works").cpu().tolist() == [total()] * 4
    assert hvd.allreduce(mine(), op=hvd.Sum).cpu().tolist() == [total()] * 4
    assert not hvd.mpi_ops._handle_map, hvd.mpi_ops._handle_map


class Heard(logging.Handler):
    """The warnings of Horovod while it is entered."""

    def __enter__(self):
        self.texts = []
        logging.getLogger("horovod").addHandler(self)
        return self

    def emit(self, record):
        self.texts.append(record.getMessage())

    def __exit__(self, *_):
        logging.getLogger("horovod").removeHandler(self)


def test_one_warning_that_says_what_to_install():
    memory._warned.discard(KIND)
    with Heard() as heard:
        hvd.allreduce(mine())
        hvd.allgather(mine())
    assert len(heard.texts) == 1, heard.texts
    for part in (f"device type '{KIND}'", "STAGED", "why: HOROVOD_BACKEND names shm", memory.remedy(KIND)):
        assert part in heard.texts[0], heard.texts
    assert "vendor" in memory.remedy("gcu")
    assert memory.remedy("cuda") == pip_install("hvd-backend-nccl")


def test_calls_return_before_the_device_is_done():
    hvd.allreduce(mine(1 << 16), op=hvd.Sum, name="late")
    for _ in range(100):  # if the host waits for a processor, the stream is done first
        MODULE.synchronize()
        tensor = torch.zeros(1 << 16, device=device())
        hold()
        for _ in range(20):
            tensor.fill_(-1.0)
        tensor.fill_(hvd.rank() + 1.0)
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="late")
        early = not MODULE.current_stream().query()
        assert hvd.synchronize(handle) is tensor
        assert tensor.cpu().unique().tolist() == [total()]
        enough = hvd.allreduce(torch.tensor(int(early)), op=hvd.Min, name="early")
        if enough:
            break
    else:
        raise AssertionError("the call has waited for the device each time")


def test_unnamed_operations_keep_their_order():
    """Those of the device begin later than those of the host that come after them."""
    for _ in range(5):
        tensors = [torch.full((8,), float(i), device=device() if i % 2 else "cpu") for i in range(12)]
        handles = [hvd.allreduce_async(tensor, op=hvd.Sum) for tensor in tensors]
        order = list(enumerate(handles))
        for i, handle in order if hvd.rank() else reversed(order):
            assert hvd.synchronize(handle).cpu().tolist() == [float(i * hvd.size())] * 8


@needs(ranks=2)
def test_ranks_with_and_without_the_device():
    """All ranks are told, by the text of each rank's tensor."""
    where = device() if hvd.rank() == 0 else "cpu"
    for call in (
        lambda t: hvd.allreduce(t, name="where"),
        lambda t: hvd.grouped_allreduce([t, t], name="where"),
        lambda t: hvd.allgather(t, name="where"),
        lambda t: hvd.alltoall(t, name="where"),
        lambda t: hvd.reducescatter(t, name="where"),
        lambda t: hvd.broadcast(t, 0, name="where"),
    ):
        with raises(HorovodInternalError, "device selection", "rank 0: ", f"on staged {KIND}", "on cpu"):
            call(torch.ones(2 * hvd.size(), device=where))
        still_works()


def test_a_backend_that_is_named_for_devices_is_not_replaced():
    job = current_job.get()
    plan = job.plan
    named = "HOROVOD_GPU_OPERATIONS names the backend 'nccl' for devices"
    job.backends.plan = dataclasses.replace(plan, named_for_devices=named)
    try:
        for call in (hvd.allreduce, hvd.allgather, hvd.allreduce_async_):
            with raises(ValueError, f"no backend serves tensors on device type '{KIND}'", named, "unset"):
                call(mine(), name="refused")
    finally:
        job.backends.plan = plan
    hvd.barrier()
    still_works()


def test_mistakes_are_those_of_the_host():
    for call, texts in (
        (lambda t: hvd.allreduce_(t.t()), ("contiguous",)),
        (lambda t: hvd.allreduce(t > 0), ("is not supported",)),
        (lambda t: hvd.allreduce(t, op=77), ("reduce op",)),
        (lambda t: hvd.broadcast(t, hvd.size()), ("invalid root rank",)),
        (lambda t: hvd.alltoall(t, [1] * (hvd.size() + 1)), ("splits",)),
        (lambda t: hvd.grouped_allreduce([t, t.cpu()]), ("same device",)),
        (lambda t: hvd.reducescatter(t.sum()), ("scalar",)),
    ):
        with raises(ValueError, *texts):
            call(mine(2, 3))
        still_works()
    if hvd.rank() == 0:  # before another rank has begun the operation
        handle = hvd.allreduce_async(mine(), name="twice", op=hvd.Sum)
        with raises(ValueError, "same name"):
            hvd.allreduce_async(mine(), name="twice")
    hvd.barrier()
    if hvd.rank() > 0:
        handle = hvd.allreduce_async(mine(), name="twice", op=hvd.Sum)
    assert hvd.synchronize(handle).cpu()[0] == total()
    if hvd.rank() > 0:
        with raises(HorovodInternalError, "same name"):
            hvd.allreduce(mine(), name="twice")
    still_works()


class _Broken:
    """An event of a device that has failed."""

    def synchronize(self):
        raise RuntimeError("device lost")


def test_a_copy_that_fails_fails_the_call_of_all_ranks():
    for wait in (False, True):
        host = torch.ones(3)
        made = _staging.Staged([mine(3)], [mine(3)])
        core = hvd.mpi_ops.engine()
        handle = core.allreduce(made.sources[0], made.targets[0], "broken", 0)
        if hvd.rank() == 0:
            made.ready = _Broken()
        try:
            made.begin(core, handle, wait)
        except RuntimeError as error:
            assert wait and hvd.rank() == 0 and "device lost" in str(error)
        with raises(HorovodInternalError, "could not be copied to host memory", "device lost"):
            core.wait(handle)
        core.release(handle)
        del host
    still_works()


def test_an_interrupted_wait_leaves_no_rank_waiting():
    class Interrupted:
        count = 0

        def synchronize(self):
            self.count += 1
            if self.count == 1:
                raise KeyboardInterrupt

    made = _staging.Staged([mine(3)], [mine(3)])
    core = hvd.mpi_ops.engine()
    handle = core.allreduce(made.sources[0], made.targets[0], "interrupted", 0)
    made.ready.synchronize()
    made.ready = Interrupted()
    with raises(KeyboardInterrupt):
        made.begin(core, handle, True)
    assert made.all(core, handle)[0].cpu().tolist() == [total()] * 3
    core.release(handle)
    still_works()


def test_an_interrupt_before_the_copy_is_waited_for_leaves_no_rank_waiting():
    """The exception comes between the engine's call and begin(), so that no caller knows the handle."""
    for name in ("lost", None):
        if hvd.rank() == 0:
            made = _staging.Staged([mine(3)], [mine(3)])
            full_name = name and f"allreduce.{name}"
            hvd.mpi_ops.engine().allreduce(made.sources[0], made.targets[0], full_name, 0)
            del made
        else:
            handle = hvd.allreduce_async(mine(3), name=name, op=hvd.Sum)
            assert hvd.synchronize(handle).cpu().tolist() == [total()] * 3
    still_works()


def test_results_that_autograd_does_not_see():
    with torch.inference_mode():
        tensor = mine()
    assert tensor.is_inference()
    hvd.allreduce_(tensor, op=hvd.Sum)
    assert tensor.cpu()[0] == total()
    leaf = mine().requires_grad_()
    version = leaf._version
    hvd.broadcast_(leaf, hvd.size() - 1)
    assert leaf.is_leaf and leaf._version == version and leaf.detach().cpu()[0] == hvd.size()


def test_only_the_root_sends_and_the_others_receive():
    for root in range(hvd.size()):
        tensor = mine(1000)
        other = MODULE.Stream()
        handle = hvd.broadcast_async_(tensor, root, name="root")
        with MODULE.stream(other):
            assert hvd.synchronize(handle) is tensor
            assert tensor.cpu().unique().tolist() == [root + 1.0]
        out = hvd.broadcast(mine(5), root)
        assert out.cpu().tolist() == [root + 1.0] * 5


def test_the_bits_are_those_of_the_host():
    generator = torch.Generator().manual_seed(hvd.rank())
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32):
        host = (torch.rand(999, generator=generator) * 100).to(dtype)
        for op in (hvd.Average, hvd.Sum, hvd.Max, hvd.Adasum):
            if op == hvd.Adasum and not dtype.is_floating_point:
                continue
            factors = {} if op in (hvd.Max, hvd.Adasum) else {"prescale_factor": 1.7, "postscale_factor": 0.3}
            found, wanted = (
                hvd.allreduce(tensor, op=op, name="bits", **factors) for tensor in (host.to(device()), host)
            )
            assert found.device == device() and torch.equal(found.cpu(), wanted), (dtype, op)


def test_threads():
    failures = []

    def work(number):
        try:
            MODULE.set_device(device().index)
            with MODULE.stream(MODULE.Stream()):
                for turn in range(10):
                    found = hvd.allreduce(mine(64) * number, op=hvd.Sum, name=f"thread.{number}.{turn % 3}")
                    assert found.cpu().unique().tolist() == [total() * number]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert sum(thread.name.startswith("hvd-copies") for thread in threading.enumerate()) == 1


def test_a_device_without_streams():
    """Copies that wait: of a device whose module in torch has no streams or events, or that pins no memory."""
    known = _devices._streams
    _devices._streams = {device(): None}
    try:
        tensor = mine(100)
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum)
        while not hvd.poll(handle):
            pass
        assert tensor.cpu().unique().tolist() == [total()]
        assert hvd.synchronize(handle) is tensor
        assert hvd.allreduce(mine(), op=hvd.Sum).cpu()[0] == total()
        assert hvd.allgather(mine(hvd.rank() + 1)).cpu().tolist() == [
            r + 1.0 for r in range(hvd.size()) for _ in range(r + 1)
        ]
        assert hvd.broadcast(mine(3), 0).cpu().tolist() == [1.0] * 3
        assert hvd.reducescatter(mine(hvd.size()), op=hvd.Sum).cpu().tolist() == [total()]
        rows, _ = hvd.alltoall(mine(hvd.size()), [1] * hvd.size())
        assert rows.cpu().tolist() == [r + 1.0 for r in range(hvd.size())]
    finally:
        _devices._streams = known


def test_compiled_functions():
    @torch.compile(backend="eager", fullgraph=True)
    def compiled(tensor):
        reduced = hvd.allreduce(tensor * 2, op=hvd.Sum, name="compiled")
        return hvd.grouped_allreduce([reduced, tensor], op=hvd.Max, name="compiled")[0] + 1

    tensor = mine().requires_grad_()
    result = compiled(tensor)
    result.sum().backward()
    assert result.detach().cpu().tolist() == [2 * total() + 1] * 4
    assert tensor.grad.device == device()


def test_shutdown_with_a_pending_operation():
    if hvd.rank() == 0:
        hvd.allreduce_async(mine(), name="never")
    hvd.barrier()
    hvd.shutdown()  # does not wait for it
    hvd.init()
    still_works()


@needs(COUNT > 1, "there is one device")
def test_other_devices_of_the_type():
    elsewhere = torch.device(KIND, (device().index + 1) % COUNT)
    tensor = torch.full((3,), hvd.rank() + 1.0, device=elsewhere)
    result = hvd.allreduce(tensor, op=hvd.Sum)
    assert result.device == elsewhere and result.cpu().tolist() == [total()] * 3
    assert MODULE.current_device() == device().index
