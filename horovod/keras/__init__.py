"""Horovod for Keras: ``import horovod.keras as hvd``.

For Keras 3 on TensorFlow, PyTorch or JAX (environment variable KERAS_BACKEND), and for Keras 2. Loads the framework that
Keras runs on, and no other. ``horovod.tensorflow.keras`` is the same for `tf.keras`.
"""

from typing import Final

import keras

from horovod._keras import front_end as _front_end
from horovod._keras.compression import Compression as Compression
from horovod.common import exports as _exports
from horovod.common.exports import *  # noqa: F403
from horovod.common.process_sets import ProcessSet as ProcessSet
from horovod.common.process_sets import add_process_set as add_process_set
from horovod.common.process_sets import global_process_set as global_process_set
from horovod.common.process_sets import remove_process_set as remove_process_set
from horovod.keras import callbacks as callbacks
from horovod.keras import elastic as elastic

__all__ = ["callbacks", "elastic"]
__all__ += ["init", *_exports.__all__]
__all__ += _front_end.__all__

init: Final = _front_end.init_for(keras, _exports.init)
DistributedOptimizer: Final = _front_end.bind(_front_end.DistributedOptimizer, keras, __name__)
PartialDistributedOptimizer: Final = _front_end.bind(_front_end.PartialDistributedOptimizer, keras, __name__)
allgather: Final = _front_end.bind(_front_end.allgather, keras, __name__)
allreduce: Final = _front_end.bind(_front_end.allreduce, keras, __name__)
broadcast: Final = _front_end.bind(_front_end.broadcast, keras, __name__)
broadcast_global_variables: Final = _front_end.bind(_front_end.broadcast_global_variables, keras, __name__)
load_model: Final = _front_end.bind(_front_end.load_model, keras, __name__)
reducescatter: Final = _front_end.bind(_front_end.reducescatter, keras, __name__)
