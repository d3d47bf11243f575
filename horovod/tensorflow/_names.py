"""The names under which ranks find each other's operations. Pure functions over graphs, called by the thread that traces.

Inside a graph a name is fixed when the operation is made, and is an attribute of it, because TensorFlow's optimizers
rename and copy the graph's nodes, and may do so differently on each rank. A name must not depend on anything that differs
between ranks. So it leaves out TensorFlow's counters, which are part of the names of some functions, branches, loops and
captured values.
"""

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

# Classes of graphs that TensorFlow traces separately, although they are a part of the function around them.
_LOOPS = frozenset(("WhileCondFuncGraph", "WhileBodyFuncGraph"))
_PARTS = _LOOPS | {"CondBranchFuncGraph"}
_GENERATED = re.compile(r"^__(?:forward|backward|inference)_")
_COUNTER = re.compile(r"_\d+$")
_USED = "_horovod_names"


def is_part(graph: tf.Graph) -> bool:
    """Whether `graph` is the graph of a branch or a loop."""
    return _is_any_of(graph, _PARTS) and graph.outer_graph is not None


def _is_any_of(graph: tf.Graph, kinds: frozenset[Any]) -> bool:
    return any(kind.__name__ in kinds for kind in type(graph).__mro__)


def is_by_round(graph: tf.Graph) -> bool:
    """Whether operations that are made in `graph` now are in a loop of a graph of TensorFlow 1.

    The rounds of such a loop may run at the same time and in any order, so the number of the round is part of the name.
    In a loop within a loop it is the number of the inner loop's round.
    """
    if _root(graph).building_function:
        return False
    is_loop = control_flow_util.GetContainingWhileContext(graph._get_control_flow_context()) is not None
    while is_part(graph):
        is_loop = is_loop or _is_any_of(graph, _LOOPS)
        graph = graph.outer_graph
    return is_loop


def _root(graph: tf.Graph) -> tf.Graph:
    """The graph of the function that `graph` is a part of; `graph` itself if it is not a branch or a loop."""
    while is_part(graph):
        graph = graph.outer_graph
    return graph


def _function_name(root: tf.Graph) -> str:
    name = getattr(root, "name", None)
    return _COUNTER.sub("", _GENERATED.sub("", name)) if isinstance(name, str) else ""


def default_name(operation: str, tensors: Sequence[tf.Tensor]) -> str:
    """The name of an operation that was given none, made of the names of its tensors."""
    words = [
        operation,
        *(_word(tensor) for tensor in (tensors[:1] if len(tensors) == 1 else (tensors[0], tensors[-1]))),
    ]
    return "_".join(words)


def _word(tensor: tf.Tensor) -> str:
    # A value from outside the function has no name, or one that is a number counted by this process.
    name = getattr(tensor, "name", "0")
    return "captured" if name.split(":")[0].isdigit() else re.sub(r"[^a-zA-Z0-9_]", "_", name)


def node_name(name: str) -> str:
    """`name` as TensorFlow accepts it for a node in the current scope."""
    word = re.sub(r"[^A-Za-z0-9_.]", "_", name.rpartition("/")[2])
    return word if re.match(r"[A-Za-z0-9.]", word) else f"H{word}"


def negotiated(graph: tf.Graph, name: str, ignore_name_scope: bool = False) -> str:
    """The name by which the other ranks know an operation that is made in `graph` now.

    It consists of the function's name, the name scope and `name`; with `ignore_name_scope`, of `name` alone. A number is
    appended if the graph has an operation of that name already.
    """
    root = _root(graph)
    if not ignore_name_scope:
        name = "/".join(part for part in (_function_name(root), graph.get_name_scope(), name) if part)
    used = getattr(root, _USED, None)
    if used is None:
        used = {}
        setattr(root, _USED, used)
    count = used.get(name, 0)
    used[name] = count + 1
    return negotiated(graph, f"{name}_{count}", True) if count else name


# Names of the operations that reduce gradients and broadcast variables. They must be the same on all ranks.
#
# TensorFlow makes the names of tensors unique by counting, so that a summary which only one rank builds changes the names
# of later tensors. Our names consist of the function's name, the tape or optimizer, and the place and name of the
# variable. When an operation is made whose name is taken in the graph, a number is appended (`_names.negotiated`).


def call_prefix(kind: str) -> str:
    """The beginning of the names of operations that `kind` (a tape, an optimizer) makes now: with the function's name, if
    one is being traced."""
    if tf.executing_eagerly():
        return kind
    function = _function_name(_root(tf.compat.v1.get_default_graph()))
    return f"{function}/{kind}" if function else kind


def variable_label(variable: Any) -> str:
    """The last part of a variable's name, without a counter at its end; empty if the variable has no name."""
    name = getattr(variable, "name", None)
    if not isinstance(name, str):
        return ""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", name.split(":")[0].rstrip("/").split("/")[-1])
    return re.sub(r"_\d+$", "", name)
