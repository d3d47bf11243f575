"""torch.distributed on tensors of a device, the simulated `gcu` of backends/eccl_stub: served by its backend, and staged.

The device itself (tests/devices/torch_gcu) and the backend are installed by `make test`.
"""

import pytest

from harness.checks import check_names, run_check, run_with
from harness.installed import need

need("torch")

JOBS = {
    "eccl_stub": {"HOROVOD_BACKEND": "eccl_stub"},
    # Only the device's table is used: the operations are those of the backend for host memory.
    "staged": {"HOROVOD_BACKEND": "gcu=shm"},
    # No backend has the device: PyTorch copies.
    "no-backend": {"HOROVOD_BACKEND": "shm"},
}
QUICK = [("eccl_stub", check) for check in check_names("torch_distributed/ranks_devices.py")] + [
    ("no-backend", "check_collectives_on_a_device"),
    ("no-backend", "check_messages_of_a_device"),
]
CASES = [
    pytest.param(job, ranks, check, id=f"{job}-{ranks}-{check}", marks=marks)
    for ranks in (2, 3)
    for job in JOBS
    for check in check_names("torch_distributed/ranks_devices.py")
    for marks in [[] if ranks == 2 and (job, check) in QUICK else [pytest.mark.slow]]
]


@pytest.fixture(scope="module", autouse=True)
def _device():
    why = run_with("torch", 1, "torch/ranks_module.py::why_no_device", init=None).results[0]
    if why:
        pytest.skip(f"torch has no device 'gcu': `make test` installs what makes it. {why}")


@pytest.mark.parametrize(("job", "ranks", "check"), CASES)
def test_check(job, ranks, check):
    run_check("torch", ranks, "torch_distributed", "ranks_devices", check, env=JOBS[job])
