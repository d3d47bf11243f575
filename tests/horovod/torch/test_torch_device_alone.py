"""torch's device `gcu` itself (tests/simulators/torch_gcu), in one process. The tests of horovod.torch rely on these
properties: its streams are late, its memory is out of the host's reach."""

import copy
import io
import os
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_support import raises

pytestmark = pytest.mark.ranks(1, framework="torch", process_env={"TOPS_SIM_DELAY_US": "2000"})

GCU = torch.device("gcu:0")


def on_another_stream(read):
    """The result of `read()` on a stream that waits for nothing."""
    with torch.gcu.stream(torch.gcu.Stream()):
        return read()


def test_the_device_is_there():
    assert torch.gcu.why_unavailable() == "" and torch.gcu.is_available()
    assert torch.gcu.device_count() >= 2 and torch.accelerator.current_accelerator() == torch.device("gcu")
    torch.gcu.set_device(1)
    assert torch.gcu.current_device() == 1 and torch.ones(1, device="gcu").device == torch.device("gcu:1")
    with torch.gcu.device(0):
        assert torch.gcu.current_device() == 0
    assert torch.gcu.current_device() == 1
    torch.gcu.set_device(0)
    with raises(RuntimeError, "there is no gcu:99"):
        torch.gcu.set_device(99)


def test_memory_is_out_of_reach_of_the_host():
    tensor = torch.ones(4, device=GCU)
    child = os.fork()
    if child == 0:
        import ctypes

        ctypes.string_at(tensor.data_ptr(), 1)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV


def test_streams_are_late_and_events_order_them():
    late = torch.gcu.Stream()
    with torch.gcu.stream(late):
        assert torch.gcu.current_stream().gcu_stream == late.gcu_stream != 0
        result = torch.empty(1 << 16, device=GCU)
        for _ in range(100):  # if the host waits for a processor, the stream is done first
            torch.gcu.synchronize()
            result.fill_(1.0)
            if not late.query():
                break
        else:
            raise AssertionError("TOPS_SIM_DELAY_US should make the stream late")
    assert torch.gcu.current_stream().gcu_stream == 0
    torch.gcu.current_stream().wait_stream(late)
    assert bool((result.cpu() == 1.0).all())
    start, end = torch.gcu.Event(enable_timing=True), torch.gcu.Event(enable_timing=True)
    start.record()
    result.fill_(2.0)
    end.record()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) > 0


def test_without_an_event_another_stream_reads_what_was_there_before():
    tensor = torch.zeros(1 << 16, device=GCU)
    for _ in range(100):  # if the host waits for a processor, the stream is done first
        tensor.zero_()
        torch.gcu.synchronize()
        for i in range(20):
            tensor.fill_(i + 1.0)
        early = on_another_stream(lambda: tensor[-1].item())
        torch.gcu.synchronize()
        assert on_another_stream(lambda: tensor[-1].item()) == 20.0
        if early < 20.0:
            break
    assert early < 20.0


def test_operators():
    cpu = torch.arange(24.0).reshape(2, 3, 4)
    for name, function in {
        "arithmetic": lambda t: t * 2 + t.sum(),
        "matmul": lambda t: t[0] @ t[1].t(),
        "views": lambda t: t.permute(2, 0, 1)[1:, :, ::2],
        "mask": lambda t: t[t > 7],
        "cat": lambda t: torch.cat([t, t.clone()], 1),
        "bfloat16": lambda t: t.bfloat16() / 3,
        "complex": lambda t: torch.view_as_real(torch.view_as_complex(t.reshape(3, 4, 2).contiguous()) * 1j),
        "in place on a view": lambda t: (t := t.clone(), t[:, 1].fill_(9), t[..., 0].mul_(2))[0],
        "channels last": lambda t: t.unsqueeze(0).contiguous(memory_format=torch.channels_last) + 1,
    }.items():
        assert torch.equal(function(cpu.to(GCU)).cpu(), function(cpu)), name
    assert "device='gcu:0'" in repr(cpu.to(GCU))
    assert torch.equal(torch.zeros(2, 3, 4, device="gcu:1").copy_(cpu.to(GCU)).cpu(), cpu)
    assert cpu.gcu().is_gcu and copy.deepcopy(cpu.to(GCU)).device == GCU


def test_copies_that_do_not_block():
    source = torch.arange(1000.0).pin_memory()
    assert source.is_pinned() and not torch.ones(3).is_pinned()
    tensor = source.to(GCU, non_blocking=True)
    back = torch.zeros(1000).pin_memory()
    back.copy_(tensor * 2, non_blocking=True)
    torch.gcu.synchronize()
    assert torch.equal(back, source * 2)
    ordinary = torch.arange(1000.0)
    tensor = ordinary.to(GCU, non_blocking=True)
    ordinary.zero_()  # was copied before the call returned
    assert torch.equal(tensor.cpu(), source)


def test_memory_is_used_again_in_stream_order():
    third = None
    for _ in range(100):  # if the host waits for a processor, the other stream is done first
        torch.gcu.empty_cache()
        before = torch.gcu.memory_allocated()
        first = torch.ones(1 << 16, device=GCU)
        address, other = first.data_ptr(), torch.gcu.Stream()
        assert torch.gcu.memory_allocated() - before >= 1 << 18
        other.wait_stream(torch.gcu.current_stream())
        with torch.gcu.stream(other):
            for _ in range(10):
                late = first.clone()
        first.record_stream(other)
        del first
        second = torch.zeros(1 << 16, device=GCU)
        kept = second.data_ptr() != address
        torch.gcu.synchronize()
        assert bool((late.cpu() == 1.0).all())
        third = torch.zeros(1 << 16, device=GCU)
        if kept:
            break
        third = None
    assert kept, "the other stream still reads it"
    assert third.data_ptr() == address
    assert torch.gcu.max_memory_allocated() >= torch.gcu.memory_allocated() > 0


def test_training():
    def losses(device, optimizer_class, **options):
        torch.manual_seed(3)
        layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        model = nn.Sequential(*layers, nn.Linear(36, 10))
        images, labels = torch.rand(8, 1, 8, 8).to(device), torch.arange(8).to(device)
        model.to(device)
        optimizer = optimizer_class(model.parameters(), lr=0.05, **options)
        found = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return torch.tensor(found)

    for kind, options in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {})):
        torch.testing.assert_close(losses("gcu", kind, **options), losses("cpu", kind, **options))


def test_sparse_gradients():
    table = nn.Embedding(10, 3, sparse=True).to(GCU)
    before = table.weight.detach().cpu()
    table(torch.tensor([1, 4, 1], device=GCU)).sum().backward()
    assert table.weight.grad.layout is torch.sparse_coo and table.weight.grad.device == GCU
    torch.optim.SGD(table.parameters(), lr=1.0).step()
    moved = before - table.weight.detach().cpu()
    wanted = torch.zeros(10, 3)
    wanted[1], wanted[4] = 2.0, 1.0
    torch.testing.assert_close(moved, wanted)


def test_saving_and_loading():
    model = nn.Linear(3, 2).to(GCU)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for where, device in ((None, GCU), ("cpu", torch.device("cpu"))):
        file.seek(0)
        weight = torch.load(file, map_location=where)["weight"]
        assert weight.device == device and torch.equal(weight.cpu(), model.weight.detach().cpu())


def test_data_loader():
    data = TensorDataset(torch.arange(6.0))
    for workers in (0, 1):
        loader = DataLoader(data, batch_size=3, num_workers=workers, pin_memory=True)
        rows = [batch.to(GCU, non_blocking=True).tolist() for (batch,) in loader]
        assert rows == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_a_forked_child_is_refused():
    torch.ones(1, device=GCU)  # a child may use a device that its parent has not used
    child = os.fork()
    if child == 0:
        try:
            torch.ones(2, device=GCU)
        except RuntimeError as error:
            os._exit(0 if "forked process" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
