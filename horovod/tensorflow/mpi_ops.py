"""The operations of ``horovod.tensorflow``, under the module name that programs import. No MPI is involved.

The operations are defined in the modules beside this one and re-exported. Importing this loads them into TensorFlow.
"""

from typing import Any

from horovod.common import exports
from horovod.common.arguments import op_from
from horovod.common.exports import *  # noqa: F403
from horovod.common.exports import _basics  # noqa: F401 (programs import it)
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.tensorflow import _op_gradients  # noqa: F401 (registers the gradients)
from horovod.tensorflow._job_ops import (
    barrier,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from horovod.tensorflow._library import operations as MPI_LIB
from horovod.tensorflow._move_ops import allgather, alltoall, broadcast, broadcast_, grouped_allgather
from horovod.tensorflow._reduce_ops import (
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
)

__all__ = [
    "MPI_LIB",
    "ProcessSet",
    "_allreduce",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_reducescatter",
    "add_process_set",
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "global_process_set",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "remove_process_set",
    "size_op",
]
__all__ += exports.__all__


def handle_average_backwards_compatibility(op: int | None, average: Any) -> int:
    """The reduce op that the arguments `op` and `average` mean together; Average if neither is given.

    Raises:
        ValueError: both are given.
    """
    return op_from(op, average, stacklevel=4)
