"""The device that the tests of devices are about: its type is HVD_TEST_DEVICE, the simulated `gcu` unless that says
"cuda" (tests/system/gpu)."""

import functools
import os

import torch

import horovod.torch as hvd

KIND = os.environ.get("HVD_TEST_DEVICE", "gcu")
# The backend whose table opens the device; another backend may move the data.
TABLE = {"gcu": "eccl_stub", "cuda": "nccl"}[KIND]
# torch.gcu or torch.cuda; None where PyTorch has no such device.
MODULE = getattr(torch, KIND, None)
COUNT = MODULE.device_count() if MODULE else 0


@functools.cache
def device():
    """This rank's device: that of its local rank, around the number there are. It is the current one from now on."""
    own = torch.device(KIND, hvd.local_rank() % COUNT)
    MODULE.set_device(own)
    return own


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
