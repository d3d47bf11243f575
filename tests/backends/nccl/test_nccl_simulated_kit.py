"""The conformance kit on `nccl` over the simulated CUDA and NCCL (simulator/README.md): no GPU takes part."""

import os
import re
import subprocess
import sys

import pytest

import simulated_cuda

# Cases of collectives that the backend lacks and hvd_core composes.
EMULATED = ["L2.average", "L2.barrier"]


def kit(*arguments, ranks=2, timeout=280, code=0, **environment):
    """What the kit printed; it must not have left out anything but windows, nor found a fault unless `code` is 1."""
    done = subprocess.run(
        [sys.executable, "-m", "hvd_core.conformance", "nccl", "-np", str(ranks), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **simulated_cuda.environment(**environment)},
    )
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert not re.findall(r"^ +SKIPPED(?! +L[24]\.windows)", said, re.MULTILINE), said
    return said


def test_the_kit_on_two_ranks():
    said = kit("--quick")
    assert re.findall(r"^ +EMULATED (\S+)", said, re.MULTILINE) == sorted(EMULATED, reverse=True), said
    assert len(re.findall(r"^ +PASS", said, re.MULTILINE)) > 60, said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_kit_on_four_ranks():
    print(kit(ranks=4, timeout=580))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "variant",
    [
        {"HOROVOD_BACKEND_NCCL_NONBLOCKING": "1"},
        {"SIM_NCCL_VERSION": "21903", "SIM_CUDA_ARCH": "75"},  # no 8-bit floats
        {"SIM_CUDA_DRIVER_VERSION": "11040", "SIM_CUDA_ARCH": "80"},  # an old driver compiles the kernels
        {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "SIM_NCCL_VERSION": "23003", "SIM_CUDA_DEVICES": "1"},
    ],
    ids=lambda variant: " ".join(variant),
)
def test_the_kit_on_other_machines(variant):
    print(kit("--quick", timeout=280, **variant))


@pytest.mark.slow
def test_ranks_that_share_a_device_pass_for_several_hosts():
    """As on one GPU with an NCCL before 2.30.3; without that, NCCL refuses, and says why."""
    print(kit("--quick", "--env", "NCCL_HOSTID=rank{rank}", SIM_CUDA_DEVICES="1"))
    said = kit("--case", "L2.broadcast", code=1, SIM_CUDA_DEVICES="1")
    assert "ncclInvalidUsage (5)" in said and "Duplicate GPU detected" in said, said


@pytest.mark.slow
def test_the_kit_sees_the_price_of_native_minima():
    """NCCL's own lose a NaN against a number, which is why they are not the default."""
    variant = {"HOROVOD_BACKEND_NCCL_MINMAX": "native"}
    said = kit("--case", "L2.special_values", code=1, **variant)
    assert said.count("NaN is lost: 1.0 instead, for (nan, 1.0)") >= 8, said
    assert "float64 max" in kit("-v", "--case", "L2.allreduce", **variant)
