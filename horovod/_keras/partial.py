"""The argument `local_layers` of PartialDistributedOptimizer: the layers whose gradients are not reduced."""

from types import ModuleType
from typing import Any

from horovod._keras_module import keras_package


def list_of_layers(keras: ModuleType, local_layers: Any) -> tuple:
    """`local_layers` as a tuple of layers.

    Raises:
        ValueError: `local_layers` is neither None, nor a layer, nor a list of layers.
    """
    layer = keras_package(keras).layers.Layer
    if local_layers is None:
        return ()
    listed = tuple(local_layers) if isinstance(local_layers, (list, tuple, set)) else (local_layers,)
    for entry in listed:
        if not isinstance(entry, layer):
            raise ValueError(
                f"local_layers takes a layer of Keras or a list of them, but found {type(entry).__name__}: {entry!r:.80}."
            )
    return listed
