"""Horovod for `tf.keras`, Keras 2 or Keras 3: ``import horovod.tensorflow.keras as hvd``.

The same as ``horovod.keras``, for the Keras that TensorFlow has. One signature differs: as in Horovod,
`backward_passes_per_step` and `average_aggregated_gradients` come earlier in DistributedOptimizer().
"""

from collections.abc import Sequence
from typing import Any, Final

from tensorflow import keras

from horovod._keras import front_end as _front_end
from horovod._keras.compression import Compression as Compression
from horovod.common import exports as _exports
from horovod.common.arguments import Average as _Average
from horovod.common.exports import *  # noqa: F403
from horovod.common.process_sets import ProcessSet as ProcessSet
from horovod.common.process_sets import add_process_set as add_process_set
from horovod.common.process_sets import global_process_set as global_process_set
from horovod.common.process_sets import remove_process_set as remove_process_set
from horovod.tensorflow.keras import callbacks as callbacks
from horovod.tensorflow.keras import elastic as elastic

__all__ = ["callbacks", "elastic"]
__all__ += ["init", *_exports.__all__]
__all__ += _front_end.__all__

init: Final = _front_end.init_for(keras, _exports.init)
PartialDistributedOptimizer: Final = _front_end.bind(_front_end.PartialDistributedOptimizer, keras, __name__)
allgather: Final = _front_end.bind(_front_end.allgather, keras, __name__)
allreduce: Final = _front_end.bind(_front_end.allreduce, keras, __name__)
broadcast: Final = _front_end.bind(_front_end.broadcast, keras, __name__)
broadcast_global_variables: Final = _front_end.bind(_front_end.broadcast_global_variables, keras, __name__)
load_model: Final = _front_end.bind(_front_end.load_model, keras, __name__)
reducescatter: Final = _front_end.bind(_front_end.reducescatter, keras, __name__)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = _Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Any] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer of Keras so that it uses gradients reduced over all ranks. See horovod.keras."""
    return _front_end.DistributedOptimizer(keras, **locals())


DistributedOptimizer.__doc__ = _front_end.DistributedOptimizer.__doc__
