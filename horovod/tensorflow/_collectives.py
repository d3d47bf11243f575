"""The reductions of the public API: on tensors and on tf.IndexedSlices, with compression and device placement.

They call the operations in mpi_ops. Eager, in tf.function and in graphs of tf.compat.v1.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.reduce_ops import BOTH_GIVEN, Adasum, Average, Sum, op_from
from horovod.tensorflow._call import (
    CallIdentity,
    group_members,
    plain,
    refuse,
    report,
)
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.mpi_ops import (
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    grouped_allgather,
    size_op,
)
from horovod.tensorflow.util import decided_at_run_time, in_xla, on_device

__all__ = ["allreduce", "grouped_allreduce", "grouped_reducescatter", "reducescatter"]


@plain
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

    Args:
        tensor: a tensor, or a value that tf.convert_to_tensor() accepts; the same shape and dtype on all ranks. Or
            tf.IndexedSlices (the gradient of an embedding): their rows are gathered, and may differ between ranks.
        average: deprecated: true for op=Average, false for op=Sum.
        device_dense: name of the device to reduce tensors on; empty: where TensorFlow places the operation.
        device_sparse: the same for tf.IndexedSlices.
        compression: hvd.Compression.none, .fp16 or .bf16; tf.IndexedSlices are sent as they are.
        op: Average (the default), Sum, Adasum, Min, Max or Product; Average or Sum for tf.IndexedSlices.
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
    call = CallIdentity("allreduce", name, process_set, ignore_name_scope)
    op = _reduce_op(op, average, call)
    if isinstance(tensor, tf.IndexedSlices):
        problem = why_not_slices(op, prescale_factor, postscale_factor)
        if problem:
            refuse(call._replace(operation="allgather"), problem, NotImplementedError)
        with on_device(device_sparse):
            return _allreduce_slices(tensor, op, name, process_set, ignore_name_scope)
    with on_device(device_dense):
        sent, context = _compressed(tensor, compression, call)
        reduced = _allreduce(
            sent,
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
        )
        return compression.decompress(reduced, context)


def _compressed(tensor, compression, call) -> tuple[tf.Tensor, Any]:
    """The compressed tensor, and the context for decompress(). If compress() fails, the other ranks' matching call fails
    as well."""
    try:
        return compression.compress(tf.convert_to_tensor(tensor))
    except Exception as error:
        report(call, error)
        raise


def _reduce_op(op: int | None, average: Any, call: CallIdentity) -> int:
    if op is not None and average is not None:
        refuse(call, BOTH_GIVEN)
    return op_from(op, average, stacklevel=4)


def why_not_slices(op: int, prescale_factor: float, postscale_factor: float) -> str:
    """The reason why tf.IndexedSlices cannot be reduced with these arguments; empty if they can."""
    if op == Adasum:
        return (
            "The Adasum reduction does not support tf.IndexedSlices. Pass sparse_as_dense=True to "
            "DistributedOptimizer or DistributedGradientTape, or reduce tf.convert_to_tensor(slices)."
        )
    if op not in (Average, Sum):
        return f"tf.IndexedSlices can be reduced with Average and Sum, not with op={op!r}."
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        return (
            "prescale_factor and postscale_factor are not supported for tf.IndexedSlices. Multiply their "
            "values instead."
        )
    return ""


def _allreduce_slices(
    slices: tf.IndexedSlices, op: int, name: str | None, process_set: ProcessSet, ignore_name_scope: bool
) -> Any:
    if in_xla():
        # XLA has to know the number of gathered rows when it compiles, and nothing tells it.
        return _allreduce(
            tf.convert_to_tensor(slices), name=name, op=op, ignore_name_scope=ignore_name_scope, process_set=process_set
        )  # fmt: skip
    values, indices = grouped_allgather(
        [slices.values, slices.indices],
        name=name,
        ignore_name_scope=ignore_name_scope,
        process_set=process_set,
    )
    if op == Average:
        ranks = size_op(process_set.process_set_id) if decided_at_run_time() else process_set.size()
        values = tf.cast(values / tf.cast(ranks, values.dtype), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


@plain
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
) -> list:
    """Reduce several tensors as one operation: when all are ready on all ranks, in one message.

    Args:
        tensors: tensors (or values that tf.convert_to_tensor() accepts) of any dtypes. Each tf.IndexedSlices among them
            is reduced by itself. The same number on all ranks, in the same order. An empty list is returned at once, and
            the other ranks are not told.
        The others are those of allreduce().

    Returns:
        The reduced tensors in the order of `tensors`.

    Raises:
        The errors of allreduce(); also if the ranks' groups differ.
    """
    call = CallIdentity("allreduce", name, process_set, ignore_name_scope)
    op = _reduce_op(op, average, call)
    results = group_members(tensors, call)
    dense = [i for i, tensor in enumerate(results) if not isinstance(tensor, tf.IndexedSlices)]
    with on_device(device_dense):
        packed = [_compressed(results[i], compression, call) for i in dense]
        if packed:
            reduced = _grouped_allreduce(
                [sent for sent, _ in packed],
                name=name,
                op=op,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                ignore_name_scope=ignore_name_scope,
                process_set=process_set,
            )
            for i, tensor, (_, context) in zip(dense, reduced, packed):
                results[i] = compression.decompress(tensor, context)
    for i in [i for i in range(len(results)) if i not in dense]:
        results[i] = allreduce(
            results[i],
            device_sparse=device_sparse,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=None if name is None else f"{name}.{i}",
            process_set=process_set,
            ignore_name_scope=ignore_name_scope,
        )
    return results


@plain
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
    (result,) = _scatter(
        [tensor], device_dense, compression, op, CallIdentity("reducescatter", name, process_set, ignore_name_scope),
        lambda sent: [
            _reducescatter(
                sent[0], name=name, op=op, ignore_name_scope=ignore_name_scope, process_set=process_set,
                prescale_factor=prescale_factor, postscale_factor=postscale_factor,
            )
        ],
    )  # fmt: skip
    return result


@plain
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

    Args:
        tensors: the same number on all ranks, in the same order. An empty list is returned at once.
        The others are those of reducescatter().

    Returns:
        This rank's rows of each tensor.

    Raises:
        The errors of reducescatter().
    """
    call = CallIdentity("reducescatter", None, process_set)
    tensors = group_members(tensors, call)
    if not tensors:
        return []
    return _scatter(
        tensors, device_dense, compression, op, call,
        lambda sent: _grouped_reducescatter(
            sent, op=op, process_set=process_set, prescale_factor=prescale_factor, postscale_factor=postscale_factor
        ),
    )  # fmt: skip


def _scatter(tensors, device_dense, compression, op, call, scatter) -> list[tf.Tensor]:
    problem = ""
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
        problem = "reducescatter does not support tf.IndexedSlices. Pass tf.convert_to_tensor(slices)."
    elif op == Adasum:
        problem = "The Adasum reduction cannot be scattered. Use op=Average or op=Sum."
    if problem:
        refuse(call, problem, NotImplementedError)
    with on_device(device_dense):
        packed = [_compressed(tensor, compression, call) for tensor in tensors]
        scattered = scatter([sent for sent, _ in packed])
        return [compression.decompress(t, context) for t, (_, context) in zip(scattered, packed)]
