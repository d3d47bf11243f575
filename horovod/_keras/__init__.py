"""Horovod for Keras 2 and Keras 3: the code behind ``horovod.keras`` and ``horovod.tensorflow.keras``.

Importing it loads neither Keras nor a framework. Distributed optimizers have ``horovod._keras`` as the module of their
classes. This package does not import ``horovod.tensorflow`` and ``horovod.torch``: they implement ``backends.Backend``.
"""

from horovod._keras.front_end import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
from horovod._keras.front_end import load_and_wrap as load_model
from horovod._keras.optimizer import create_distributed_optimizer

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "create_distributed_optimizer",
    "load_model",
    "reducescatter",
]
