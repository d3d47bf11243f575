"""Names of the operations that reduce gradients and broadcast variables. They must be the same on all ranks.

TensorFlow makes the names of tensors unique by counting, so that a summary which only one rank builds shifts the names of
what follows. Ours say what makes the operation, in which function, and which of its tensors it is for. Those of several
calls in one graph are numbered where operations are made.
"""

import re
from typing import Any

import tensorflow as tf

from horovod.tensorflow._names import _function_name, _root


def of_call(kind: str) -> str:
    """The beginning of the names of what `kind` makes where this is called."""
    if tf.executing_eagerly():
        return kind
    function = _function_name(_root(tf.compat.v1.get_default_graph()))
    return f"{function}/{kind}" if function else kind


def of_variable(variable: Any) -> str:
    """A variable's last name, without what has been counted up; empty where it has none."""
    name = getattr(variable, "name", None)
    if not isinstance(name, str):
        return ""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", name.split(":")[0].rstrip("/").split("/")[-1])
    return re.sub(r"_\d+$", "", name)
