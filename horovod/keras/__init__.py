"""Horovod for Keras: ``import horovod.keras as hvd``.

For Keras 3 on TensorFlow or PyTorch (environment variable KERAS_BACKEND), and for Keras 2. Loads the framework that Keras
runs on, and no other. ``horovod.tensorflow.keras`` is the same for `tf.keras`.
"""

import keras

from horovod._keras import front_end as _front_end
from horovod._keras.compression import Compression
from horovod.common import exports as _exports
from horovod.common.exports import *  # noqa: F403
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.keras import callbacks, elastic

__all__ = [
    *_exports.__all__,
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "global_process_set",
    "load_model",
    "reducescatter",
    "remove_process_set",
]

_functions = _front_end.public_functions(keras, __name__)
DistributedOptimizer = _functions.DistributedOptimizer
PartialDistributedOptimizer = _functions.PartialDistributedOptimizer
allgather = _functions.allgather
allreduce = _functions.allreduce
broadcast = _functions.broadcast
broadcast_global_variables = _functions.broadcast_global_variables
init = _functions.init
load_model = _functions.load_model
reducescatter = _functions.reducescatter
