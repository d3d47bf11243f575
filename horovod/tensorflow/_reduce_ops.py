"""allreduce and reducescatter, of one tensor or of a group: functions that return new tensors and have gradients.

Any thread; inside a function being traced, the one that traces.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.arguments import Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._autograph import plain
from horovod.tensorflow._call import (
    REDUCIBLE,
    CallIdentity,
    checked_tensor,
    checked_tensors,
    factor_text,
    perform,
    report,
    require_rows,
    set_number,
)
from hvd_core._frontend.reductions import engine_number


def _attributes(call, op, prescale_factor, postscale_factor) -> dict[str, Any]:
    return {
        "process_set_id": set_number(call.process_set),
        "reduce_op": engine_number(op),
        "prescale_factor": factor_text(prescale_factor, "prescale_factor"),
        "postscale_factor": factor_text(postscale_factor, "postscale_factor"),
    }


@plain
def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Reduce a tensor over the ranks of a process set.

    Args:
        tensor: of any shape, the same on all ranks; integers except uint32 and uint64, or floats of 16 bits and more.
        name: identifies the operation across ranks. Without a name eager calls are counted, and in a graph the name is
            made of the tensor's name.
        op: hvd.Sum, Average, Min, Max, Product or Adasum.
        prescale_factor, postscale_factor: multiply the tensor before, and the result after the reduction. float64.
        ignore_name_scope: leave the graph's name scopes out of the name.
        process_set: the ranks that take part.

    Returns:
        The result, with the tensor's shape and type.

    Raises:
        ValueError: an argument makes no sense; raised before the operation runs.
        tf.errors.InvalidArgumentError: the engine refuses the call. tf.errors.FailedPreconditionError: ranks disagree, or
            Horovod is not initialized. tf.errors.AbortedError: the process set has been removed.
            tf.errors.UnknownError: the job has ended, or a rank is gone. These come from the call that runs the
            operation, on every rank.
    """
    call = CallIdentity("allreduce", name, process_set, ignore_name_scope)
    try:
        attributes = _attributes(call, op, prescale_factor, postscale_factor)
        tensor = checked_tensor(tensor, REDUCIBLE, call)
    except BaseException as error:
        report(call, error)
        raise
    return perform("HorovodAllreduce", tensor, attributes, call)


@plain
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
    call = CallIdentity("allreduce", name, process_set, ignore_name_scope)
    try:
        attributes = _attributes(call, op, prescale_factor, postscale_factor)
        tensors = checked_tensors(tensors, REDUCIBLE, call)
    except BaseException as error:
        report(call, error)
        raise
    return perform("HorovodGroupedAllreduce", tensors, attributes, call)


@plain
def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduce a tensor over the ranks of a process set. Each rank gets its share of the rows of the result.

    Args:
        tensor: of one dimension or more. With `rows` rows and n ranks, the first `rows % n` ranks get one row more.
        op: hvd.Sum, Average, Min, Max or Product.
        The others are those of `_allreduce`.

    Returns:
        This rank's rows, of the tensor's dtype. There may be 0 rows.

    Raises:
        ValueError: also for a scalar. The other errors of `_allreduce`.
    """
    call = CallIdentity("reducescatter", name, process_set, ignore_name_scope)
    try:
        attributes = _attributes(call, op, prescale_factor, postscale_factor)
        tensor = checked_tensor(tensor, REDUCIBLE, call)
        require_rows([tensor], "HorovodReducescatter")
    except BaseException as error:
        report(call, error)
        raise
    return perform("HorovodReducescatter", tensor, attributes, call)


@plain
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
    call = CallIdentity("reducescatter", name, process_set, ignore_name_scope)
    try:
        attributes = _attributes(call, op, prescale_factor, postscale_factor)
        tensors = checked_tensors(tensors, REDUCIBLE, call)
        require_rows(tensors, "HorovodGroupedReducescatter")
    except BaseException as error:
        report(call, error)
        raise
    return perform("HorovodGroupedReducescatter", tensors, attributes, call)
