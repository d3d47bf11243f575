"""What concerns the job rather than tensors: join, barrier, and the facts about the job as operations of a graph."""

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import _program_order, _xla
from horovod.tensorflow._call import plain, prepare_devices, set_number
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


def _compiled() -> bool:
    return not tf.executing_eagerly() and _xla.compiles(tf.compat.v1.get_default_graph())


def _not_compiled(what: str) -> None:
    if _compiled():
        raise _xla.unsupported(what)


def _fact(kind: str, process_set_id: int, name: str | None) -> tf.Tensor:
    return _xla.fact(kind, process_set_id) if _compiled() else _FACTS[kind](process_set_id, name)


@plain
def join() -> tf.Tensor:
    """Say that this rank has no more data, and wait until all ranks have said so.

    Meanwhile this rank takes part in the operations of the others with data that do not change the result: zeros for Sum
    and Average, which still divides by the number of all ranks. Inside tf.function it comes after the operations that are
    before it in the program.

    Returns:
        The rank that joined last, the same on all ranks: a scalar int32 tensor.

    Raises:
        tf.errors.FailedPreconditionError: Horovod is not initialized. UnknownError: a rank is gone.
    """
    _not_compiled("hvd.join")
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

    In a graph of TensorFlow 1, returns the operation. Inside tf.function it comes where it stands in the program: after
    the collectives before it, and before those after it.

    Raises:
        As hvd.allreduce.
    """
    _not_compiled("hvd.barrier")
    prepare_devices()
    number = set_number(process_set)
    if tf.executing_eagerly():
        operations.horovod_barrier(process_set_id=number, blocking=True)
        return None
    with _program_order.before_fence(tf.compat.v1.get_default_graph()):
        made = operations.horovod_barrier(process_set_id=number)
    _program_order.note_fence(made)
    return None if made.graph.building_function else made


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
    """1 if this process is in the process set, 0 if not, -3 if there is no such set, -1 before init(). Scalar int32,
    looked up whenever the graph runs."""
    return _fact("HorovodProcessSetIncluded", process_set_id, name)


for _kind in ("Rank", "LocalRank", "Size", "LocalSize", "ProcessSetIncluded", "Join", "Barrier"):
    tf.no_gradient(f"Horovod{_kind}")
