"""Ranks that die, or end, while there is work on their devices: the errors that the others get. Run by
test_torch_device.py and tests/system/gpu."""

import contextlib
import os
import signal
import sys

import torch

import horovod.torch as hvd
from harness.rank import ignore_the_launcher


def last_rank_dies():
    ignore_the_launcher()
    from torch_device import device

    tensors = [torch.ones(1000, device=device()) for _ in range(50)]
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


def ends_while_copies_are_made():
    from torch_device import device

    with contextlib.suppress(hvd.HorovodInternalError):  # the other rank may have ended already
        for i in range(30):
            hvd.allreduce_async_(torch.ones(1 << 16, device=device()), name=f"under way {i}")
