"""The operations of ``horovod.tensorflow`` and their gradients. Programs import this module name; no MPI is involved.

Each operation returns new tensors and has a gradient. Importing this loads the operations into TensorFlow and registers
the gradients. Any thread; inside a function that is being traced, the thread that traces it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common import exports
from horovod.common.arguments import Adasum, Average, Sum, op_from
from horovod.common.exports import *  # noqa: F403
from horovod.common.exports import _basics, size
from horovod.common.exports import init as init
from horovod.common.process_sets import (
    ProcessSet,
    _temp_process_set_object,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.tensorflow import _xla
from horovod.tensorflow._call import (
    REDUCIBLE,
    CallOptions,
    before_fence,
    generated_function,
    note_fence,
    nothing,
    prepare_devices,
    process_set_number,
    reported,
    run,
    run_group,
)
from horovod.tensorflow._library import operations, register_gradient
from horovod.tensorflow._library import operations as MPI_LIB
from horovod.tensorflow._xla import is_traced_for_xla
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.util import decided_at_run_time, do_not_convert, on_device
from hvd_core._frontend.operations import OF_ENGINE_NUMBER, gradient_name, members_of, text_of

__all__ = [
    "MPI_LIB",
    "ProcessSet",
    "_allreduce",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_reducescatter",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "size_op",
]


__all__ += ["init", *exports.__all__]


# allreduce and reducescatter, of one tensor or of a group: functions that return new tensors and have gradients.


@do_not_convert
def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """As allreduce() of a tensor, without compression and devices. Returns a tensor of the same shape and dtype.

    Args:
        tensor: integers except uint32 and uint64, or floats of 16 bits and more.
    """
    call = CallOptions(
        "allreduce", name, process_set, ignore_name_scope, op, prescale_factor, postscale_factor
    )
    return run("HorovodAllreduce", tensor, call)


@do_not_convert
def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Reduce several tensors as one operation. As `_allreduce`; their types may differ. Returns a list."""
    call = CallOptions(
        "allreduce", name, process_set, ignore_name_scope, op, prescale_factor, postscale_factor
    )
    return run_group("HorovodGroupedAllreduce", tensors, call)


@do_not_convert
def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """As reducescatter() of a tensor, without compression and devices."""
    call = CallOptions(
        "reducescatter", name, process_set, ignore_name_scope, op, prescale_factor, postscale_factor
    )
    return run("HorovodReducescatter", tensor, call)


@do_not_convert
def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Reduce and scatter several tensors as one operation. As `_reducescatter`. Returns a list."""
    call = CallOptions(
        "reducescatter", name, process_set, ignore_name_scope, op, prescale_factor, postscale_factor
    )
    return run_group("HorovodGroupedReducescatter", tensors, call)


# allgather, broadcast and alltoall, of one tensor or of a group: functions that return new tensors and have gradients.


@do_not_convert
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The tensors of all ranks of a process set, one behind the other along dimension 0, in the order of ranks.

        losses = hvd.allgather(tf.reshape(loss, [1]))  # shape [hvd.size()]

    Args:
        tensor: of one dimension or more. All dimensions but dimension 0 must be equal on all ranks; dimension 0 may be
            0. Any dtype of numbers, or bool.
        name, ignore_name_scope, process_set: as for hvd.allreduce.

    Returns:
        A tensor of the same dtype; its dimension 0 is the sum of those of all ranks.

    Raises:
        As hvd.allreduce.
    """
    return run("HorovodAllgather", tensor, CallOptions("allgather", name, process_set, ignore_name_scope))


@do_not_convert
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gather several tensors as one operation. As `allgather`; their dtypes may differ. Returns a list."""
    return run_group(
        "HorovodGroupedAllgather", tensors, CallOptions("allgather", name, process_set, ignore_name_scope)
    )


@do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The tensor of one rank, on all ranks of a process set.

        seed = hvd.broadcast(seed, root_rank=0)

    Args:
        tensor: of any shape and dtype, the same on all ranks; only the root's values count.
        root_rank: the root's rank in the job, also within a process set.
        name, ignore_name_scope, process_set: as for hvd.allreduce.

    Returns:
        The root's tensor.

    Raises:
        As hvd.allreduce.
    """
    call = CallOptions("broadcast", name, process_set, ignore_name_scope, root_rank=root_rank)
    return run("HorovodBroadcast", tensor, call)


@do_not_convert
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Give variables the values that they have on one rank.

        hvd.broadcast_(model.variables, root_rank=0)

    Args:
        variables: tf.Variable (resource variables or reference variables) or Keras variables; their dtypes may differ.
        root_rank: rank in the job whose values they get.
        name, process_set: as for hvd.allreduce.

    Returns:
        The new values as tensors. In a graph they are computed after the variables have been assigned.

    Raises:
        As hvd.allreduce.
    """
    call = CallOptions("broadcast", name, process_set, root_rank=root_rank)
    with reported(call):
        process_set_number(process_set)
        variables = list(variables)
        for variable in variables:
            if not hasattr(variable, "assign"):
                raise ValueError(f"broadcast_() takes variables, but found {variable!r:.80}.")
        # The value is a copy: the operation must not see a later assignment.
        values = [_value_of(variable) for variable in variables]
    if not variables:
        return nothing("broadcast_", call)
    results = run_group("HorovodGroupedBroadcast", values, call)
    assigned = [_assign(variable, value) for variable, value in zip(variables, results)]
    if tf.executing_eagerly():
        return list(results)
    with tf.control_dependencies(assigned):
        return [tf.identity(value) for value in results]


@do_not_convert
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Send each rank of a process set some rows of a tensor, and receive rows of each rank, in the order of ranks.

        received, rows = hvd.alltoall(tokens, splits=rows_for_each_rank)

    Args:
        tensor: of one dimension or more. All dimensions but dimension 0 must be equal on all ranks.
        splits: how many rows each rank gets: one int32 (or int64) for each rank of the set. Rows beyond their sum are
            not sent. None: equal shares.
        name, ignore_name_scope, process_set: as for hvd.allreduce.

    Returns:
        The rows received, of the tensor's dtype; with `splits` a pair of these and of how many rows each rank sent.

    Raises:
        As hvd.allreduce. tf.errors.InvalidArgumentError on all ranks for wrong splits.
    """
    call = CallOptions("alltoall", name, process_set, ignore_name_scope)
    attributes: dict[str, Any] = {"splits": []}
    if splits is not None:
        with reported(call):
            attributes["splits"] = [_splits_tensor(splits)]
            attributes["Treceived"] = attributes["splits"][0].dtype
    output, received = run("HorovodAlltoall", tensor, call, attributes)
    return output if splits is None else (output, received)


def _splits_tensor(splits: Any) -> tf.Tensor:
    """`splits` as a tensor of int32 or int64. Raises ValueError if it is not one."""
    is_typed = hasattr(splits, "dtype")
    try:
        tensor = tf.convert_to_tensor(splits, dtype=None if is_typed else tf.int32)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        text = f"alltoall expects splits to contain 32-bit integer elements: {error}"
        raise ValueError(text) from None
    if tensor.dtype not in (tf.int32, tf.int64):
        text = f"alltoall expects splits to contain 32-bit integer elements, but found {tensor.dtype.name}."
        raise ValueError(text)
    return tensor


def _value_of(variable: Any) -> Any:
    read = getattr(variable, "read_value", None)
    return tf.convert_to_tensor(variable) if read is None else read()


def _assign(variable: Any, value: tf.Tensor) -> Any:
    """Assign `value`. Returns an object on which later operations of a graph can depend."""
    done = variable.assign(value)
    if done is None:  # assign() of a Keras variable returns nothing
        return variable.value
    return getattr(done, "op", done) if not tf.executing_eagerly() else done


# The operations without tensors: join, barrier, and facts about the job as operations of a graph.


def _refuse_xla(operation: str) -> None:
    """Raise NotImplementedError if the calling code is being traced for XLA."""
    if _xla.is_traced_for_xla():
        raise _xla.not_compilable(operation)


def _fact(kind: str, name: str | None, process_set_id: int | None = None) -> tf.Tensor:
    """A fact about the job, or about a process set. `kind`: the type of the operation, without "Horovod"."""
    if _xla.is_traced_for_xla():
        return _xla.fact(f"Horovod{kind}", process_set_id or 0)
    of_set = {} if process_set_id is None else {"process_set_id": process_set_id}
    return generated_function(f"Horovod{kind}")(name=name, **of_set)


@do_not_convert
def join() -> tf.Tensor:
    """Announce that this rank has no more data, and wait until all ranks have joined.

        for batch in data:  # of a different length on each rank
            train_step(batch)
        hvd.join()

    Meanwhile this rank contributes neutral data to the operations of the other ranks: zeros for Sum and for Average,
    which still divides by the number of all ranks. Inside tf.function join() runs after the operations that come before
    it in the program.

    Returns:
        The rank that joined last, the same on all ranks: a scalar int32 tensor.

    Raises:
        tf.errors.FailedPreconditionError: Horovod is not initialized. UnknownError: a rank is gone.
    """
    _refuse_xla("hvd.join")
    prepare_devices()
    if tf.executing_eagerly():
        return operations.horovod_join(blocking=True)
    with before_fence(tf.compat.v1.get_default_graph()):
        last = operations.horovod_join()
    note_fence(last.op)
    return last


@do_not_convert
def barrier(process_set: ProcessSet = global_process_set) -> tf.Operation | None:
    """Wait until all ranks of a process set have called barrier().

        if hvd.rank() == 0:
            prepare(folder)
        hvd.barrier()

    Inside tf.function barrier() runs after the operations that come before it in the program, and before those that come
    after it.

    Returns:
        The operation in a graph of TensorFlow 1, otherwise None.

    Raises:
        As hvd.allreduce.
    """
    _refuse_xla("hvd.barrier")
    prepare_devices()
    with reported(CallOptions("barrier", None, process_set)):
        number = process_set_number(process_set)
    if tf.executing_eagerly():
        operations.horovod_barrier(process_set_id=number, blocking=True)
        return None
    with before_fence(tf.compat.v1.get_default_graph()):
        operation = operations.horovod_barrier(process_set_id=number)
    note_fence(operation)
    return None if operation.graph.building_function else operation


@do_not_convert
def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank, looked up whenever the graph runs. Scalar int32."""
    return _fact("Rank", name)


@do_not_convert
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's index on its host, looked up whenever the graph runs. Scalar int32."""
    return _fact("LocalRank", name)


@do_not_convert
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks of a process set, looked up whenever the graph runs. Scalar int32."""
    return _fact("Size", name, process_set_id)


@do_not_convert
def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of processes on this host, looked up whenever the graph runs. Scalar int32."""
    return _fact("LocalSize", name)


@do_not_convert
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 if this process is a member of the process set, 0 if not, -3 if no set has this id, -1 before init(). Scalar
    int32, looked up whenever the graph runs."""
    return _fact("ProcessSetIncluded", name, process_set_id)


for _kind in ("Rank", "LocalRank", "Size", "LocalSize", "ProcessSetIncluded", "Join", "Barrier"):
    tf.no_gradient(f"Horovod{_kind}")


# Gradients of the operations, for tapes, tf.function and graphs of TensorFlow 1. Importing this registers them.
#
# The operations of a gradient have the name of the forward operation with ".grad" behind it, so that ranks may run the
# backward pass in different orders. The gradient of an eager operation without a name has no name either.


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value


class _ForwardOperation:
    """An operation whose gradient is computed, and the options of the calls that its gradient makes."""

    def __init__(self, op: Any) -> None:
        self.op = op
        number = op.get_attr("process_set_id")
        self.process_set = global_process_set if number == 0 else _temp_process_set_object(number)

    def options(self, operation: str, suffix: str = "grad", **changes: Any) -> CallOptions:
        """Options for an operation of the gradient, named after this operation."""
        name = gradient_name(_text(self.op.get_attr("tensor_name")) or None, suffix)
        return CallOptions(operation, name, self.process_set, True, **changes)

    def reduction(self) -> CallOptions:
        """Options for the same reduction."""
        get = self.op.get_attr
        return self.options(
            "allreduce",
            op=OF_ENGINE_NUMBER[get("reduce_op")],
            prescale_factor=float(_text(get("prescale_factor"))),
            postscale_factor=float(_text(get("postscale_factor"))),
        )

    def run(self, operation: str, tensors: list[tf.Tensor], call: CallOptions) -> list[tf.Tensor]:
        """Run an operation ("Allreduce") in its grouped form if this operation has that form."""
        if self.op.type.startswith("HorovodGrouped"):
            return run_group(f"HorovodGrouped{operation}", tensors, call)
        return [run(f"Horovod{operation}", tensors[0], call)]

    def output_gradients(self, grads: Sequence[Any]) -> list[tf.Tensor]:
        """`grads`, with zeros for outputs on which the loss does not depend: a group must be the same on all ranks."""
        pairs = zip(grads, self.op.outputs)
        return [
            tf.zeros_like(output) if grad is None else tf.convert_to_tensor(grad) for grad, output in pairs
        ]


@register_gradient("HorovodAllreduce", "HorovodGroupedAllreduce")
def _allreduce_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    forward = _ForwardOperation(op)
    return forward.run("Allreduce", forward.output_gradients(grads), forward.reduction())


@register_gradient("HorovodBroadcast", "HorovodGroupedBroadcast")
def _broadcast_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    return _means_of_members(op, grads, lambda _forward, means, _indices: _zero_but_on_root(op, means))


def _means_of_members(op: Any, grads: Sequence[Any], of_means: Callable[..., Any]) -> list[tf.Tensor | None]:
    """The gradients of tensors that were moved. A tensor whose dtype is not a float that can be reduced has the gradient
    None; the others have the list `of_means(forward, means, indices)`, made of the gradients' means."""
    forward = _ForwardOperation(op)
    indices = [
        i for i, output in enumerate(op.outputs) if output.dtype.is_floating and output.dtype in REDUCIBLE
    ]
    result: list[tf.Tensor | None] = [None] * len(op.outputs)
    if not indices:
        return result
    gradients = forward.output_gradients(grads)
    means = forward.run(
        "Allreduce", [gradients[i] for i in indices], forward.options("allreduce", op=Average)
    )
    for i, own in zip(indices, of_means(forward, means, indices)):
        result[i] = own
    return result


def _zero_but_on_root(op: Any, grads: list[tf.Tensor]) -> list[tf.Tensor]:
    """`grads` on the root of a broadcast, zeros on the other ranks."""
    is_root = tf.equal(rank_op(), op.get_attr("root_rank"))
    return [grad * tf.cast(is_root, grad.dtype) for grad in grads]


@register_gradient("HorovodAllgather", "HorovodGroupedAllgather")
def _allgather_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    return _means_of_members(op, grads, _own_rows)


def _own_rows(forward: _ForwardOperation, grads: list[tf.Tensor], indices: list[int]) -> list[tf.Tensor]:
    """This rank's rows of `grads`, the gradients of the outputs that an allgather made of its inputs `indices`."""
    inputs = [forward.op.inputs[i] for i in indices]
    if _xla.is_traced_for_xla():  # there all ranks have the same number of rows
        place = _basics._process_set_rank(process_set_number(forward.process_set))
        return [grad[place * n : (place + 1) * n] for grad, n in zip(grads, (t.shape[0] for t in inputs))]
    rows = [tf.shape(tensor, tf.int64)[0] for tensor in inputs]
    me = tf.cast(rank_op(), tf.int64)
    table = run(
        "HorovodAllgather",
        tf.expand_dims(tf.stack([me, *rows]), 0),
        forward.options("allgather", "grad_rows"),
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
        return run("HorovodAlltoall", grad, forward.options("alltoall"), {"splits": []})[0]
    received = op.outputs[1]
    back, _ = run(
        "HorovodAlltoall",
        grad,
        forward.options("alltoall"),
        {"splits": [received], "Treceived": received.dtype},
    )
    tensor, *splits = op.inputs
    # Rows beyond the sum of the splits were not sent.
    missing = tf.shape(tensor)[0] - tf.shape(back)[0]
    back = tf.pad(back, tf.scatter_nd([[0, 1]], [missing], [tf.rank(tensor), 2]))
    if not tf.executing_eagerly():
        back.set_shape(tensor.shape)
    return [back, *(None for _ in splits)]


@register_gradient("HorovodReducescatter", "HorovodGroupedReducescatter")
def _reducescatter_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    # Horovod's rule: the gradient of Average, which is multiplied by the size of the process set for Sum.
    forward = _ForwardOperation(op)
    scaled, reduction = forward.output_gradients(grads), forward.reduction()
    if reduction.op == Sum:
        size = size_op(process_set_number(forward.process_set))
        scaled = [grad * tf.cast(size, grad.dtype) for grad in scaled]
    scale = reduction.prescale_factor * reduction.postscale_factor
    if scale != 1.0:
        scaled = [grad * tf.cast(scale, grad.dtype) for grad in scaled]
    gathered = forward.run("Allgather", scaled, forward.options("allgather"))
    if not tf.executing_eagerly():
        for grad, tensor in zip(gathered, op.inputs):
            grad.set_shape(tensor.shape)
    return gathered


def handle_average_backwards_compatibility(op: int | None, average: Any) -> int:
    """The reduce op that the arguments `op` and `average` mean together; Average if neither is given.

    Raises:
        ValueError: both are given.
    """
    return op_from(op, average, stacklevel=4)


# The reductions of the public API: on tensors and on tf.IndexedSlices, with compression and device placement.
#
# They call the operations in mpi_ops. Eager, in tf.function and in graphs of tf.compat.v1.


@do_not_convert
def allreduce(
    tensor: Any,
    average: Any = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over all ranks. Differentiable.

        loss = hvd.allreduce(loss)  # the mean of all ranks

    Args:
        tensor: a tensor, or a value that tf.convert_to_tensor() accepts; the same shape and dtype on all ranks. Or
            tf.IndexedSlices (the gradient of an embedding): their rows are gathered, and may differ between ranks.
        average: deprecated: true for op=Average, false for op=Sum.
        device_dense: name of the device to reduce tensors on; empty: where TensorFlow places the operation.
        device_sparse: the same for tf.IndexedSlices.
        compression: hvd.Compression.none, .fp16 or .bf16; tf.IndexedSlices are sent as they are.
        op: Average (the default), Sum, Adasum, Min, Max or Product; Average or Sum for tf.IndexedSlices. The average of
            integers is rounded toward zero, that of the integers of tf.IndexedSlices is a true division (floats).
        prescale_factor, postscale_factor: multiplied with the tensor before and after the reduction.
        name: identifies the operation across ranks. The default is made of the tensor's name in a graph; in eager mode
            calls without a name are counted.
        process_set: the ranks that take part.
        ignore_name_scope: use `name` without the scopes of tf.name_scope() around the call.

    Returns:
        A tensor of the input's shape and dtype; for tf.IndexedSlices, tf.IndexedSlices with the rows of all ranks.

    Raises:
        ValueError: both `op` and `average` are given, or Horovod is not initialized.
        NotImplementedError: tf.IndexedSlices cannot be reduced with this `op` or these factors.
        tf.errors.FailedPreconditionError: ranks disagree about shape, dtype or arguments.
        tf.errors.InvalidArgumentError: an argument makes no sense, on this rank or on another.
        tf.errors.UnknownError: a rank is gone or the job has ended.
    """
    is_sparse = isinstance(tensor, tf.IndexedSlices)
    call = CallOptions(
        "allgather" if is_sparse else "allreduce",
        name,
        process_set,
        ignore_name_scope,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    call = call._replace(op=_reduce_op(op, average, call))
    if not is_sparse:
        (result,) = reduce_compressed("HorovodAllreduce", [tensor], compression, device_dense, call)
        return result
    with reported(call), on_device(device_sparse):
        _check_slices(call)
    with on_device(device_sparse):
        return allreduce_slices(tensor, call)


def _reduce_op(op: int | None, average: Any, call: CallOptions) -> int:
    if tf.executing_eagerly():
        size()  # ValueError before init(), as programs expect of these two; other operations fail in their kernels
    if average is None:
        return Average if op is None else op
    with reported(call):
        return op_from(op, average, stacklevel=4)


@do_not_convert
def reduce_compressed(
    kind: str, tensors: Sequence[Any], compression: Any, device: str, call: CallOptions
) -> list[tf.Tensor]:
    """The results of the operation `kind` on tensors that are compressed on the way; one tensor unless it is grouped."""
    with reported(call), on_device(device):
        packed = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    # This scope of the device is the same as the one above: TensorFlow looks at the name when it enters the first.
    with on_device(device):
        sent = [tensor for tensor, _ in packed]
        grouped = kind.startswith("HorovodGrouped")
        received = run_group(kind, sent, call) if grouped else [run(kind, sent[0], call)]
        return [compression.decompress(tensor, context) for tensor, (_, context) in zip(received, packed)]


def _check_slices(call: CallOptions) -> None:
    """Raise NotImplementedError if tf.IndexedSlices cannot be reduced with these options."""
    problem = why_not_slices(call.op, call.prescale_factor, call.postscale_factor)
    if problem:
        raise NotImplementedError(problem)


def why_not_slices(op: int, prescale_factor: float, postscale_factor: float) -> str:
    """The reason why tf.IndexedSlices cannot be reduced with these arguments; empty if they can."""
    if op == Adasum:
        return (
            "The Adasum reduction does not support tf.IndexedSlices. Pass sparse_as_dense=True to "
            "DistributedOptimizer or DistributedGradientTape, or reduce tf.convert_to_tensor(slices)."
        )
    if op not in (Average, Sum):
        return f"tf.IndexedSlices can be reduced with Average and Sum, not with {text_of(op)}."
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        return (
            "prescale_factor and postscale_factor are not supported for tf.IndexedSlices. Multiply their "
            "values instead."
        )
    return ""


def ranks_of(process_set: ProcessSet) -> Any:
    """The number of ranks: a number, or, in a graph of an elastic job, a tensor."""
    if decided_at_run_time() and not tf.executing_eagerly() and not is_traced_for_xla():
        return size_op(process_set_number(process_set))
    return process_set.size()


@do_not_convert
def allreduce_slices(slices: tf.IndexedSlices, call: CallOptions) -> Any:
    """The rows of all ranks, divided by the number of ranks for Average. In XLA a dense tensor: it has to know the number
    of rows when it compiles, and cannot."""
    if is_traced_for_xla():
        return run("HorovodAllreduce", tf.convert_to_tensor(slices), call._replace(operation="allreduce"))
    values, indices = run_group("HorovodGroupedAllgather", [slices.values, slices.indices], call)
    if call.op == Average:
        values = values / tf.cast(
            ranks_of(call.process_set), values.dtype
        )  # of integers, a true division: floats
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


@do_not_convert
def grouped_allreduce(
    tensors: Sequence[Any],
    average: Any = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce several tensors as one operation: when all are ready on all ranks, in one message.

        loss, accuracy = hvd.grouped_allreduce([loss, accuracy])

    Args:
        tensors: tensors (or values that tf.convert_to_tensor() accepts) of any dtypes. Each tf.IndexedSlices among them
            is reduced by itself. The same number on all ranks, in the same order. An empty list is returned at
            once; on other ranks, groups that have tensors fail.
        The others are those of allreduce().

    Returns:
        The reduced tensors in the order of `tensors`.

    Raises:
        The errors of allreduce(); also if the ranks' groups differ.
    """
    call = CallOptions(
        "allreduce",
        name,
        process_set,
        ignore_name_scope,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    call = call._replace(op=_reduce_op(op, average, call))
    with reported(call):
        results = members_of(tensors, ())
    if not results:
        return nothing("grouped_allreduce", call)
    sparse = [i for i, tensor in enumerate(results) if isinstance(tensor, tf.IndexedSlices)]
    dense = [i for i in range(len(results)) if i not in sparse]
    of_slices = [
        call._replace(operation="allgather", name=None if name is None else f"{name}.{i}") for i in sparse
    ]
    if sparse:
        with reported(call if dense else of_slices[0]):
            _check_slices(call)
    if dense:
        tensors = [results[i] for i in dense]
        reduced = reduce_compressed("HorovodGroupedAllreduce", tensors, compression, device_dense, call)
        for i, tensor in zip(dense, reduced):
            results[i] = tensor
    with on_device(device_sparse):
        for i, options in zip(sparse, of_slices):
            results[i] = allreduce_slices(results[i], options)
    return results


@do_not_convert
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduce a tensor over all ranks. Each rank gets a share of the rows. Differentiable for Average and Sum.

        rows = hvd.reducescatter(tf.ones([2 * hvd.size(), 3]), op=hvd.Sum)  # shape [2, 3]

    Args:
        tensor: a tensor of one dimension or more, or a value that tf.convert_to_tensor() accepts; the same shape and
            dtype on all ranks. If the rows (dimension 0) cannot be divided evenly, the first ranks get one row more.
        op: Average, Sum, Min, Max or Product.
        The others are those of allreduce().

    Returns:
        This rank's rows, a tensor of the same dtype. It may have 0 rows.

    Raises:
        The errors of allreduce(). NotImplementedError: `tensor` is tf.IndexedSlices, or `op` is Adasum.
    """
    call = CallOptions(
        "reducescatter", name, process_set, ignore_name_scope, op, prescale_factor, postscale_factor
    )
    (result,) = _scatter("HorovodReducescatter", [tensor], device_dense, compression, call)
    return result


@do_not_convert
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """reducescatter() of several tensors as one operation, in one message.

        weights, biases = hvd.grouped_reducescatter([weights, biases])

    Args:
        tensors: the same number on all ranks, in the same order. An empty list is returned immediately; on
            other ranks, groups that have tensors fail.
        The others are those of reducescatter().

    Returns:
        This rank's rows of each tensor.

    Raises:
        The errors of reducescatter().
    """
    call = CallOptions("reducescatter", None, process_set, False, op, prescale_factor, postscale_factor)
    with reported(call):
        members = members_of(tensors, ())
    if not members:
        return nothing("grouped_reducescatter", call)
    return _scatter("HorovodGroupedReducescatter", members, device_dense, compression, call)


def _scatter(
    kind: str, tensors: list[Any], device: str, compression: type[Compressor], call: CallOptions
) -> list[tf.Tensor]:
    with reported(call):
        if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
            raise NotImplementedError(
                "reducescatter does not support tf.IndexedSlices. Pass tf.convert_to_tensor(slices)."
            )
        if call.op == Adasum:
            raise NotImplementedError(
                "The Adasum reduction cannot be scattered. Use hvd.Average, Sum, Min, Max or Product."
            )
    return reduce_compressed(kind, tensors, compression, device, call)
