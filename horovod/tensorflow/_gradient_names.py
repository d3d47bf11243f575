"""Names of the operations that we make ourselves. They must be the same on all ranks.

TensorFlow makes the names of tensors unique by counting, so that a summary which only one rank builds shifts the names of
what follows. Ours say which call it is of its kind in the graph, and which tensor of that call.
"""

import re
import weakref
from collections import Counter
from typing import Any

import tensorflow as tf

_calls: "weakref.WeakKeyDictionary[Any, Counter]" = weakref.WeakKeyDictionary()


def _outermost_graph() -> tuple[Any, str]:
    """The graph that is executed as one, and the name of the function it belongs to, if to any."""
    graph = tf.compat.v1.get_default_graph()
    eager_outside = tf.compat.v1.executing_eagerly_outside_functions()
    while (outer := getattr(graph, "outer_graph", None)) is not None:
        # Outside of functions there is a graph in eager mode too, which nothing is added to.
        if eager_outside and not hasattr(outer, "outer_graph"):
            break
        graph = outer
    return graph, getattr(graph, "name", "") if hasattr(graph, "outer_graph") else ""


def of_call(kind: str) -> str:
    """A name for one call that makes operations: of the same kind in eager mode, numbered in a graph, where all calls
    may be under way at once."""
    if tf.executing_eagerly():
        return kind
    graph, function = _outermost_graph()
    calls = _calls.setdefault(graph, Counter())
    number = calls[kind]
    calls[kind] += 1
    name = f"{kind}_{number}" if number else kind
    return f"{function}/{name}" if function else name


def of_variable(variable: Any) -> str:
    """A variable's last name, without what has been counted up; empty where it has none."""
    name = getattr(variable, "name", None)
    if not isinstance(name, str):
        return ""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", name.split(":")[0].rstrip("/").split("/")[-1])
    return re.sub(r"_\d+$", "", name)
