"""The reductions of the public API: on tensors and on tf.IndexedSlices, with compression and device placement.

They call the operations in mpi_ops. Eager, in tf.function and in graphs of tf.compat.v1.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.arguments import BOTH_GIVEN, Adasum, Average, Sum, op_from
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._call import (
    CallOptions,
    group_members,
    nothing,
    process_set_number,
    reported,
    run,
    run_group,
)
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.mpi_ops import size, size_op
from horovod.tensorflow.util import decided_at_run_time, do_not_convert, in_xla, on_device
from hvd_core._frontend.operations import text_of

__all__ = ["allreduce", "grouped_allreduce", "grouped_reducescatter", "reducescatter"]


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
    operation = "allgather" if is_sparse else "allreduce"
    op = _reduce_op(op, average, operation, name, process_set, ignore_name_scope)
    call = CallOptions(operation, name, process_set, ignore_name_scope, op, prescale_factor, postscale_factor)
    with reported(call), on_device(device_sparse if is_sparse else device_dense):
        if is_sparse:
            _check_slices(call)
        else:
            sent, context = compression.compress(tf.convert_to_tensor(tensor))
    if is_sparse:
        with on_device(device_sparse):
            return _allreduce_slices(tensor, call)
    # This scope of the device is the same as the one above: TensorFlow looks at the name when it enters the first.
    with on_device(device_dense):
        return compression.decompress(run("HorovodAllreduce", sent, call), context)


def _reduce_op(
    op: int | None,
    average: Any,
    operation: str,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool,
) -> int:
    if tf.executing_eagerly():
        size()  # ValueError before init(), as programs expect of these two; other operations fail in their kernels
    if average is None:
        return Average if op is None else op
    with reported(CallOptions(operation, name, process_set, ignore_name_scope)):
        if op is not None:
            raise ValueError(BOTH_GIVEN)
        return op_from(op, average, stacklevel=4)


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


def _allreduce_slices(slices: tf.IndexedSlices, call: CallOptions) -> Any:
    if in_xla():
        # XLA has to know the number of gathered rows when it compiles, and cannot.
        return run("HorovodAllreduce", tf.convert_to_tensor(slices), call._replace(operation="allreduce"))
    values, indices = run_group("HorovodGroupedAllgather", [slices.values, slices.indices], call)
    if call.op == Average:
        process_set = call.process_set
        ranks = size_op(process_set_number(process_set)) if decided_at_run_time() else process_set.size()
        values = values / tf.cast(ranks, values.dtype)  # of integers, a true division: floats
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
    op = _reduce_op(op, average, "allreduce", name, process_set, ignore_name_scope)
    call = CallOptions(
        "allreduce", name, process_set, ignore_name_scope, op, prescale_factor, postscale_factor
    )
    with reported(call):
        results = group_members(tensors)
    if not results:
        return nothing("grouped_allreduce", call)
    sparse = [i for i, tensor in enumerate(results) if isinstance(tensor, tf.IndexedSlices)]
    dense = [i for i in range(len(results)) if i not in sparse]
    of_slices = [call._replace(operation="allgather", name=_name_of_slices(name, i)) for i in sparse]
    with reported(call if dense else of_slices[0]):
        if sparse:
            _check_slices(call)
        with on_device(device_dense):
            packed = [compression.compress(tf.convert_to_tensor(results[i])) for i in dense]
    with on_device(device_dense):
        if packed:
            reduced = run_group("HorovodGroupedAllreduce", [sent for sent, _ in packed], call)
            for i, tensor, (_, context) in zip(dense, reduced, packed):
                results[i] = compression.decompress(tensor, context)
    with on_device(device_sparse):
        for i, options in zip(sparse, of_slices):
            results[i] = _allreduce_slices(results[i], options)
    return results


def _name_of_slices(name: Any, place: int) -> str | None:
    """The name of the operations on a group's tf.IndexedSlices at this place."""
    return None if name is None else f"{name}.{place}"


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
    (result,) = _scatter([tensor], device_dense, compression, call)
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
        members = group_members(tensors)
    if not members:
        return nothing("grouped_reducescatter", call)
    return _scatter(members, device_dense, compression, call, grouped=True)


def _scatter(
    tensors: list[Any],
    device_dense: str,
    compression: type[Compressor],
    call: CallOptions,
    grouped: bool = False,
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
        with on_device(device_dense):
            packed = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    with on_device(device_dense):
        sent = [tensor for tensor, _ in packed]
        if grouped:
            scattered = run_group("HorovodGroupedReducescatter", sent, call)
        else:
            scattered = [run("HorovodReducescatter", sent[0], call)]
        return [compression.decompress(t, context) for t, (_, context) in zip(scattered, packed)]
