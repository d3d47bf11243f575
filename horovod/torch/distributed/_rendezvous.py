"""`env://` under a launcher that sets no RANK for torch.distributed: horovodrun, mpirun, srun.

The engine starts by the launcher's means. Then rank 0 opens torch's store at a free port, and the other ranks get its
address over the engine. Called on the thread that calls init_process_group().
"""

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from horovod.common import exports
from horovod.common.basics import runtime
from horovod.common.objects import broadcast_object
from horovod.torch.distributed import _start


def meet(timeout: Any) -> Iterator[tuple[Any, int, int]]:
    """Yields (store, rank, size), as torch's rendezvous does."""
    _start.start_as_launched()
    rank, size = exports.rank(), exports.size()
    names = runtime().world().host_names
    host = "127.0.0.1" if len(set(runtime().world().hosts)) == 1 else names[0]
    store = None
    if rank == 0:
        store = dist.TCPStore(host, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
    port = broadcast_object(store.port if rank == 0 else None, 0, name="torch.distributed.store")
    if rank != 0:
        store = dist.TCPStore(host, port, size, is_master=False, timeout=timeout, wait_for_workers=False)
    yield store, rank, size
    raise RuntimeError("Unable to perform rerendezvous using env:// method")
