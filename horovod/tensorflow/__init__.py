"""Horovod for TensorFlow: ``import horovod.tensorflow as hvd``.

For TensorFlow 2.15 and later: eager, in tf.function, and in the graphs and sessions of tf.compat.v1.
"""

from typing import TYPE_CHECKING, Any

from horovod.common import exports
from horovod.common.exceptions import HorovodInternalError
from horovod.common.exports import *  # noqa: F403
from horovod.common.exports import init as init
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.tensorflow import elastic, mpi_ops
from horovod.tensorflow._collectives import (
    allreduce,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from horovod.tensorflow._gradients import (
    _allreduce_cond,
    _grouped_allreduce_cond,
    _make_allreduce_grads_fn,
    _make_cached_allreduce_grads_fn,
)
from horovod.tensorflow._optimizer import (
    DistributedOptimizer,
    _DistributedAdasumOptimizer,
    _DistributedOptimizer,
)
from horovod.tensorflow._tape import DistributedGradientTape, PartialDistributedGradientTape
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.mpi_ops import (
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    allgather,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    handle_average_backwards_compatibility,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from horovod.tensorflow.util import (
    _cache,
    _executing_eagerly,
    _make_subgraph,
    check_num_rank_power_of_2,
    gpu_available,
    refs_to_vars,
    vars_to_refs,
)

# Programs written for Horovod import the names with an underscore, and the helpers, too.
__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "SyncBatchNormalization",
    "_DistributedAdasumOptimizer",
    "_DistributedOptimizer",
    "_allreduce",
    "_allreduce_cond",
    "_cache",
    "_executing_eagerly",
    "_grouped_allreduce",
    "_grouped_allreduce_cond",
    "_grouped_reducescatter",
    "_make_allreduce_grads_fn",
    "_make_cached_allreduce_grads_fn",
    "_make_subgraph",
    "_reducescatter",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_num_rank_power_of_2",
    "elastic",
    "global_process_set",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "mpi_ops",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "size_op",
    "vars_to_refs",
]
__all__ += ["init", *exports.__all__]

for _class in (BroadcastGlobalVariablesHook, _DistributedAdasumOptimizer, _DistributedOptimizer):
    _class.__module__ = __name__  # where users know it


def _check_has_gpu() -> bool:
    return gpu_available()


if TYPE_CHECKING:
    from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
else:

    def __getattr__(name: str) -> Any:
        # Made at first use: it needs Keras, and a program without Keras must work where Keras cannot be imported.
        if name == "SyncBatchNormalization":
            from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

            return SyncBatchNormalization
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
