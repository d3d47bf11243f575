"""The operations without tensors: join, barrier, and facts about the job as operations of a graph."""

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import _program_order, _xla
from horovod.tensorflow._autograph import plain
from horovod.tensorflow._call import CallIdentity, prepare_devices, report, set_number
from horovod.tensorflow._library import operations

_FACTS = {
    "HorovodRank": lambda _, name: operations.horovod_rank(name=name),
    "HorovodLocalRank": lambda _, name: operations.horovod_local_rank(name=name),
    "HorovodSize": lambda number, name: operations.horovod_size(process_set_id=number, name=name),
    "HorovodLocalSize": lambda _, name: operations.horovod_local_size(name=name),
    "HorovodProcessSetIncluded": lambda number, name: operations.horovod_process_set_included(
        process_set_id=number, name=name
    ),
}


def _refuse_xla(operation: str) -> None:
    """Raise NotImplementedError if the calling code is being traced for XLA."""
    if _xla.is_traced_for_xla():
        raise _xla.not_compilable(operation)


def _fact(kind: str, process_set_id: int, name: str | None) -> tf.Tensor:
    if _xla.is_traced_for_xla():
        return _xla.fact(kind, process_set_id)
    return _FACTS[kind](process_set_id, name)


@plain
def join() -> tf.Tensor:
    """Announce that this rank has no more data, and wait until all ranks have joined.

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
    with _program_order.before_fence(tf.compat.v1.get_default_graph()):
        last = operations.horovod_join()
    _program_order.note_fence(last.op)
    return last


@plain
def barrier(process_set: ProcessSet = global_process_set) -> tf.Operation | None:
    """Wait until all ranks of a process set have called barrier().

    Inside tf.function barrier() runs after the operations that come before it in the program, and before those that come
    after it.

    Returns:
        The operation in a graph of TensorFlow 1, otherwise None.

    Raises:
        As hvd.allreduce.
    """
    _refuse_xla("hvd.barrier")
    prepare_devices()
    try:
        number = set_number(process_set)
    except BaseException as error:
        report(CallIdentity("barrier", None, process_set), error)
        raise
    if tf.executing_eagerly():
        operations.horovod_barrier(process_set_id=number, blocking=True)
        return None
    with _program_order.before_fence(tf.compat.v1.get_default_graph()):
        operation = operations.horovod_barrier(process_set_id=number)
    _program_order.note_fence(operation)
    return None if operation.graph.building_function else operation


@plain
def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank, looked up whenever the graph runs. Scalar int32."""
    return _fact("HorovodRank", 0, name)


@plain
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's index on its host, looked up whenever the graph runs. Scalar int32."""
    return _fact("HorovodLocalRank", 0, name)


@plain
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks of a process set, looked up whenever the graph runs. Scalar int32."""
    return _fact("HorovodSize", process_set_id, name)


@plain
def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of processes on this host, looked up whenever the graph runs. Scalar int32."""
    return _fact("HorovodLocalSize", 0, name)


@plain
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 if this process is a member of the process set, 0 if not, -3 if no set has this id, -1 before init(). Scalar
    int32, looked up whenever the graph runs."""
    return _fact("HorovodProcessSetIncluded", process_set_id, name)


for _kind in ("Rank", "LocalRank", "Size", "LocalSize", "ProcessSetIncluded", "Join", "Barrier"):
    tf.no_gradient(f"Horovod{_kind}")
