"""horovod.tensorflow on tensors of a device: the simulated `GCU` of tests/devices/tf_gcu, whose streams are late.

The checks are in ranks_tf_device_*.py; one job for each way to serve the device, started when the first test needs it.
The device itself (tf_gcu) and the backend are installed by `make test`.
"""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tf_launch import Report, checks_of

HERE = Path(__file__).resolve().parent
PLUGIN = HERE.parent / "devices" / "tf_gcu"

# Late enough that who does not wait reads what was there before; short enough for thousands of operations.
LATE = {"TOPS_SIM_DELAY_US": "50", "TF_GCU_JITTER_US": "200"}
OPS = "ranks_tf_device_ops"
JOBS = {
    "eccl_stub": (
        ["ranks_tf_device_alone", OPS, "ranks_tf_device_stress", "ranks_tf_device_staged"],
        {**LATE, "HOROVOD_BACKEND": "eccl_stub", "HVD_TEST_SERVED": "NATIVE"},
    ),
    # A device that nobody serves: TensorFlow copies.
    "no_backend": ([OPS], {**LATE, "HOROVOD_BACKEND": "shm", "HVD_TEST_SERVED": "HOST"}),
}
CASES = [
    (job, module, check)
    for job, (modules, _) in JOBS.items()
    for module in modules
    for check in checks_of(module)
]


def installed(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(
            f"{', '.join(missing)} not installed: `make test` installs TensorFlow, the backend and its device"
        )


@functools.cache
def report(job):
    installed("tensorflow", "tf_gcu", "hvd_backend_eccl_stub")
    modules, env = JOBS[job]
    return Report(modules, 2, env, timeout=480)


@pytest.mark.timeout(500)
@pytest.mark.parametrize(("job", "module", "check"), CASES, ids=[f"{job}-{check}" for job, _, check in CASES])
def test_check(job, module, check):
    report(job).verify(module, check)


def test_who_copies_says_so():
    for job, times in (("no_backend", 1), ("eccl_stub", 0)):
        said = report(job).outputs[OPS]
        assert said.count("no backend works on memory of TensorFlow's GCU devices") == times, said[-2000:]


def test_declarations_are_tensorflows():
    installed("tensorflow")
    if not (PLUGIN / "csrc").is_dir():
        pytest.skip("the sources of tf_gcu are not beside the tests")
    include = Path(importlib.util.find_spec("tensorflow").submodule_search_locations[0]) / "include"
    command = [
        "c++",
        "-std=c++17",
        "-fsyntax-only",
        "-I",
        include,
        "-I",
        PLUGIN / "csrc",
        HERE / "tf_abi_check.cc",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_library_that_cannot_be_opened_is_named():
    installed("tf_gcu")
    command = [sys.executable, "-c", "import tf_gcu; tf_gcu.load()"]
    environment = {**os.environ, "HOROVOD_BACKEND_ECCL_STUB_LIBRARY": "/nowhere/libeccl.so"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 1
    assert "RuntimeError: tf_gcu: /nowhere/libeccl.so cannot be used" in done.stderr, done.stderr[-2000:]
