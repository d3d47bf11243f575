"""The operations of ``horovod.torch`` (the module's name is what programs import; no MPI is involved).

Here is what concerns the whole job; the operations on tensors are made in the modules beside this one and re-exported.
Any thread that holds the GIL; it is released while waiting.
"""

from collections.abc import Sequence
from typing import Any

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch._async_ops import (
    allgather_async,
    allreduce_async,
    allreduce_async_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from horovod.torch._async_scatter import (
    alltoall_async,
    grouped_reducescatter_async,
    reducescatter_async,
)
from horovod.torch._autograd import (
    HorovodAllgather,
    HorovodAllreduce,
    HorovodAlltoall,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    HorovodGroupedAllreduce,
    HorovodGroupedReducescatter,
    HorovodReducescatter,
)
from horovod.torch._sparse import sparse_allreduce_async
from horovod.torch._submit import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    _basics,
    _handle_map,
    engine,
    poll,
    resolve_op,
    synchronize,
)
from horovod.torch._sync_ops import (
    allgather,
    allreduce,
    allreduce_,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
)
from horovod.torch._sync_scatter import alltoall, grouped_reducescatter, reducescatter

__all__ = [
    "Adasum",
    "Average",
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "backend_report",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

is_initialized = _basics.is_initialized
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
size = _basics.size
local_size = _basics.local_size
cross_size = _basics.cross_size
rank = _basics.rank
local_rank = _basics.local_rank
cross_rank = _basics.cross_rank
is_homogeneous = _basics.is_homogeneous
backend_report = _basics.backend_report
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built


def init(
    comm: Any = None,
    process_sets: Sequence[ProcessSet] | str | None = None,
    backend: str | type | Sequence[str | type] | None = None,
) -> None:
    """Start Horovod, together with all other ranks of the job. Once per process and before anything else of it; a second
    call while it runs changes nothing, one after shutdown() starts it anew.

    Touches no device: choose one by local_rank() afterwards. Without a launcher the process is a job of its own.

    Args:
        comm: None for all ranks that the launcher has started; a list of some of these, which are a job of their own; or
            an ``mpi4py.MPI.Comm`` of the job's processes.
        process_sets: None; a list of hvd.ProcessSet, the same on all ranks; or "dynamic", which allows sets to be added
            and removed later.
        backend: what moves the data, before HOROVOD_BACKEND: a name, names in order of preference, a text such as
            "cuda=nccl,cpu=mpi", or a subclass of hvd_core.backends.PythonBackend.

    Raises:
        ValueError: arguments or environment variables that make no sense, or that differ between ranks; the text says
            which. After one about process sets Horovod runs, and init() may be called again.
        NotImplementedError: a process set is defined by a communicator, and `comm` is none.
        hvd_core.backends.BackendError: no backend can be used; the text says why each cannot.
        hvd_core.bootstrap.BootstrapError: the ranks do not come together within HOROVOD_START_TIMEOUT seconds.
    """
    if not _basics.is_initialized():
        _handle_map.clear()  # handles of an engine that another framework's shutdown() has ended
    _basics.init(comm, process_sets, backend)


def shutdown() -> None:
    """Stop Horovod, on all ranks: what they had agreed on is finished, other pending operations fail.

    Happens by itself when the program ends. Harmless when Horovod does not run. init() may be called again afterwards.
    """
    _basics.shutdown()
    _handle_map.clear()


def handle_average_backwards_compatibility(op: int | None, average: Any) -> int:
    """The reduce op meant by the arguments `op` and `average` together. ValueError if both are given."""
    return resolve_op(op, average)


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and wait until all ranks have said so.

    Meanwhile this rank takes part in the operations of the others, on all its process sets, with data that do not change
    the result: to a reduction it gives the operation's identity (0 for Sum, Average and Adasum; an average still divides
    by the number of ALL ranks), to allgather and alltoall no rows. What it receives is dropped. A broadcast from a rank
    that has joined fails.

        for batch in my_batches:  # not as many on each rank
            train(batch)
        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)

    Args:
        device: accepted for compatibility; not used.

    Returns:
        The rank that joined last, the same on all ranks.

    Raises:
        ValueError: Horovod is not initialized. HorovodInternalError: a rank is gone.
    """
    core = engine()
    handle = core.join()
    try:
        core.wait(handle)
        return int(core.last_joined(handle))
    finally:
        core.release(handle)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of a process set have called barrier().

    Args:
        process_set: the ranks that wait for each other.

    Raises:
        ValueError: Horovod is not initialized, or the set is not registered.
        HorovodInternalError: a rank is gone.
    """
    core = engine()
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} does not exist, or has not been registered.")
    core.barrier(process_set.process_set_id, True)
