"""horovod.torch on tensors of a device: the simulated `gcu` of backends/eccl_stub, whose streams are late.

The checks are in ranks_device_*.py, which tests/gpu runs on GPUs, once for each way to serve the device. The
device itself (torch_gcu) and the backend are installed by `make test`.
"""

import pytest

from harness import check_names, run_to_the_end
from harness.frameworks import environment_of, launcher, run_check, run_with
from harness.installed import need

need("torch")

# The streams are late by TOPS_SIM_DELAY_US, which the processes have from their start.
JOBS = {
    "alone": (["ranks_device_alone"], 1, {}, {"TOPS_SIM_DELAY_US": "2000"}),
    "eccl_stub": (["ranks_device_ops", "ranks_device_stress"], 2, {"HOROVOD_BACKEND": "eccl_stub"}, {}),
    # Only the device's table is used: the operations are those of the backend for host memory.
    "staged": (["ranks_device_ops", "ranks_device_stress"], 2, {"HOROVOD_BACKEND": "gcu=shm"}, {}),
    # No backend has the device: PyTorch copies.
    "no-backend": (
        ["ranks_device_ops", "ranks_device_stress", "ranks_staging", "ranks_staging_training"],
        2,
        {"HOROVOD_BACKEND": "shm"},
        {},
    ),
}
CASES = [
    (job, module, check)
    for job, (modules, *_) in JOBS.items()
    for module in modules
    for check in check_names(f"torch/{module}.py")
]


@pytest.fixture(scope="module", autouse=True)
def _device():
    why = run_with("torch", 1, "torch/ranks_module.py::why_no_device", init=None).results[0]
    if why:
        pytest.skip(
            "torch has no device 'gcu': `make test` installs backends/eccl_stub and tests/devices/torch_gcu. "
            + why
        )


@pytest.mark.timeout(500)
@pytest.mark.parametrize(("job", "module", "check"), CASES, ids=[f"{job}-{check}" for job, _, check in CASES])
def test_check(job, module, check):
    _, ranks, env, process_env = JOBS[job]
    run_check("torch", ranks, "torch", module, check, env=env, process_env=process_env)


# With shm alone no backend has the device: PyTorch copies.
@pytest.mark.parametrize("backend", ["eccl_stub", pytest.param("shm", marks=pytest.mark.slow)])
def test_the_death_of_a_rank_is_told_to_who_waits_for_a_device(backend):
    env = {**environment_of("torch"), "HOROVOD_BACKEND": backend}
    output = run_to_the_end(
        2,
        "torch/rank_device_dies.py::last_rank_dies",
        env=env,
        init="horovod.torch",
        timeout=280,
        code=137,
        command=launcher("torch", 2),
    )
    told = [line for line in output.splitlines() if "told:" in line]
    assert len(told) == 1 and "rank 1" in told[0], output


@pytest.mark.slow
def test_a_program_may_end_while_its_tensors_are_copied():
    env = {**environment_of("torch"), "HOROVOD_BACKEND": "shm", "TOPS_SIM_DELAY_US": "2000"}
    run_to_the_end(
        2,
        "torch/rank_device_dies.py::ends_while_copies_are_made",
        env=env,
        init="horovod.torch",
        timeout=280,
        command=launcher("torch", 2),
    )
