"""The reduce ops and basics under the names that every framework module of Horovod exports.

    from horovod.common.exports import *  # noqa: F403
    __all__ = ["allreduce", ...]
    __all__ += exports.__all__

The functions are methods of one HorovodBasics, whose docstrings describe them. A name that every front end must export
is added to the list here and nowhere else. ``init`` is not in it: a front end imports it by its name, or has its own.
"""

from typing import Final

from horovod.common.basics import HorovodBasics

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "backend_report",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

_basics = HorovodBasics()

Average: Final[int] = _basics.Average
Sum: Final[int] = _basics.Sum
Adasum: Final[int] = _basics.Adasum
Min: Final[int] = _basics.Min
Max: Final[int] = _basics.Max
Product: Final[int] = _basics.Product

init: Final = _basics.init
shutdown: Final = _basics.shutdown
is_initialized: Final = _basics.is_initialized
start_timeline: Final = _basics.start_timeline
stop_timeline: Final = _basics.stop_timeline
size: Final = _basics.size
local_size: Final = _basics.local_size
cross_size: Final = _basics.cross_size
rank: Final = _basics.rank
local_rank: Final = _basics.local_rank
cross_rank: Final = _basics.cross_rank
is_homogeneous: Final = _basics.is_homogeneous
backend_report: Final = _basics.backend_report
mpi_threads_supported: Final = _basics.mpi_threads_supported
mpi_enabled: Final = _basics.mpi_enabled
mpi_built: Final = _basics.mpi_built
gloo_enabled: Final = _basics.gloo_enabled
gloo_built: Final = _basics.gloo_built
nccl_built: Final = _basics.nccl_built
ddl_built: Final = _basics.ddl_built
ccl_built: Final = _basics.ccl_built
cuda_built: Final = _basics.cuda_built
rocm_built: Final = _basics.rocm_built
