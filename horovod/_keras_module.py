"""Facts about a Keras module, and the one change of Keras that ``horovod.tensorflow`` and ``horovod._keras`` both make.

Imports neither Keras nor a framework: each function takes the Keras module that the program uses. Any thread.
"""

import functools
import importlib
from types import ModuleType


def keras_package(keras: ModuleType) -> ModuleType:
    """The package `keras` in place of `tf.keras`, which with Keras 3 is another name of it. Keras 2 is returned as it
    is."""
    return keras if major_version(keras) < 3 else importlib.import_module("keras")


@functools.cache
def version(keras: ModuleType) -> str:
    """The version of a Keras module. Not every `tf.keras` has the attribute; the package of its classes has it."""
    found = getattr(keras, "__version__", None)
    return found or importlib.import_module(keras.Model.__module__.partition(".")[0]).__version__


def major_version(keras: ModuleType) -> int:
    """2 or 3."""
    return int(version(keras).partition(".")[0])


class CallableList(list):
    """A list that returns itself when it is called: both `optimizer.variables` and `optimizer.variables()` are in use."""

    def __call__(self) -> "CallableList":
        return self


class _CallableVariables(property):
    """The property `variables` of Keras 3, whose list can also be called."""


def let_variables_be_called(keras: ModuleType) -> None:
    """Let ``optimizer.variables`` of Keras 3 on TensorFlow be called as well, as it was a method in Keras 2.

    Changes nothing for Keras 2, where it is a method, and for other backends of Keras: programs that call it were
    written for TensorFlow.
    """
    if major_version(keras) < 3 or keras_package(keras).backend.backend() != "tensorflow":
        return
    owner = next(cls for cls in keras_package(keras).optimizers.Optimizer.__mro__ if "variables" in vars(cls))
    original = vars(owner)["variables"]
    if not isinstance(original, _CallableVariables):
        owner.variables = _CallableVariables(
            lambda self: CallableList(original.fget(self)), doc=original.__doc__
        )
