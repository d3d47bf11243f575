"""hvd-core: Horovod's engine on pluggable communication backends, with an API for NumPy arrays.

    import hvd_core as hvd
    hvd.init()
    mean = hvd.allreduce(array)

The functions are Horovod's, on NumPy arrays and on anything else in host memory that speaks DLPack. Frameworks have
modules of their own over the same engine. Importing this package loads neither NumPy, a framework nor the native module:
every name is loaded when it is first used.
"""
# ruff: noqa: F405 (names of the star import)

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_core._base import install_check as _install_check
from hvd_core._base import logs as _logs
from hvd_core.version import __version__

if TYPE_CHECKING:
    from hvd_core._runtime.process_sets import (
        ProcessSet,
        add_process_set,
        global_process_set,
        remove_process_set,
    )
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
    from hvd_core.numpy_api import *  # noqa: F403 (all names of its __all__)

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "__version__",
    "add_process_set",
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
    "cross_rank",
    "cross_size",
    "empty",
    "frontend_table",
    "get_include",
    "global_process_set",
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
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "recv",
    "recv_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "send",
    "send_async",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

_install_check.report_at_import()
_logs.begin()


def get_include() -> str:
    """The folder with ``hvd/backend_abi.h``, for building a backend, and ``hvd/frontend_abi.h``."""
    from pathlib import Path

    return str(Path(__file__).parent / "include")


def frontend_table() -> int:
    """The address of the table in ``hvd/frontend_abi.h``, by which code without Python submits operations.

    It stays the same as long as the process lives, before init() and after shutdown() too.
    """
    from hvd_core._base import native

    return int(native.load().frontend_table())


if not TYPE_CHECKING:
    # Type checkers see the imports above, so that a name that does not exist is an error for them.

    _HOMES = (
        "hvd_core._runtime.runtime",
        "hvd_core._runtime.process_sets",
        "hvd_core.errors",
        "hvd_core.numpy_api",
    )

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        for home in _HOMES:
            module = import_module(home)
            if name in module.__all__:
                # Kept here, since asking this function again costs as much as a small operation.
                globals().update(
                    {found: getattr(module, found) for found in module.__all__ if found in __all__}
                )
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has lost {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
