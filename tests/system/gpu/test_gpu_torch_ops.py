"""All operations on CUDA tensors: over NCCL, over a backend for host memory, and copied by PyTorch."""

import gpu_machine

gpu_machine.require()

import pytest

from gpu_jobs import NCCL_1, NCCL_2, NO_BACKEND_2, TCP_2
from test_torch_device_ops import *  # noqa: F403

pytestmark = [NCCL_1, NCCL_2, TCP_2, NO_BACKEND_2, pytest.mark.timeout(900)]
