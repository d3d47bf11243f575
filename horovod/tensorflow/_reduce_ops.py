"""allreduce and reducescatter, of one tensor or of a group: functions that return new tensors and have gradients.

Any thread; inside a function being traced, the one that traces.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._call import (
    ALLREDUCE,
    REDUCESCATTER,
    REDUCIBLE,
    Asked,
    Sum,
    factor,
    perform,
    plain,
    require_rows,
    set_number,
    tensor_of,
    tensors_of,
    wire_op,
)


def _attributes(asked, op, prescale_factor, postscale_factor) -> dict[str, Any]:
    return {
        "process_set_id": set_number(asked.process_set),
        "reduce_op": wire_op(op, asked),
        "prescale_factor": factor(prescale_factor, "prescale_factor", asked),
        "postscale_factor": factor(postscale_factor, "postscale_factor", asked),
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
        tensor: of any shape, the same on all ranks; integers but uint32 and uint64, or floats of 16 bits and more.
        name: what the ranks find each other's calls by. Without one, eager calls are counted, and in a graph it is made
            of the tensor's name.
        op: hvd.Sum, Average, Min, Max, Product or Adasum.
        prescale_factor, postscale_factor: multiply the tensor before, and the result after the reduction. Doubles.
        ignore_name_scope: leave the graph's name scopes out of the name.
        process_set: the ranks that take part.

    Returns:
        The result, with the tensor's shape and type.

    Raises:
        ValueError: arguments that make no sense, found before anything runs.
        tf.errors.InvalidArgumentError: the engine refuses the call. FailedPreconditionError: ranks disagree, or Horovod
            is not initialized. AbortedError: the process set has been removed. UnknownError: the job has ended, or a rank
            is gone. From whatever runs the operation, on every rank.
    """
    asked = Asked(ALLREDUCE, name, process_set, ignore_name_scope)
    attributes = _attributes(asked, op, prescale_factor, postscale_factor)
    tensor = tensor_of(tensor, REDUCIBLE, asked)
    return perform("HorovodAllreduce", tensor, attributes, asked)


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
    asked = Asked(ALLREDUCE, name, process_set, ignore_name_scope)
    attributes = _attributes(asked, op, prescale_factor, postscale_factor)
    tensors = tensors_of(tensors, REDUCIBLE, asked)
    return perform("HorovodGroupedAllreduce", tensors, attributes, asked)


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
    """Reduce a tensor over the ranks of a process set, and give each rank its share of the rows.

    Args:
        tensor: of one dimension or more; the first dim 0 % n of n ranks get one row more. Otherwise as `_allreduce`.
        op: hvd.Sum or Average.

    Returns:
        This rank's rows, possibly none.

    Raises:
        ValueError: also for a scalar. Others as `_allreduce`.
    """
    asked = Asked(REDUCESCATTER, name, process_set, ignore_name_scope)
    attributes = _attributes(asked, op, prescale_factor, postscale_factor)
    tensor = tensor_of(tensor, REDUCIBLE, asked)
    require_rows([tensor], "HorovodReducescatter", asked)
    return perform("HorovodReducescatter", tensor, attributes, asked)


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
    asked = Asked(REDUCESCATTER, name, process_set, ignore_name_scope)
    attributes = _attributes(asked, op, prescale_factor, postscale_factor)
    tensors = tensors_of(tensors, REDUCIBLE, asked)
    require_rows(tensors, "HorovodGroupedReducescatter", asked)
    return perform("HorovodGroupedReducescatter", tensors, attributes, asked)
