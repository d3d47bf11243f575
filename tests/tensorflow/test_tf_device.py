"""horovod.tensorflow on tensors of a device: the simulated `GCU` of tests/devices/tf_gcu, whose streams are late.

The checks are in ranks_tf_device_*.py. Each service of the device needs processes of its own, as TensorFlow takes one
set of kernels for a device.
The device itself (tf_gcu) and the backend are installed by `make test`.
"""

import importlib.util
import subprocess
from pathlib import Path

import pytest

from harness.checks import check_names, run_check

HERE = Path(__file__).resolve().parent
PLUGIN = HERE.parent / "devices" / "tf_gcu"

# Long enough that an operation that does not wait reads old values; short enough for thousands of operations.
LATE = {"TOPS_SIM_DELAY_US": "50", "TF_GCU_JITTER_US": "200"}
OPS = "ranks_tf_device_ops"
JOBS = {
    "eccl_stub": (
        ["ranks_tf_device_alone", OPS, "ranks_tf_device_stress", "ranks_tf_device_staged"],
        {**LATE, "HOROVOD_BACKEND": "eccl_stub", "HVD_TEST_SERVED": "NATIVE"},
    ),
    # A device that no backend serves: TensorFlow copies.
    "no_backend": (
        [OPS, "ranks_tf_device_copied"],
        {**LATE, "HOROVOD_BACKEND": "shm", "HVD_TEST_SERVED": "HOST"},
    ),
    "refused": (["ranks_tf_device_refused"], {"HOROVOD_BACKEND": "shm", "HVD_TEST_SERVED": "REFUSED"}),
}
FIRST = {"refused": ("ranks_tf_device_refused", "check_a_backend_that_is_named_for_devices_is_not_replaced")}
# All pairs of a type and an operation; a check beside it has each of them.
SLOW = "check_allreduce_every_type_and_op_in_functions"
CASES = [
    pytest.param(job, module, check, id=f"{job}-{check}", marks=pytest.mark.slow if check == SLOW else ())
    for job, (modules, _) in JOBS.items()
    for module in modules
    for check in check_names(f"tensorflow/{module}.py")
]


def installed(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(
            f"{', '.join(missing)} not installed: `make test` installs TensorFlow, the backend and its device"
        )


# What the ranks have printed so far, by job.
_outputs = dict.fromkeys(JOBS, "")


def run(job, module, check):
    installed("tensorflow", "tf_gcu", "hvd_backend_eccl_stub")
    _, env = JOBS[job]
    _outputs[job] += run_check("tensorflow", 2, "tensorflow", module, check, process_env=env).output


@pytest.mark.timeout(500)
@pytest.mark.parametrize(("job", "module", "check"), CASES)
def test_check(job, module, check):
    run(job, module, check)


def test_copies_are_reported_once():
    for job, times in (("no_backend", 1), ("eccl_stub", 0), ("refused", 1)):
        if not _outputs[job]:  # this test runs alone
            run(job, *FIRST.get(job, (OPS, "check_broadcast")))
        said = _outputs[job]
        assert said.count("no backend works on memory of TensorFlow's GCU devices") == times, said[-2000:]
        assert said.count("fix: install the backend wheel of the device's vendor") == times, said[-2000:]


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


def test_a_library_that_cannot_be_opened_is_named(monkeypatch):
    installed("tf_gcu")
    import tf_gcu  # without TensorFlow, which load() imports when it has found the library

    monkeypatch.setenv("HOROVOD_BACKEND_ECCL_STUB_LIBRARY", "/nowhere/libeccl.so")
    with pytest.raises(RuntimeError, match=r"tf_gcu: /nowhere/libeccl\.so cannot be used"):
        tf_gcu.load()
