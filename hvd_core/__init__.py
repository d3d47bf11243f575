"""hvd-core: Horovod's engine on pluggable communication backends, with an API for NumPy arrays.

    import hvd_core as hvd
    hvd.init()
    mean = hvd.allreduce(array)

The functions are Horovod's, on NumPy arrays and on anything else in host memory that speaks DLPack. Frameworks have
modules of their own over the same engine. Importing this package needs no framework and no compiled part.
"""

from hvd_core._base import install_check as _lost_files
from hvd_core._base import logs as _logs
from hvd_core._runtime.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hvd_core._runtime.runtime import (
    backend_report,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from hvd_core.errors import HorovodInternalError
from hvd_core.version import __version__

_lost_files.report_at_import()
_logs.begin()

_NUMPY_API = (
    "Adasum",
    "Average",
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
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "empty",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_alltoall",
    "grouped_alltoall_async",
    "grouped_broadcast_",
    "grouped_broadcast_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "recv",
    "recv_async",
    "reducescatter",
    "reducescatter_async",
    "send",
    "send_async",
    "synchronize",
)

__all__ = [
    "HorovodInternalError",
    "ProcessSet",
    "__version__",
    "add_process_set",
    "backend_report",
    "cross_rank",
    "cross_size",
    "frontend_table",
    "get_include",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    *_NUMPY_API,
]


def get_include() -> str:
    """The folder with ``hvd/backend_abi.h``, for building a backend, and ``hvd/frontend_abi.h``."""
    from pathlib import Path

    return str(Path(__file__).parent / "include")


def frontend_table() -> int:
    """The address of the table in ``hvd/frontend_abi.h``, by which code without Python submits operations.

    It stays the same as long as the process lives, before init() and after shutdown() too.
    """
    from hvd_core._base import native

    return native.load().frontend_table()


def __getattr__(name):
    # NumPy is loaded when an operation is first used: a program that only asks for the version does not need it.
    if name in _NUMPY_API:
        from hvd_core import numpy_api

        # Kept here, since asking this function again costs as much as a small operation.
        globals().update({function: getattr(numpy_api, function) for function in _NUMPY_API})
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
