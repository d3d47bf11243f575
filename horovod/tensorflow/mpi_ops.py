"""The operations of ``horovod.tensorflow`` (the module's name is what programs import; no MPI is involved).

Here is what concerns the whole job; the operations on tensors are made in the modules beside this one and re-exported.
Importing this loads the operations into TensorFlow.
"""

from collections.abc import Sequence
from typing import Any

from horovod.common.process_sets import ProcessSet
from horovod.tensorflow import _op_gradients  # noqa: F401 (registers them)
from horovod.tensorflow._call import Adasum, Average, Max, Min, Product, Sum, _basics
from horovod.tensorflow._job_ops import (
    barrier,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from horovod.tensorflow._move_ops import allgather, alltoall, broadcast, broadcast_, grouped_allgather
from horovod.tensorflow._reduce_ops import (
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "_allreduce",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_reducescatter",
    "allgather",
    "alltoall",
    "backend_report",
    "barrier",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

shutdown = _basics.shutdown
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

    Touches no device: choose one by local_rank() afterwards, by tf.config.set_visible_devices. Without a launcher the
    process is a job of its own.

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
    _basics.init(comm, process_sets, backend)


def handle_average_backwards_compatibility(op: int | None, average: Any) -> int:
    """The reduce op meant by the arguments `op` and `average` together: Average if neither is given.

    Raises:
        ValueError: both are given.
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    import warnings

    warnings.warn(
        "Parameter `average` has been replaced with `op`; use op=hvd.Average or op=hvd.Sum.",
        DeprecationWarning,
        stacklevel=3,
    )
    return Average if average else Sum
