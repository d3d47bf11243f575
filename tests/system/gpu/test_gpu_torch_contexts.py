"""hvd.init() opens no GPU, and a collective only its own: in new processes."""

import gpu_machine

gpu_machine.require()

import pytest

from cuda_bodies import test_init_has_made_no_context, test_one_context_on_ones_own_device  # noqa: F401
from gpu_jobs import job

pytestmark = [job(1, "nccl", fresh=True), job(2, "nccl", fresh=True), pytest.mark.timeout(900)]
