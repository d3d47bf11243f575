"""Names of the operations that reduce gradients and broadcast variables. They must be the same on all ranks.

TensorFlow makes the names of tensors unique by counting, so that a summary which only one rank builds changes the names
of later tensors. Our names consist of the function's name, the tape or optimizer, and the place and name of the
variable. When an operation is made whose name is taken in the graph, a number is appended (`_names.negotiated`).
"""

import re
from typing import Any

import tensorflow as tf

from horovod.tensorflow._names import _function_name, _root


def of_call(kind: str) -> str:
    """The beginning of the names of operations that `kind` (a tape, an optimizer) makes now: with the function's name, if
    one is being traced."""
    if tf.executing_eagerly():
        return kind
    function = _function_name(_root(tf.compat.v1.get_default_graph()))
    return f"{function}/{kind}" if function else kind


def of_variable(variable: Any) -> str:
    """The last part of a variable's name, without a counter at its end; empty if the variable has no name."""
    name = getattr(variable, "name", None)
    if not isinstance(name, str):
        return ""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", name.split(":")[0].rstrip("/").split("/")[-1])
    return re.sub(r"_\d+$", "", name)
