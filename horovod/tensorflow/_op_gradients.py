"""Gradients of the operations, for tapes, tf.function and graphs of TensorFlow 1. Registered when this is imported.

A gradient's operation has the name of its operation with "_grad" behind it, so that ranks may run backward in different
orders; where an eager operation has no name its gradient has none either.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, _temp_process_set_object, global_process_set
from horovod.tensorflow import _xla
from horovod.tensorflow._call import OP_OF_WIRE, REDUCIBLE, Average, Sum, _basics
from horovod.tensorflow._job_ops import rank_op, size_op
from horovod.tensorflow._move_ops import allgather, alltoall, grouped_allgather
from horovod.tensorflow._reduce_ops import _allreduce, _grouped_allreduce

GRADIENTS: dict[str, Callable] = {}


def _gradient_of(kind: str) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        GRADIENTS[kind] = function
        return tf.RegisterGradient(kind)(function)

    return register


def _compiled() -> bool:
    return not tf.executing_eagerly() and _xla.compiles(tf.compat.v1.get_default_graph())


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _process_set(number: int) -> ProcessSet:
    return global_process_set if number == 0 else _temp_process_set_object(number)


class _Made:
    """What an operation was made with, as its gradient needs it."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.process_set = _process_set(op.get_attr("process_set_id"))

    def name(self, suffix: str = "grad") -> dict[str, Any]:
        """The arguments that name an operation of the gradient."""
        name = _text(self.op.get_attr("tensor_name"))
        return {"name": f"{name}_{suffix}" if name else None, "ignore_name_scope": True}

    def reduction(self) -> dict[str, Any]:
        """The arguments of the same reduction."""
        get = self.op.get_attr
        return {
            "op": OP_OF_WIRE[get("reduce_op")],
            "prescale_factor": float(_text(get("prescale_factor"))),
            "postscale_factor": float(_text(get("postscale_factor"))),
            "process_set": self.process_set,
        }

    def given(self, grads: Sequence[Any]) -> list[tf.Tensor]:
        """The gradients of the outputs, zeros for those on which nothing depends: a group is one on all ranks."""
        pairs = zip(grads, self.op.outputs)
        return [
            tf.zeros_like(output) if grad is None else tf.convert_to_tensor(grad) for grad, output in pairs
        ]


@_gradient_of("HorovodAllreduce")
def _allreduce_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    made = _Made(op)
    return _allreduce(grad, **made.reduction(), **made.name())


@_gradient_of("HorovodGroupedAllreduce")
def _grouped_allreduce_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    made = _Made(op)
    return _grouped_allreduce(made.given(grads), **made.reduction(), **made.name())


@_gradient_of("HorovodBroadcast")
def _broadcast_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    made = _Made(op)
    reduced = _allreduce(grad, op=Average, process_set=made.process_set, **made.name())
    return _where_root(op, [reduced])[0]


@_gradient_of("HorovodGroupedBroadcast")
def _grouped_broadcast_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    return _means_of_members(op, grads, lambda _made, means, _indices: _where_root(op, means))


def _means_of_members(op: Any, grads: Sequence[Any], of_means: Callable) -> list[tf.Tensor | None]:
    """The gradients of a group that is moved: `of_means(made, means, indices)` for the members that have any. Others than
    floats, and floats that cannot be reduced, have none."""
    made = _Made(op)
    indices = [
        i for i, output in enumerate(op.outputs) if output.dtype.is_floating and output.dtype in REDUCIBLE
    ]
    result: list[tf.Tensor | None] = [None] * len(op.outputs)
    if not indices:
        return result
    given = made.given(grads)
    means = _grouped_allreduce(
        [given[i] for i in indices], op=Average, process_set=made.process_set, **made.name()
    )
    for i, own in zip(indices, of_means(made, means, indices)):
        result[i] = own
    return result


def _where_root(op: Any, grads: list[tf.Tensor]) -> list[tf.Tensor]:
    is_root = tf.equal(rank_op(), op.get_attr("root_rank"))
    return [grad * tf.cast(is_root, grad.dtype) for grad in grads]


@_gradient_of("HorovodAllgather")
def _allgather_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    made = _Made(op)
    reduced = _allreduce(grad, op=Average, process_set=made.process_set, **made.name())
    return _own_rows(made, [reduced], [0])[0]


@_gradient_of("HorovodGroupedAllgather")
def _grouped_allgather_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    return _means_of_members(op, grads, _own_rows)


def _own_rows(made: _Made, grads: list[tf.Tensor], indices: list[int]) -> list[tf.Tensor]:
    """Of the gradients of what an allgather has made of the inputs `indices`, the rows that are this rank's."""
    inputs = [made.op.inputs[i] for i in indices]
    if _compiled():  # where all ranks give as many rows
        place = _basics._process_set_rank(made.process_set.process_set_id)
        return [grad[place * n : (place + 1) * n] for grad, n in zip(grads, (t.shape[0] for t in inputs))]
    rows = [tf.shape(tensor, tf.int64)[0] for tensor in inputs]
    me = tf.cast(rank_op(), tf.int64)
    table = allgather(
        tf.expand_dims(tf.stack([me, *rows]), 0), process_set=made.process_set, **made.name("grad_rows")
    )
    place = tf.argmax(tf.equal(table[:, 0], me))
    begins = tf.reduce_sum(table[:place, 1:], axis=0)
    own = [grad[begins[i] : begins[i] + rows[i]] for i, grad in enumerate(grads)]
    for part, tensor in zip(own, inputs):
        if not tf.executing_eagerly():
            part.set_shape(tensor.shape)
    return own


@_gradient_of("HorovodAlltoall")
def _alltoall_grad(op: Any, grad: tf.Tensor, _received: Any) -> Any:
    made = _Made(op)
    if _compiled():  # where nobody gives splits
        return alltoall(grad, process_set=made.process_set, **made.name())
    received = op.outputs[1]
    back, _ = alltoall(grad, splits=received, process_set=made.process_set, **made.name())
    tensor, *splits = op.inputs
    # Rows beyond the sum of the splits went nowhere.
    missing = tf.shape(tensor)[0] - tf.shape(back)[0]
    back = tf.pad(back, tf.scatter_nd([[0, 1]], [missing], [tf.rank(tensor), 2]))
    if not tf.executing_eagerly():
        back.set_shape(tensor.shape)
    return [back, *(None for _ in splits)]


@_gradient_of("HorovodReducescatter")
def _reducescatter_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    made = _Made(op)
    (grad,) = _scaled_for_scatter(made, [grad])
    return _gathered_like(op, [allgather(grad, process_set=made.process_set, **made.name())])[0]


@_gradient_of("HorovodGroupedReducescatter")
def _grouped_reducescatter_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    made = _Made(op)
    grads = _scaled_for_scatter(made, made.given(grads))
    return _gathered_like(op, grouped_allgather(grads, process_set=made.process_set, **made.name()))


def _scaled_for_scatter(made: _Made, grads: list[tf.Tensor]) -> list[tf.Tensor]:
    """Horovod's rule: as for a mean; a sum has the set's size as a factor more."""
    reduction = made.reduction()
    scale = reduction["prescale_factor"] * reduction["postscale_factor"]
    if reduction["op"] == Sum:
        size = size_op(made.process_set.process_set_id)
        grads = [grad * tf.cast(size, grad.dtype) for grad in grads]
    return grads if scale == 1.0 else [grad * tf.cast(scale, grad.dtype) for grad in grads]


def _gathered_like(op: Any, grads: list[tf.Tensor]) -> list[tf.Tensor]:
    if not tf.executing_eagerly():
        for grad, tensor in zip(grads, op.inputs):
            grad.set_shape(tensor.shape)
    return grads
