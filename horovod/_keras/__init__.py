"""What ``horovod.keras`` and ``horovod.tensorflow.keras`` have in common: Horovod for Keras 2 and Keras 3.

Importing it loads neither Keras nor a framework. Classes of distributed optimizers say that they are from here.
"""

from horovod._keras.optimizer import create_distributed_optimizer
from horovod._keras.values import allgather, allreduce, broadcast, broadcast_global_variables, reducescatter

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "create_distributed_optimizer",
    "reducescatter",
]
