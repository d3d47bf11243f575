"""`env://` under a launcher that sets no RANK for torch.distributed: horovodrun, mpirun, srun.

The engine starts by the launcher's means. Then rank 0 opens torch's store at a free port of the interface that leads to
the other hosts, and they get its address over the engine. Torch's store authenticates no connection. Called on the
thread that calls init_process_group().
"""

import socket
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
    store, place = _open_store(size, timeout) if rank == 0 else (None, None)
    host, port = broadcast_object(place, 0, name="torch.distributed.store")
    if store is None:
        store = dist.TCPStore(host, port, size, is_master=False, timeout=timeout, wait_for_workers=False)
    yield store, rank, size
    raise RuntimeError("Unable to perform rerendezvous using env:// method")


def _open_store(size: int, timeout: Any) -> tuple[Any, tuple[str, int]]:
    """(the store, its address). The host's name in messages may mean nothing on the other hosts, and torch itself would
    listen on all interfaces."""
    world = runtime().world()
    host = "127.0.0.1" if len(set(world.hosts)) == 1 else world.store.local_host()
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        host,
        port,
        size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, (host, port)
