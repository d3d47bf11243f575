"""What only CUDA has: contexts, graph captures, memory that is given back. The bodies of test_gpu_torch_contexts.py and
test_gpu_torch_cuda.py, in a file of their own, as ranks need not know the jobs.

torch_device counts the devices when it is imported, and a test wants to see what hvd.init() does without that.
"""

import ctypes
import os
import time

import torch

import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError


def _contexts():
    """Ordinals of the devices on which this process has a primary context."""
    cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    found = []
    for ordinal in range(count.value):
        device, flags, active = ctypes.c_int(0), ctypes.c_uint(0), ctypes.c_int(0)
        assert cuda.cuDeviceGet(ctypes.byref(device), ordinal) == 0
        assert cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0
        if active.value:
            found.append(ordinal)
    return found


def test_init_has_made_no_context():
    """In a new process, where nothing but hvd.init() has been called."""
    open_files = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    devices = [name for name in open_files if name.startswith("/dev/nvidia") and name[11:12].isdigit()]
    assert not devices, f"hvd.init() has opened {devices}"
    assert _contexts() == []


def test_one_context_on_ones_own_device():
    from torch_device import device

    out = hvd.allreduce(torch.full((5,), hvd.rank() + 1.0, device=device()), op=hvd.Sum, name="first")
    assert out.cpu().tolist() == [hvd.size() * (hvd.size() + 1) / 2] * 5
    assert _contexts() == [device().index]


def _still_works():
    from torch_device import device

    out = hvd.allreduce(torch.ones(3, device=device()), op=hvd.Sum, name="still")
    assert out.cpu().tolist() == [float(hvd.size())] * 3


def test_a_capture_of_the_users_own_while_a_job_is_in_flight():
    """The engine's threads work (events, memory, launches) while this thread captures in the strictest mode."""
    from torch_device import device, hold

    side = torch.cuda.Stream()
    x = torch.arange(1000.0, device=device())
    with torch.cuda.stream(side):
        (x * 2 + 1).sum()  # kernels are loaded, memory is there
    tensors = [torch.full((1000 * (i + 1),), float(hvd.rank()), device=device()) for i in range(20)]
    _still_works()
    torch.cuda.synchronize()
    for turn in range(10):
        # New names and sizes in each turn, so that the engine also allocates and packs during the capture.
        for tensor in tensors:
            tensor.fill_(float(hvd.rank() + turn))
        hold(20)
        handles = [
            hvd.allreduce_async_(t, op=hvd.Sum, name=f"flight.{turn}.{i}") for i, t in enumerate(tensors)
        ]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="global")
            for _ in range(60):
                y = x * 2 + turn
                time.sleep(0.001)
            graph.capture_end()
        for handle in handles:
            hvd.synchronize(handle)
        wanted = float(sum(r + turn for r in range(hvd.size())))
        assert all(bool((t == wanted).all()) for t in tensors)
        y.zero_()
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, x * 2 + turn)


def test_a_collective_under_capture_says_what_is_wrong():
    from torch_device import device

    tensor, side = torch.ones(100, device=device()), torch.cuda.Stream()
    _still_works()
    torch.cuda.synchronize()
    graph, problem = torch.cuda.CUDAGraph(), None
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="global")
        doubled = tensor * 2
        try:
            hvd.synchronize(hvd.allreduce_async_(tensor, op=hvd.Sum, name="captured"))
        except (ValueError, RuntimeError, HorovodInternalError) as error:
            problem = error
        # The capture itself is not spoilt by the refusal.
        graph.capture_end()
    assert problem is not None and "captur" in str(problem), problem
    graph.replay()
    torch.cuda.synchronize()
    assert bool((doubled == 2).all())
    _still_works()


def test_memory_is_given_back():
    from torch_device import device

    def step(turn):
        for count in (10, 5000, 1 << 20):
            tensor = torch.ones(count, device=device())
            hvd.allreduce_(tensor, name=f"memory.{count}")
            hvd.allgather(tensor[: 1 + (turn + hvd.rank()) % 7], name="memory.rows")
        torch.cuda.synchronize()

    for turn in range(20):
        step(turn)
    before = torch.cuda.mem_get_info()[0]
    for turn in range(200):
        step(turn)
    lost = before - torch.cuda.mem_get_info()[0]
    # Others may use the device as well; what leaks grows by every step.
    assert lost < 64 << 20, f"{lost >> 20} MiB less free after 200 steps"
