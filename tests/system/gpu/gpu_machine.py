"""Whether this machine has GPUs, what is on them, and how ranks that share one are told. Imports nothing heavy: without
a GPU the tests of this folder are skipped before anything is loaded.
"""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# NCCL lets ranks share a GPU from here on.
SHARING_SWITCH = 23003


def why_none() -> str:
    """Empty where the driver's devices are there; else the reason."""
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
        return "no NVIDIA GPU on this machine: there is no /dev/nvidia0"
    return ""


def require() -> None:
    """Skips the module that calls it unless there is a GPU with all that its tests stand on."""
    reason = why_none()
    if not reason:
        missing = [m for m in ("torch", "hvd_backend_nccl") if importlib.util.find_spec(m) is None]
        reason = (
            f"not installed: {', '.join(missing)}; tests/system/gpu/run.sh builds what it needs"
            if missing
            else ""
        )
    if reason:
        pytest.skip(reason, allow_module_level=True)


@functools.cache
def count() -> int:
    """GPUs that a process sees. Asked in a process of its own: this one must not open the driver."""
    code = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(0); "
        "well = cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(n)) == 0; print(n.value if well else 0)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    return int(said.stdout)


@functools.cache
def nccl_version() -> int:
    """The number of torch's NCCL, which the backend finds as well: 22703 for 2.27.3."""
    code = "import torch; v = torch.cuda.nccl.version(); print(v[0] * 10000 + v[1] * 100 + v[2])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    return int(said.stdout.split()[-1])


def sharing(ranks: int) -> dict[str, str]:
    """What so many ranks of this machine need in their environment; {rank} stands for each one's own number.

    Where each has a GPU of its own: nothing. Until NCCL 2.30.3 ranks that share one have to pass for ranks of several
    hosts, and speak over sockets then.
    """
    if ranks <= count():
        return {}
    if nccl_version() >= SHARING_SWITCH:
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    return {"NCCL_HOSTID": "rank{rank}"}


def environment(ranks: int, **more: str) -> dict[str, str]:
    """For jobs of horovod.torch with so many ranks on GPUs; own_number.py puts each rank's number in."""
    # The harness hides GPUs from its ranks.
    seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count())))
    return {"HVD_TEST_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": seen, **sharing(ranks), **more}


def command(*launcher: str) -> list[str]:
    """The words of a launcher, and the interpreter with own_number.py, in front of a program of ranks."""
    return [*launcher, sys.executable, str(Path(__file__).with_name("own_number.py"))]
