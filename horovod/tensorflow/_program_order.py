"""What join and barrier wait for inside of functions: the operations before them in the program, and those after wait.

Others of our operations run at any time within their function; between operations that TensorFlow orders by itself,
such as branches, loops and calls of functions, and a join or barrier, it does. Used while a function is traced, by the
thread that does it.
"""

import contextlib

import tensorflow as tf

from horovod.tensorflow import _names

_MADE = "_horovod_made"
_FENCE = "_horovod_fence"


def note(op: tf.Operation) -> None:
    """Tell of an operation that has been made and that nothing orders."""
    graph = op.graph
    if graph.building_function:
        if not hasattr(graph, _MADE):
            setattr(graph, _MADE, [])
        getattr(graph, _MADE).append(op)


def after_fence(graph: tf.Graph) -> contextlib.AbstractContextManager:
    """What is made within comes after the last join or barrier of this function, branch or loop."""
    fence = getattr(graph, _FENCE, None)
    return contextlib.nullcontext() if fence is None else graph.control_dependencies([fence])


def before_fence(graph: tf.Graph) -> contextlib.AbstractContextManager:
    """What is made within comes after all operations so far, also those before the branch or loop that it is in."""
    if not graph.building_function:
        return contextlib.nullcontext()
    made = list(getattr(graph, _MADE, ()))
    part = graph
    while _names.is_part(part):
        part = part.outer_graph
        made += getattr(part, _MADE, ())
    return graph.control_dependencies(made)


def note_fence(op: tf.Operation) -> None:
    """Tell of a join or barrier, made within before_fence()."""
    if op.graph.building_function:
        setattr(op.graph, _MADE, [])
        setattr(op.graph, _FENCE, op)
