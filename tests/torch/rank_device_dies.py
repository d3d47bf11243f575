"""A rank dies while the others have work on their devices: the errors that these get. Run by test_torch_device.py."""

import os
import signal
import sys

import torch

import horovod.torch as hvd

# By default a rank that has not printed its error within a second gets a SIGTERM; on a busy machine that is early.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
hvd.init()
from device_under_test import DEVICE  # noqa: E402 (after init)

tensors = [torch.ones(1000, device=DEVICE) for _ in range(50)]
hvd.allreduce_(tensors[0], name="first")
handles = [hvd.allreduce_async_(tensor, name=f"under way {i}") for i, tensor in enumerate(tensors)]
if hvd.rank() == hvd.size() - 1:
    hvd.synchronize(handles[0])
    os.kill(os.getpid(), signal.SIGKILL)
failures = []
for step in range(1000):
    try:
        if handles:
            hvd.synchronize(handles.pop())
        else:
            hvd.allreduce_(tensors[step % 50])
    except hvd.HorovodInternalError as error:
        failures.append(str(error))
        if not handles:
            break
    except ValueError:
        break
print("told:", failures[-1], file=sys.stderr, flush=True)
# The device still works, and the tensors of the operations still exist.
assert tensors[0].cpu().numel() == 1000
