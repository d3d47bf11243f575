"""The order of join and barrier inside functions.

They run after the operations before them in the program, and before the operations after them. Our other operations run
at any time within their function. TensorFlow itself orders branches, loops and calls of functions relative to a join or
barrier. Used by the thread that traces a function.
"""

import contextlib

import tensorflow as tf

from horovod.tensorflow import _names

_UNORDERED = "_horovod_unordered"
_FENCE = "_horovod_fence"


def note(op: tf.Operation) -> None:
    """Remember an operation that may run at any time, for the next join or barrier."""
    graph = op.graph
    if graph.building_function:
        if not hasattr(graph, _UNORDERED):
            setattr(graph, _UNORDERED, [])
        getattr(graph, _UNORDERED).append(op)


def after_fence(graph: tf.Graph) -> contextlib.AbstractContextManager:
    """A context: operations made within it run after the last join or barrier of this function, branch or loop."""
    fence = getattr(graph, _FENCE, None)
    return contextlib.nullcontext() if fence is None else graph.control_dependencies([fence])


def before_fence(graph: tf.Graph) -> contextlib.AbstractContextManager:
    """A context: operations made within it run after all earlier operations, also after those that stand before the
    branch or loop around it."""
    if not graph.building_function:
        return contextlib.nullcontext()
    earlier = list(getattr(graph, _UNORDERED, ()))
    part = graph
    while _names.is_part(part):
        part = part.outer_graph
        earlier += getattr(part, _UNORDERED, ())
    return graph.control_dependencies(earlier)


def note_fence(op: tf.Operation) -> None:
    """Remember a join or barrier, which was made within before_fence(), for the operations after it."""
    if op.graph.building_function:
        setattr(op.graph, _UNORDERED, [])
        setattr(op.graph, _FENCE, op)
