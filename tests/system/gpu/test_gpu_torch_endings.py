"""A rank that is killed while there is work on its GPU."""

import gpu_machine

gpu_machine.require()

import pytest

import torch_device_jobs
from harness import run_to_the_end
from harness.frameworks import horovodrun


@pytest.mark.timeout(300)
def test_the_death_of_a_rank_is_told_to_who_waits_for_a_gpu():
    output = run_to_the_end(
        2,
        torch_device_jobs.last_rank_dies,
        framework="torch",
        env=gpu_machine.environment(2, HOROVOD_BACKEND="nccl"),
        command=gpu_machine.command(*horovodrun(2)[:-1]),
        timeout=200,
        code=137,
    )
    told = [line for line in output.splitlines() if "told:" in line]
    assert len(told) == 1 and "rank 1" in told[0], output
