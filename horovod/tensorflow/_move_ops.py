"""allgather, broadcast and alltoall, of one tensor or of a group: functions that return new tensors and have gradients.

Any thread; inside a function being traced, the one that traces.
"""

import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._autograph import plain
from horovod.tensorflow._call import (
    MOVABLE,
    CallIdentity,
    checked_tensor,
    checked_tensors,
    nothing,
    perform,
    report,
    set_number,
)


@plain
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The tensors of all ranks of a process set, one behind the other along dimension 0, in the order of ranks.

    Args:
        tensor: of one dimension or more. All dimensions but dimension 0 must be equal on all ranks; dimension 0 may be
            0. Any dtype of numbers, or bool.
        name, ignore_name_scope, process_set: as for hvd.allreduce.

    Returns:
        A tensor of the same dtype; its dimension 0 is the sum of those of all ranks.

    Raises:
        As hvd.allreduce.
    """
    call = CallIdentity("allgather", name, process_set, ignore_name_scope)
    try:
        attributes = {"process_set_id": set_number(process_set)}
        tensor = checked_tensor(tensor, MOVABLE, call)
    except BaseException as error:
        report(call, error)
        raise
    return perform("HorovodAllgather", tensor, attributes, call)


@plain
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gather several tensors as one operation. As `allgather`; their dtypes may differ. Returns a list."""
    call = CallIdentity("allgather", name, process_set, ignore_name_scope)
    try:
        attributes = {"process_set_id": set_number(process_set)}
        tensors = checked_tensors(tensors, MOVABLE, call)
    except BaseException as error:
        report(call, error)
        raise
    return perform("HorovodGroupedAllgather", tensors, attributes, call)


@plain
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The tensor of one rank, on all ranks of a process set.

    Args:
        tensor: of any shape and dtype, the same on all ranks; only the root's values count.
        root_rank: the root's rank in the job, also within a process set.
        name, ignore_name_scope, process_set: as for hvd.allreduce.

    Returns:
        The root's tensor.

    Raises:
        As hvd.allreduce.
    """
    call = CallIdentity("broadcast", name, process_set, ignore_name_scope)
    try:
        attributes = {"process_set_id": set_number(process_set), "root_rank": _root_number(root_rank)}
        tensor = checked_tensor(tensor, MOVABLE, call)
    except BaseException as error:
        report(call, error)
        raise
    return perform("HorovodBroadcast", tensor, attributes, call)


@plain
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Give variables the values that they have on one rank.

    Args:
        variables: tf.Variable (resource variables or reference variables) or Keras variables; their dtypes may differ.
        root_rank: rank in the job whose values they get.
        name, process_set: as for hvd.allreduce.

    Returns:
        The new values as tensors. In a graph they are computed after the variables have been assigned.

    Raises:
        As hvd.allreduce.
    """
    call = CallIdentity("broadcast", name, process_set)
    try:
        attributes = {"process_set_id": set_number(process_set), "root_rank": _root_number(root_rank)}
        variables = list(variables)
        for variable in variables:
            if not hasattr(variable, "assign"):
                raise ValueError(f"broadcast_() takes variables, but found {variable!r:.80}.")
        # The value is a copy: the operation must not see a later assignment.
        values = [checked_tensor(_value_of(v), MOVABLE, call) for v in variables]
    except BaseException as error:
        report(call, error)
        raise
    if not variables:
        return nothing("broadcast_", call)
    results = perform("HorovodGroupedBroadcast", values, attributes, call)
    assigned = [_assign(variable, value) for variable, value in zip(variables, results)]
    if tf.executing_eagerly():
        return list(results)
    with tf.control_dependencies(assigned):
        return [tf.identity(value) for value in results]


@plain
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Send each rank of a process set some rows of a tensor, and receive rows of each rank, in the order of ranks.

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
    call = CallIdentity("alltoall", name, process_set, ignore_name_scope)
    try:
        attributes: dict[str, Any] = {"process_set_id": set_number(process_set)}
        tensor = checked_tensor(tensor, MOVABLE, call)
        if splits is None:
            attributes["splits"] = []
        else:
            attributes["splits"] = [_splits_tensor(splits)]
            attributes["Treceived"] = attributes["splits"][0].dtype
    except BaseException as error:
        report(call, error)
        raise
    output, received = perform("HorovodAlltoall", tensor, attributes, call)
    return output if splits is None else (output, received)


def _root_number(root_rank: Any) -> int:
    """`root_rank` as an int of 32 bits. Raises ValueError if it is not one."""
    try:
        root = operator.index(root_rank)
        # The engine refuses a number that is not a rank. A number of more bits would be another one there.
        if -(1 << 31) <= root < 1 << 31:
            return root
    except TypeError:
        pass
    raise ValueError(f"root_rank must be the number of a rank, but is {root_rank!r:.80}.")


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
