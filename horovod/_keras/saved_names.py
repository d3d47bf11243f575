"""Lets saved models name the wrapped class in place of the class of a distributed optimizer.

So a program without Horovod can read a model that was trained with Horovod: Keras finds the class by its public name.
"""

import importlib
from types import ModuleType
from typing import Any

from horovod._keras_module import major_version


def save_as(keras: ModuleType, cls: type, base: type) -> None:
    """Let Keras save instances of `cls` as instances of `base`. Changes nothing if this Keras does not have the tables
    that this function knows: files then name `horovod._keras`, and hvd.load_model() reads them."""
    if major_version(keras) < 3:
        for attribute in ("_keras_api_names", "_keras_api_names_v1"):
            if attribute in vars(base):
                setattr(cls, attribute, vars(base)[attribute])
        return
    names = _table("keras.src.api_export", "REGISTERED_OBJS_TO_NAMES")
    # On PyTorch the class of an optimizer is a private one that derives from the public class.
    public = next((names[c] for c in base.__mro__ if c in names and c.__name__ == base.__name__), None)
    if public is not None:
        names[cls] = public
        return
    registered = _table("keras.src.saving.object_registration", "GLOBAL_CUSTOM_NAMES")
    if base in registered:
        registered[cls] = registered[base]


def _table(module: str, name: str) -> dict[Any, str]:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return {}
