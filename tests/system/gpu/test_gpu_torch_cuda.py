"""Graph captures and memory: what only CUDA has."""

import gpu_machine

gpu_machine.require()

import pytest

from cuda_bodies import (  # noqa: F401
    test_a_capture_of_the_users_own_while_a_job_is_in_flight,
    test_a_collective_under_capture_says_what_is_wrong,
    test_memory_is_given_back,
)
from gpu_jobs import NCCL_1, NCCL_2

pytestmark = [NCCL_1, NCCL_2, pytest.mark.timeout(900)]
