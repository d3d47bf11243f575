"""horovod.torch on tensors of a device: the simulated `gcu` of backends/eccl_stub, whose streams are late.

The checks are in ranks_device_*.py, which tests/gpu runs on GPUs; one job for each way to serve the device, started when
the first test needs it. The device itself (torch_gcu) and the backend are installed by `make test`.
"""

import functools
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from launch import HERE, Report, checks_of, launch

# Late enough that an operation which does not wait reads the old values; small enough for thousands of copies.
LATE = {"TOPS_SIM_DELAY_US": "200"}
JOBS = {
    "alone": (["ranks_device_alone"], 1, {"TOPS_SIM_DELAY_US": "2000"}),
    "eccl_stub": (["ranks_device_ops", "ranks_device_stress"], 2, {**LATE, "HOROVOD_BACKEND": "eccl_stub"}),
    # Only the device's table is used: the operations are those of the backend for host memory.
    "staged": (["ranks_device_ops", "ranks_device_stress"], 2, {**LATE, "HOROVOD_BACKEND": "gcu=shm"}),
}
CASES = [
    (job, module, check)
    for job, (modules, _, _) in JOBS.items()
    for module in modules
    for check in checks_of(module)
]


@pytest.fixture(scope="module", autouse=True)
def _device():
    said = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.gcu.why_unavailable())"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    if said.returncode or said.stdout.strip():
        pytest.skip(
            "torch has no device 'gcu': `make test` installs backends/eccl_stub and tests/devices/torch_gcu. "
            + (said.stdout + said.stderr).strip()[-300:]
        )


@functools.cache
def report(job):
    modules, ranks, env = JOBS[job]
    return Report(modules, ranks, env, timeout=480)


@pytest.mark.timeout(500)
@pytest.mark.parametrize(("job", "module", "check"), CASES, ids=[f"{job}-{check}" for job, _, check in CASES])
def test_check(job, module, check):
    report(job).verify(module, check)


def test_the_death_of_a_rank_is_told_to_who_waits_for_a_device():
    command = [sys.executable, str(HERE / "rank_device_dies.py")]
    with pytest.raises(subprocess.CalledProcessError) as died:
        launch(2, command, {**LATE, "HOROVOD_BACKEND": "eccl_stub"})
    told = [line for line in died.value.output.splitlines() if "told:" in line]
    assert len(told) == 1 and "rank 1" in told[0], died.value.output
