"""torch.distributed over hvd on CUDA tensors."""

import gpu_machine

gpu_machine.require()

import pytest

from gpu_jobs import NCCL_2
from test_torch_distributed_devices import *  # noqa: F403

pytestmark = [NCCL_2, pytest.mark.timeout(900)]
