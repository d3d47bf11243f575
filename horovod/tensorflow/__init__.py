"""Horovod for TensorFlow: ``import horovod.tensorflow as hvd``.

For TensorFlow 2.15 and later: eager, in tf.function, and in the graphs and sessions of tf.compat.v1.
"""

from typing import TYPE_CHECKING, Any

from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow import elastic, functions, mpi_ops, util
from horovod.tensorflow._gradients import (
    _allreduce_cond,
    _grouped_allreduce_cond,
    _make_allreduce_grads_fn,
    _make_cached_allreduce_grads_fn,
)
from horovod.tensorflow._optimizer import (
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
    _DistributedAdasumOptimizer,
    _DistributedOptimizer,
)
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import *  # noqa: F403
from horovod.tensorflow.functions import BroadcastGlobalVariablesHook
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.mpi_ops import *  # noqa: F403
from horovod.tensorflow.util import *  # noqa: F403
from horovod.tensorflow.util import (
    _cache,
    _executing_eagerly,
    _make_subgraph,
    check_num_rank_power_of_2,
    gpu_available,
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
    "SyncBatchNormalization",
    "_DistributedAdasumOptimizer",
    "_DistributedOptimizer",
    "_allreduce_cond",
    "_cache",
    "_executing_eagerly",
    "_grouped_allreduce_cond",
    "_make_allreduce_grads_fn",
    "_make_cached_allreduce_grads_fn",
    "_make_subgraph",
    "check_num_rank_power_of_2",
    "elastic",
    "gpu_available",
    "mpi_ops",
]
__all__ += functions.__all__
__all__ += mpi_ops.__all__
__all__ += util.__all__
__all__.remove("MPI_LIB")

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
