"""allgather, broadcast and alltoall, of one tensor or of a group: functions that return new tensors and have gradients.

Any thread; inside a function being traced, the one that traces.
"""

import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._call import (
    ALLGATHER,
    ALLTOALL,
    BROADCAST,
    MOVABLE,
    Asked,
    perform,
    plain,
    refuse,
    set_number,
    tensor_of,
    tensors_of,
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
        tensor: of one dimension or more; all but the first must agree on all ranks, and the first may be 0. Any type of
            numbers, bool included.
        name, ignore_name_scope, process_set: as for hvd.allreduce.

    Returns:
        A tensor of the same type; its dimension 0 is the sum of all.

    Raises:
        As hvd.allreduce.
    """
    asked = Asked(ALLGATHER, name, process_set, ignore_name_scope)
    attributes = {"process_set_id": set_number(process_set)}
    tensor = tensor_of(tensor, MOVABLE, asked)
    return perform("HorovodAllgather", tensor, attributes, asked)


@plain
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gather several tensors as one operation. As `allgather`; their types may differ. Returns a list."""
    asked = Asked(ALLGATHER, name, process_set, ignore_name_scope)
    attributes = {"process_set_id": set_number(process_set)}
    tensors = tensors_of(tensors, MOVABLE, asked)
    return perform("HorovodGroupedAllgather", tensors, attributes, asked)


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
        tensor: of any shape and type, the same on all ranks; only the root's values count.
        root_rank: rank in the job whose values they are, also within a process set.
        name, ignore_name_scope, process_set: as for hvd.allreduce.

    Returns:
        The root's tensor.

    Raises:
        As hvd.allreduce.
    """
    asked = Asked(BROADCAST, name, process_set, ignore_name_scope)
    attributes = {"process_set_id": set_number(process_set), "root_rank": _root(root_rank, asked)}
    tensor = tensor_of(tensor, MOVABLE, asked)
    return perform("HorovodBroadcast", tensor, attributes, asked)


@plain
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Give variables the values that they have on one rank.

    Args:
        variables: tf.Variable, resource or reference ones, or Keras variables; not necessarily of one type.
        root_rank: rank in the job whose values they get.
        name, process_set: as for hvd.allreduce.

    Returns:
        The new values as tensors; in a graph they are there once the variables have been assigned.

    Raises:
        As hvd.allreduce.
    """
    asked = Asked(BROADCAST, name, process_set)
    attributes = {"process_set_id": set_number(process_set), "root_rank": _root(root_rank, asked)}
    variables = list(variables)
    if not variables:
        return []
    # A copy: the operation must not see an assignment that comes after it.
    values = tensors_of([_value(v) for v in variables], MOVABLE, asked)
    results = perform("HorovodGroupedBroadcast", values, attributes, asked)
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
    """Send each rank of a process set some rows of a tensor, and get theirs, in the order of ranks.

    Args:
        tensor: of one dimension or more; all but the first must agree on all ranks.
        splits: how many rows each rank gets: one int32 (or int64) for each rank of the set. Rows beyond their sum go
            nowhere. None: equal shares.
        name, ignore_name_scope, process_set: as for hvd.allreduce.

    Returns:
        The rows received; with `splits` also how many came from each rank.

    Raises:
        As hvd.allreduce; wrong splits are a tf.errors.InvalidArgumentError, on all ranks.
    """
    asked = Asked(ALLTOALL, name, process_set, ignore_name_scope)
    attributes: dict[str, Any] = {"process_set_id": set_number(process_set)}
    tensor = tensor_of(tensor, MOVABLE, asked)
    if splits is None:
        attributes["splits"] = []
    else:
        attributes["splits"] = [_splits(splits, asked)]
        attributes["Treceived"] = attributes["splits"][0].dtype
    output, received = perform("HorovodAlltoall", tensor, attributes, asked)
    return output if splits is None else (output, received)


def _root(root_rank: Any, asked: Asked) -> int:
    try:
        root = operator.index(root_rank)
        # What has a wrong number of these the engine refuses; others would come there as something else.
        if -(1 << 31) <= root < 1 << 31:
            return root
    except TypeError:
        pass
    text = f"root_rank must be the number of a rank, but is {root_rank!r:.80}."
    refuse(asked, text)


def _splits(splits: Any, asked: Asked) -> tf.Tensor:
    is_typed = hasattr(splits, "dtype")
    try:
        tensor = tf.convert_to_tensor(splits, dtype=None if is_typed else tf.int32)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        text = f"alltoall expects splits to contain 32-bit integer elements: {error}"
        refuse(asked, text)
    if tensor.dtype not in (tf.int32, tf.int64):
        text = f"alltoall expects splits to contain 32-bit integer elements, but found {tensor.dtype.name}."
        refuse(asked, text)
    return tensor


def _value(variable: Any) -> Any:
    read = getattr(variable, "read_value", None)
    return tf.convert_to_tensor(variable) if read is None else read()


def _assign(variable: Any, value: tf.Tensor) -> Any:
    done = variable.assign(value)
    if done is None:  # a Keras variable's assign()
        return variable.value
    return getattr(done, "op", done) if not tf.executing_eagerly() else done
