"""The layers that PartialDistributedOptimizer leaves to each rank."""

from types import ModuleType
from typing import Any

from horovod._keras.backends import the_keras


def listed_layers(keras: ModuleType, local_layers: Any) -> tuple:
    """`local_layers`, a layer or several, as a tuple. ValueError for anything else."""
    layer = the_keras(keras).layers.Layer
    if local_layers is None:
        return ()
    listed = tuple(local_layers) if isinstance(local_layers, (list, tuple, set)) else (local_layers,)
    for entry in listed:
        if not isinstance(entry, layer):
            raise ValueError(
                f"local_layers takes a layer of Keras or a list of them, but found {type(entry).__name__}: {entry!r:.80}."
            )
    return listed
