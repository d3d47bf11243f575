"""Ranks may have different kinds of gradients for one variable: a tensor, tf.IndexedSlices, or None.

So that no rank waits for the others, a rank without a tensor takes part as well, with a stand-in: a tensor whose shape
fits no gradient. Ranks with a tensor then get an error.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet
from horovod.tensorflow import _gradient_names
from horovod.tensorflow._call import REDUCIBLE, CallIdentity, report
from horovod.tensorflow.util import plain_variable


@contextmanager
def fail_together(names: list[str], process_set: ProcessSet) -> Iterator[Callable]:
    """A context for code that makes the allreduces `names` in a graph. It calls the yielded function with each name
    before it makes that operation.

    If one operation cannot be made, the graph does not run, and this rank executes none of them. The operation that
    failed has told the other ranks; the context lets the other ranks' calls of all other names fail as well.
    """
    begun: list[str] = []
    try:
        yield begun.append
    except Exception as error:
        if not tf.executing_eagerly():
            for name in names:
                if name not in begun[-1:]:
                    report(CallIdentity("allreduce", name, process_set, True), error)
        raise


def is_tensor(gradient: Any) -> bool:
    """Whether a gradient is neither None nor tf.IndexedSlices."""
    return not (gradient is None or isinstance(gradient, tf.IndexedSlices))


def tensor_to_reduce(gradient: Any, vars: Sequence[Any] | None, place: int) -> Any:
    """A gradient that is a tensor, or the stand-in for None (shape [0]) and for tf.IndexedSlices (shape [0, 0]), whose
    rows are gathered afterwards. `place`: of the gradient's variable in `vars`."""
    if is_tensor(gradient):
        return gradient
    dtype = tf.float32 if vars is None else plain_variable(vars[place]).dtype.base_dtype
    return tf.zeros([0] if gradient is None else [0, 0], dtype if dtype in REDUCIBLE else tf.float32)


def description_of_group(grads: list, vars: Sequence[Any] | None, places: list[int]) -> str:
    """A sentence for an error: the kinds of the gradients that this rank has put in a group."""

    def listed(found: list[int]) -> str:
        labels = ["" if vars is None else _gradient_names.of_variable(vars[i]) for i in found]
        return ", ".join(f"{i} ({label})" if label else str(i) for i, label in zip(found, labels)) or "none"

    absent = [i for i in places if grads[i] is None]
    sliced = [i for i in places if isinstance(grads[i], tf.IndexedSlices)]
    tensors = [i for i in places if is_tensor(grads[i])]
    return (
        f"On this rank the group is made of the gradients number {listed(places)}, of which are tensors: "
        f"{listed(tensors)}; tf.IndexedSlices (sent as shape [0, 0]): {listed(sliced)}; None (sent as shape [0]): "
        f"{listed(absent)}."
    )
