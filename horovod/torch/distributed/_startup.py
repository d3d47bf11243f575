"""The engine below the groups of torch.distributed: one for the process, shared with horovod.torch.

Where the launcher has numbered the processes as torch.distributed has, the engine starts by the launcher's means, as
hvd.init() does. Otherwise they rendezvous in the store that torch.distributed was given, which is not
authenticated: whoever can read that store can join the job. Called on the thread that makes the default group.
"""

import atexit
import itertools
import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from torch._C._distributed_c10d import TCPStore

from horovod.common import exports
from horovod.common.basics import engine, runtime
from horovod.common.exceptions import HorovodInternalError
from horovod.common.objects import broadcast_object
from hvd_core._bootstrap.launchers.identity import identify
from hvd_core._bootstrap.rendezvous.custom import CustomRendezvous
from hvd_core._runtime import current_job

# A rank that has destroyed its groups and ends waits so long for the others.
PATIENCE_SECONDS = 30.0

_starts = itertools.count()
_started_here = False  # by init_process_group(), not by the program's hvd.init()
# The handle of the barrier with which this rank says that it needs the others no more.
_leave_barrier: int | None = None
_registered = False


def start(store: Any, rank: int, size: int) -> None:
    """Have an engine whose rank and size are these.

    Raises:
        ValueError: the program has called hvd.init() in a job of another size, or as another rank.
        hvd_core._base.sockets.BootstrapError: the ranks do not come together.
    """
    global _leave_barrier
    number = next(_starts)
    job = _job()
    if job is not None and (job.world.rank, job.world.size) != (rank, size):
        if not _started_here:
            raise ValueError(
                f"init_process_group() makes rank {rank} of {size}, but hvd.init() has made this process rank "
                f"{job.world.rank} of {job.world.size}. Use the same ranks for both, or call hvd.shutdown() first."
            )
        end()
        job = None
    _leave_barrier = None
    if job is not None:
        return
    as_launched = _rendezvous_as_launched(store, rank, size, number)
    if as_launched:
        exports.init()
    else:
        key = f"hvd/rendezvous/{number}"
        runtime().init(
            comm=CustomRendezvous(
                rank, size, lambda text: store.set(key, text), lambda: store.get(key), _address(store)
            )
        )
    _note_started()


def start_as_launched() -> None:
    """Have an engine for the ranks that the launcher has started."""
    if _job() is None:
        exports.init()
        _note_started()


def _job() -> Any:
    """The job of this process; None if the next one is to begin."""
    job = current_job.current()
    if job is not None and not job.is_parents() and job.engine.stopped and _started_here:
        runtime().shutdown()
        return None
    return job


def _note_started() -> None:
    global _started_here, _registered
    _started_here = True
    if not _registered:
        atexit.register(_at_exit)
        _registered = True


def _rendezvous_as_launched(store: Any, rank: int, size: int, number: int) -> bool:
    """Whether the ranks rendezvous by the launcher's means. Rank 0 decides for all."""
    mine = _launched_as(rank, size)
    if size == 1:
        return mine
    key = f"hvd/launched/{number}"
    if rank == 0:
        store.set(key, json.dumps(mine).encode())
        return mine
    decided: bool = json.loads(store.get(key))
    if decided and not mine:
        raise ValueError(
            f"The launcher's variables say that rank 0 is the first of {size} processes, and say something else on rank "
            f"{rank}. Start all ranks by one launcher, or unset the variables on all of them."
        )
    return decided


def _launched_as(rank: int, size: int) -> bool:
    try:
        launched = identify(os.environ)
    except ValueError:
        return False  # the variables belong to another program
    if (launched.rank, launched.size) != (rank, size):
        return False
    # Without a store of the launcher, ranks on several hosts could rendezvous over MPI only.
    return launched.store is not None or size == 1 or launched.local_size == size


def _address(store: Any) -> str:
    """The address of rank 0's host, as the ranks know it."""
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE", ""):
        return "127.0.0.1"
    if os.environ.get("MASTER_ADDR"):
        return os.environ["MASTER_ADDR"]
    while not hasattr(store, "host"):
        below = getattr(store, "underlying_store", None)
        if below is None:
            return "127.0.0.1"  # a file, or the memory of this process
        store = below
    host: str = store.host
    return host


def leave_job() -> None:
    """The default group is destroyed: this rank needs the others no more, as soon as they say so too. Does not wait."""
    global _leave_barrier
    if _leave_barrier is None and _started_here and exports.is_initialized():
        with suppress(HorovodInternalError, ValueError):
            _leave_barrier = engine().ordered("barrier", "c10d.leave", 0, None, None)


def end() -> None:
    """End the engine that init_process_group() has started. After destroy_process_group() it first waits, for some time,
    until the other ranks have called that too: groups without this rank may still be at work."""
    global _leave_barrier, _started_here
    if not _started_here or not exports.is_initialized():
        return
    with suppress(HorovodInternalError, ValueError):
        if _leave_barrier is not None:
            engine().wait_for(_leave_barrier, PATIENCE_SECONDS)
    _leave_barrier, _started_here = None, False
    runtime().shutdown()


def _at_exit() -> None:
    job = current_job.current()
    if job is not None and not job.is_parents():
        end()


# `env://` under a launcher that sets no RANK for torch.distributed: horovodrun, mpirun, srun.
#
# The engine starts by the launcher's means. Then rank 0 opens torch's store at a free port of the interface that leads to
# the other hosts, and they get its address over the engine. Torch's store authenticates no connection. Called on the
# thread that calls init_process_group().


def env_rendezvous(timeout: Any) -> Iterator[tuple[Any, int, int]]:
    """Yields (store, rank, size), as torch's rendezvous does."""
    start_as_launched()
    rank, size = exports.rank(), exports.size()
    store, place = _open_store(size, timeout) if rank == 0 else (None, None)
    host, port = broadcast_object(place, 0, name="torch.distributed.store")
    if store is None:
        store = TCPStore(host, port, size, is_master=False, timeout=timeout, wait_for_workers=False)
    yield store, rank, size
    raise RuntimeError("Unable to perform rerendezvous using env:// method")


def _open_store(size: int, timeout: Any) -> tuple[Any, tuple[str, int]]:
    """(the store, its address). The host's name in messages may mean nothing on the other hosts, and torch itself would
    listen on all interfaces."""
    world = runtime().world()
    host = "127.0.0.1" if len(set(world.hosts)) == 1 else world.store.local_host()
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port = listener.getsockname()[1]
    store = TCPStore(
        host,
        port,
        size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, (host, port)
