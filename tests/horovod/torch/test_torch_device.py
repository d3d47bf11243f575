"""Ranks that die, or end, while there is work on their devices."""

import pytest

import torch_device_jobs
from harness import run_to_the_end


# With shm alone no backend has the device: PyTorch copies.
@pytest.mark.parametrize("backend", ["eccl_stub", pytest.param("shm", marks=pytest.mark.slow)])
def test_the_death_of_a_rank_is_told_to_who_waits_for_a_device(backend):
    env = {"HOROVOD_BACKEND": backend}
    output = run_to_the_end(
        2,
        torch_device_jobs.last_rank_dies,
        env=env,
        framework="torch",
        timeout=280,
        code=137,
    )
    told = [line for line in output.splitlines() if "told:" in line]
    assert len(told) == 1 and "rank 1" in told[0], output


@pytest.mark.slow
def test_a_program_may_end_while_its_tensors_are_copied():
    env = {"HOROVOD_BACKEND": "shm", "TOPS_SIM_DELAY_US": "2000"}
    run_to_the_end(
        2,
        torch_device_jobs.ends_while_copies_are_made,
        env=env,
        framework="torch",
        timeout=280,
    )
