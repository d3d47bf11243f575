"""horovod.torch on tensors of a device: the simulated `gcu` of backends/eccl_stub, whose streams are late.

The checks are in ranks_device_*.py; one job per module and way to serve the device, started when the first test
needs it. The device itself (torch_gcu) and the backend are installed by `make test`.
"""

import functools
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from launch import Report, checks_of

# Late enough that an operation which does not wait reads what was there before; small enough for thousands of copies.
LATE = {"TOPS_SIM_DELAY_US": "200"}
JOBS = {
    "alone": ("ranks_device_alone", 1, {"TOPS_SIM_DELAY_US": "2000"}),
}
CASES = [(job, check) for job, (module, _, _) in JOBS.items() for check in checks_of(module)]


@pytest.fixture(scope="module", autouse=True)
def _device():
    said = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.gcu.why_unavailable())"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    if said.returncode or said.stdout.strip():
        pytest.skip(
            "torch has no device 'gcu': `make test` installs backends/eccl_stub and backends/eccl_stub/torch_gcu. "
            + (said.stdout + said.stderr).strip()[-300:]
        )


@functools.cache
def report(job):
    module, ranks, env = JOBS[job]
    return Report(module, ranks, env)


@pytest.mark.parametrize(("job", "check"), CASES, ids=[f"{job}-{check}" for job, check in CASES])
def test_check(job, check):
    report(job).verify(check)
