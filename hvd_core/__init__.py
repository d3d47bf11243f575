"""hvd-core: Horovod's engine on pluggable communication backends, with a face for NumPy arrays.

    import hvd_core as hvd
    hvd.init()
    mean = hvd.allreduce(array)

The verbs are Horovod's, on NumPy arrays and on anything else in host memory that speaks DLPack. Frameworks have modules
of their own over the same engine. Importing this package needs no framework and no compiled part.
"""

from hvd_core.errors import HorovodInternalError
from hvd_core.runtime import (
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
)
from hvd_core.version import __version__

_NUMPY_FACE = (
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
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "join",
    "poll",
    "synchronize",
)

__all__ = [
    "HorovodInternalError",
    "__version__",
    "cross_rank",
    "cross_size",
    "get_include",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    *_NUMPY_FACE,
]


def get_include() -> str:
    """The folder with ``hvd/backend_abi.h``, for building a backend."""
    from pathlib import Path

    return str(Path(__file__).parent / "include")


def __getattr__(name):
    # NumPy is loaded when an operation is first used, not by whoever only asks for the version.
    if name in _NUMPY_FACE:
        from hvd_core import numpy_face

        return getattr(numpy_face, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
