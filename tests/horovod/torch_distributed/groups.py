"""A default group of torch.distributed over hvd, for the time of a test."""

from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

import horovod.torch.distributed


@contextmanager
def default_group(seconds=60, backend="hvd"):
    """The group of all ranks. Horovod runs already: the harness has called hvd.init()."""
    assert horovod.torch.distributed.NAME == "hvd"
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
