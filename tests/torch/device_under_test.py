"""The device that the checks in ranks_device_*.py are about: its type is HVD_TEST_DEVICE, the simulated `gcu` unless
that says "cuda" (tests/gpu). Imported on ranks, after hvd.init(): a rank's device is that of its local rank, around the
number there are.
"""

import os

import torch

import horovod.torch as hvd

KIND = os.environ.get("HVD_TEST_DEVICE", "gcu")
MODULE = getattr(torch, KIND)
COUNT = MODULE.device_count()
ORDINAL = hvd.local_rank() % COUNT
DEVICE = torch.device(KIND, ORDINAL)
# The backend whose table opens the device; another backend may move the data.
TABLE = {"gcu": "eccl_stub", "cuda": "nccl"}[KIND]

MODULE.set_device(ORDINAL)


def is_served():
    """Whether this job has a backend for the device; else PyTorch copies its tensors through host memory."""
    return KIND in hvd.mpi_ops.engine().device_types()


def hold(milliseconds=10):
    """Keep the current stream busy, so that work which does not wait for it comes too early.

    The simulated device needs no such thing: all its streams are late (TOPS_SIM_DELAY_US).
    """
    if KIND == "cuda":
        torch.cuda._sleep(milliseconds * 2_000_000)  # cycles, of about 2 GHz


def native(stream):
    """The address of the vendor's stream."""
    return getattr(stream, f"{KIND}_stream")
