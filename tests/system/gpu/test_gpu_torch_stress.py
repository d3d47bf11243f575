"""Streams under stress on CUDA tensors: over NCCL, over backends for host memory, and copied by PyTorch."""

import gpu_machine

gpu_machine.require()

import pytest

from gpu_jobs import NCCL_1, NCCL_2, NCCL_4, NO_BACKEND_2, SHM_2, TCP_2
from test_torch_device_stress import *  # noqa: F403

pytestmark = [NCCL_1, NCCL_2, NCCL_4, TCP_2, SHM_2, NO_BACKEND_2, pytest.mark.timeout(900)]
