"""hvd.init() leaves the choice of the GPU to the script: the driver reads CUDA_VISIBLE_DEVICES after it."""

import gpu_machine

gpu_machine.require()

import os
import subprocess
import sys

import pytest

BEFORE = "import os, torch; import horovod.torch as hvd; hvd.init(); "
SEES_NONE = (
    BEFORE + "os.environ['CUDA_VISIBLE_DEVICES'] = ''; "
    "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); rc = cuda.cuInit(0); print('cuInit', rc); "
    "n = ctypes.c_int(-1); rc = rc or cuda.cuDeviceGetCount(ctypes.byref(n)); print('sees', n.value if rc == 0 else 0)"
)
CHOOSES = (
    BEFORE + "os.environ['CUDA_VISIBLE_DEVICES'] = str({last} if hvd.rank() % 2 else 0); "
    "t = torch.full((3,), hvd.rank() + 1.0, device='cuda'); print('got', hvd.allreduce(t, op=hvd.Sum).tolist(), "
    "torch.cuda.device_count())"
)


def run(code, ranks=1, **env):
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks), sys.executable, "-c", code]
    done = subprocess.run(
        command, env={**os.environ, "HOROVOD_BACKEND": "nccl", **env}, capture_output=True, text=True, timeout=200
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(250)
def test_visible_devices_set_after_init_count():
    assert "sees 0" in run(SEES_NONE)


@pytest.mark.timeout(250)
def test_a_device_chosen_after_init_is_used():
    last = gpu_machine.count() - 1
    ranks = 2 if last > 0 else 1
    said = run(CHOOSES.replace("{last}", str(last)), ranks)
    assert said.count("got") == ranks
    total = float(sum(range(1, ranks + 1)))
    assert said.count(f"got [{total}, {total}, {total}] 1") == ranks, said
