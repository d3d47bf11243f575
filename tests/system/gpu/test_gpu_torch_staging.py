"""CUDA tensors that PyTorch copies through host memory."""

import gpu_machine

gpu_machine.require()

import pytest

from gpu_jobs import NO_BACKEND_2
from test_torch_staging import *  # noqa: F403

pytestmark = [NO_BACKEND_2, pytest.mark.timeout(900)]
