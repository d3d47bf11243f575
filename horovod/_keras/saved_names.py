"""Under which class name a distributed optimizer is written into a saved model: under that of the wrapped class.

So a model that was trained with Horovod is read by a program without it, and Keras finds the class by its public name.
"""

import importlib
from types import ModuleType
from typing import Any

from horovod._keras.backends import major_version


def save_as(keras: ModuleType, cls: type, base: type) -> None:
    """Have Keras save instances of `cls` as those of `base`. Where a Keras does it another way nothing happens: its files
    name `horovod._keras` then, and are read by hvd.load_model()."""
    if major_version(keras) < 3:
        for attribute in ("_keras_api_names", "_keras_api_names_v1"):
            if attribute in vars(base):
                setattr(cls, attribute, vars(base)[attribute])
        return
    names = _table("keras.src.api_export", "REGISTERED_OBJS_TO_NAMES")
    # Keras on PyTorch has classes of its own behind the public ones.
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
