"""Gradients of which ranks have different kinds: a tensor, tf.IndexedSlices, or None. No rank may wait for the others.

What a rank has nothing to reduce for is reduced all the same, as a tensor of a shape that fits none.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet
from horovod.tensorflow import _gradient_names
from horovod.tensorflow._call import ALLREDUCE, REDUCIBLE, Asked, poison
from horovod.tensorflow.util import plain_variable


@contextmanager
def all_or_none(names: list[str], process_set: ProcessSet) -> Iterator[Callable]:
    """Around what makes the operations `names` in a graph, and calls what this yields with each name before it does.

    If one cannot be made here, of which its own peers get to know, none is executed here: the others' fail as well.
    """
    latest: list[str] = []
    try:
        yield latest.append
    except Exception as error:
        if not tf.executing_eagerly():
            for name in names:
                if name not in latest[-1:]:
                    poison(Asked(ALLREDUCE, name, process_set, True), f"{type(error).__name__}: {error}")
        raise


def is_tensor(gradient: Any) -> bool:
    """Whether it is neither None nor tf.IndexedSlices."""
    return not (gradient is None or isinstance(gradient, tf.IndexedSlices))


def sent_for(gradient: Any, vars: Sequence[Any] | None, place: int) -> Any:
    """What is reduced for a gradient: itself, or what stands for None and for tf.IndexedSlices, whose rows are gathered
    after that."""
    if is_tensor(gradient):
        return gradient
    dtype = tf.float32 if vars is None else plain_variable(vars[place]).dtype.base_dtype
    return tf.zeros([0] if gradient is None else [0, 0], dtype if dtype in REDUCIBLE else tf.float32)


def kinds(grads: list, vars: Sequence[Any] | None, places: list[int]) -> str:
    """What this rank has put in a group that did not fit the other ranks' groups."""

    def which(found: list[int]) -> str:
        labels = ["" if vars is None else _gradient_names.of_variable(vars[i]) for i in found]
        return ", ".join(f"{i} ({label})" if label else str(i) for i, label in zip(found, labels)) or "none"

    absent = [i for i in places if grads[i] is None]
    sliced = [i for i in places if isinstance(grads[i], tf.IndexedSlices)]
    tensors = [i for i in places if is_tensor(grads[i])]
    return (
        f"On this rank the group is made of the gradients number {which(places)}, of which are tensors: "
        f"{which(tensors)}; tf.IndexedSlices (sent as shape [0, 0]): {which(sliced)}; None (sent as shape [0]): "
        f"{which(absent)}."
    )
