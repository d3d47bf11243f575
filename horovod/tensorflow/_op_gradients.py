"""Gradients of the operations, for tapes, tf.function and graphs of TensorFlow 1. Importing this registers them.

The operations of a gradient have the name of the forward operation with ".grad" behind it, so that ranks may run the
backward pass in different orders. The gradient of an eager operation without a name has no name either.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.arguments import Average, Sum
from horovod.common.exports import _basics
from horovod.common.process_sets import ProcessSet, _temp_process_set_object, global_process_set
from horovod.tensorflow import _xla
from horovod.tensorflow._call import REDUCIBLE
from horovod.tensorflow._gradient_registry import register_gradient
from horovod.tensorflow._job_ops import rank_op, size_op
from horovod.tensorflow._move_ops import allgather, alltoall, grouped_allgather
from horovod.tensorflow._reduce_ops import _allreduce, _grouped_allreduce
from hvd_core._frontend.operations import gradient_name
from hvd_core._frontend.reductions import OF_ENGINE_NUMBER


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _process_set(number: int) -> ProcessSet:
    return global_process_set if number == 0 else _temp_process_set_object(number)


class _ForwardOperation:
    """An operation whose gradient is computed: its attributes as arguments of the gradient's own operations."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.process_set = _process_set(op.get_attr("process_set_id"))

    def name(self, suffix: str = "grad") -> dict[str, Any]:
        """The arguments that name an operation of the gradient."""
        name = _text(self.op.get_attr("tensor_name")) or None
        return {"name": gradient_name(name, suffix), "ignore_name_scope": True}

    def reduction(self) -> dict[str, Any]:
        """The arguments of the same reduction."""
        get = self.op.get_attr
        return {
            "op": OF_ENGINE_NUMBER[get("reduce_op")],
            "prescale_factor": float(_text(get("prescale_factor"))),
            "postscale_factor": float(_text(get("postscale_factor"))),
            "process_set": self.process_set,
        }

    def output_gradients(self, grads: Sequence[Any]) -> list[tf.Tensor]:
        """`grads`, with zeros for outputs on which the loss does not depend: a group must be the same on all ranks."""
        pairs = zip(grads, self.op.outputs)
        return [
            tf.zeros_like(output) if grad is None else tf.convert_to_tensor(grad) for grad, output in pairs
        ]


@register_gradient("HorovodAllreduce")
def _allreduce_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    forward = _ForwardOperation(op)
    return _allreduce(grad, **forward.reduction(), **forward.name())


@register_gradient("HorovodGroupedAllreduce")
def _grouped_allreduce_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    forward = _ForwardOperation(op)
    return _grouped_allreduce(forward.output_gradients(grads), **forward.reduction(), **forward.name())


@register_gradient("HorovodBroadcast")
def _broadcast_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    forward = _ForwardOperation(op)
    reduced = _allreduce(grad, op=Average, process_set=forward.process_set, **forward.name())
    return _zero_but_on_root(op, [reduced])[0]


@register_gradient("HorovodGroupedBroadcast")
def _grouped_broadcast_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    return _means_of_members(op, grads, lambda _forward, means, _indices: _zero_but_on_root(op, means))


def _means_of_members(op: Any, grads: Sequence[Any], of_means: Callable) -> list[tf.Tensor | None]:
    """The gradients of the members of a group that is moved. A member whose dtype is not a float that can be reduced has
    the gradient None; the others have the list `of_means(forward, means, indices)`, made of the gradients' means."""
    forward = _ForwardOperation(op)
    indices = [
        i for i, output in enumerate(op.outputs) if output.dtype.is_floating and output.dtype in REDUCIBLE
    ]
    result: list[tf.Tensor | None] = [None] * len(op.outputs)
    if not indices:
        return result
    gradients = forward.output_gradients(grads)
    means = _grouped_allreduce(
        [gradients[i] for i in indices], op=Average, process_set=forward.process_set, **forward.name()
    )
    for i, own in zip(indices, of_means(forward, means, indices)):
        result[i] = own
    return result


def _zero_but_on_root(op: Any, grads: list[tf.Tensor]) -> list[tf.Tensor]:
    """`grads` on the root of a broadcast, zeros on the other ranks."""
    is_root = tf.equal(rank_op(), op.get_attr("root_rank"))
    return [grad * tf.cast(is_root, grad.dtype) for grad in grads]


@register_gradient("HorovodAllgather")
def _allgather_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    forward = _ForwardOperation(op)
    reduced = _allreduce(grad, op=Average, process_set=forward.process_set, **forward.name())
    return _own_rows(forward, [reduced], [0])[0]


@register_gradient("HorovodGroupedAllgather")
def _grouped_allgather_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    return _means_of_members(op, grads, _own_rows)


def _own_rows(forward: _ForwardOperation, grads: list[tf.Tensor], indices: list[int]) -> list[tf.Tensor]:
    """This rank's rows of `grads`, the gradients of the outputs that an allgather made of its inputs `indices`."""
    inputs = [forward.op.inputs[i] for i in indices]
    if _xla.is_traced_for_xla():  # there all ranks have the same number of rows
        place = _basics._process_set_rank(forward.process_set.process_set_id)
        return [grad[place * n : (place + 1) * n] for grad, n in zip(grads, (t.shape[0] for t in inputs))]
    rows = [tf.shape(tensor, tf.int64)[0] for tensor in inputs]
    me = tf.cast(rank_op(), tf.int64)
    table = allgather(
        tf.expand_dims(tf.stack([me, *rows]), 0), process_set=forward.process_set, **forward.name("grad_rows")
    )
    place = tf.argmax(tf.equal(table[:, 0], me))
    begins = tf.reduce_sum(table[:place, 1:], axis=0)
    own = [grad[begins[i] : begins[i] + rows[i]] for i, grad in enumerate(grads)]
    for part, tensor in zip(own, inputs):
        if not tf.executing_eagerly():
            part.set_shape(tensor.shape)
    return own


@register_gradient("HorovodAlltoall")
def _alltoall_grad(op: Any, grad: tf.Tensor, _received: Any) -> Any:
    forward = _ForwardOperation(op)
    if _xla.is_traced_for_xla():  # there alltoall takes no splits
        return alltoall(grad, process_set=forward.process_set, **forward.name())
    received = op.outputs[1]
    back, _ = alltoall(grad, splits=received, process_set=forward.process_set, **forward.name())
    tensor, *splits = op.inputs
    # Rows beyond the sum of the splits were not sent.
    missing = tf.shape(tensor)[0] - tf.shape(back)[0]
    back = tf.pad(back, tf.scatter_nd([[0, 1]], [missing], [tf.rank(tensor), 2]))
    if not tf.executing_eagerly():
        back.set_shape(tensor.shape)
    return [back, *(None for _ in splits)]


@register_gradient("HorovodReducescatter")
def _reducescatter_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    forward = _ForwardOperation(op)
    (grad,) = _scaled_for_scatter(forward, [grad])
    return _with_input_shapes(op, [allgather(grad, process_set=forward.process_set, **forward.name())])[0]


@register_gradient("HorovodGroupedReducescatter")
def _grouped_reducescatter_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    forward = _ForwardOperation(op)
    grads = _scaled_for_scatter(forward, forward.output_gradients(grads))
    return _with_input_shapes(op, grouped_allgather(grads, process_set=forward.process_set, **forward.name()))


def _scaled_for_scatter(forward: _ForwardOperation, grads: list[tf.Tensor]) -> list[tf.Tensor]:
    """Horovod's rule: the gradient of Average, which is multiplied by the size of the process set for Sum."""
    reduction = forward.reduction()
    scale = reduction["prescale_factor"] * reduction["postscale_factor"]
    if reduction["op"] == Sum:
        size = size_op(forward.process_set.process_set_id)
        grads = [grad * tf.cast(size, grad.dtype) for grad in grads]
    return grads if scale == 1.0 else [grad * tf.cast(scale, grad.dtype) for grad in grads]


def _with_input_shapes(op: Any, grads: list[tf.Tensor]) -> list[tf.Tensor]:
    """`grads`, whose static shapes become those of the inputs of `op`."""
    if not tf.executing_eagerly():
        for grad, tensor in zip(grads, op.inputs):
            grad.set_shape(tensor.shape)
    return grads
