"""Training on CUDA tensors, over NCCL and copied by PyTorch, with the weights of the CPU."""

import gpu_machine

gpu_machine.require()

import pytest

from gpu_jobs import NCCL_2, NO_BACKEND_2
from test_torch_staging_training import *  # noqa: F403

pytestmark = [NCCL_2, NO_BACKEND_2, pytest.mark.timeout(900)]
