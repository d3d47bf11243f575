"""Broadcasting variables and Python objects. All ranks call them, one thread each."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod.common import objects
from horovod.common.exceptions import OperationFailedError
from horovod.common.objects import StructuresDiffer, prepared, require_same
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import _names
from horovod.tensorflow._call import CallOptions, nothing, reported
from horovod.tensorflow.mpi_ops import broadcast, broadcast_
from horovod.tensorflow.util import (
    GROUP_BYTES,
    _executing_eagerly,
    bytes_of,
    decided_at_run_time,
    do_not_convert,
    flat_variables,
    on_device,
    runs_of,
)

__all__ = [
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


@do_not_convert
def broadcast_variables(
    variables: Any,
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
    name: str | None = None,
) -> Any:
    """Assign the root's values to variables on all ranks.

        hvd.broadcast_variables(model.variables, root_rank=0)

    Args:
        variables: a list of variables of TensorFlow (resource variables, or reference variables of tf.compat.v1) or of
            Keras, or a method that returns the list. The same shapes and dtypes in the same order on all ranks, which is
            checked first; initialized on all ranks.
        root_rank: the GLOBAL rank whose values are sent.
        process_set: the ranks that take part.
        inplace: accepted for compatibility; not used.
        name: begins the names of the operations; required for calls by several threads at the same time, a different
            one for each call.

    Returns:
        In graphs an operation that assigns the values. In eager mode None, after they have been assigned.

    Raises:
        ValueError: an element of `variables` is not a variable, or Horovod is not initialized.
        tf.errors.FailedPreconditionError: the ranks' lists differ; the message says where. In graphs `shape [0, 2, 7]`
            in the message means two groups with seven variables in total.
        tf.errors.InvalidArgumentError, tf.errors.UnknownError: see allreduce().
    """
    name = _names.call_prefix("broadcast_variables") if name is None else name
    if _executing_eagerly():
        with prepared(name, process_set):
            found = _variables_of(variables)
            groups = [] if process_set.size() == 1 else groups_of(found)
        require_same_variables("broadcast_variables()", found, name, process_set)
        for number, group in enumerate(groups):
            broadcast_(group, root_rank, name=f"{name}.group_{number}", process_set=process_set)
        return None
    first = CallOptions("broadcast", f"{name}.structure", process_set)
    with reported(first):
        found = _variables_of(variables)
        groups = [] if process_set.size() == 1 and not decided_at_run_time() else groups_of(found)
    if not groups:
        if not found:
            nothing("broadcast_variables", first)
        return tf.no_op(name="broadcast_variables")
    # Fails on all ranks unless they have equally many groups: no rank waits for a group that another does not have. It
    # sends nothing, as only its shape counts. The groups' operations compare the variables.
    with tf.device("/cpu:0"):
        structure = tf.zeros([0, len(groups), len(found)])
        assigned = [broadcast(structure, root_rank, name=first.name, process_set=process_set)]
    for number, group in enumerate(groups):
        # One after the other: after a failure no rank begins the next group.
        with tf.control_dependencies(assigned):
            assigned += broadcast_(group, root_rank, name=f"{name}.group_{number}", process_set=process_set)
    return tf.group(*assigned, name="broadcast_variables")


def require_same_variables(function: str, variables: list[Any], name: str, process_set: ProcessSet) -> None:
    """Compare the ranks' lists of variables, in graph mode immediately too. Variables are known by their places, since
    Keras counts the names of layers.

    Raises:
        tf.errors.FailedPreconditionError: the ranks differ. InvalidArgumentError: another rank has made a mistake.
    """
    entries = [
        (
            f"variable {i}",
            tuple(variable.shape) if variable.shape.is_fully_defined() else None,
            variable.dtype.base_dtype.name,
        )
        for i, variable in enumerate(variables)
    ]
    try:
        require_same(function, entries, name, process_set)
    except StructuresDiffer as error:
        raise tf.errors.FailedPreconditionError(None, None, str(error)) from None
    except OperationFailedError as error:
        raise tf.errors.InvalidArgumentError(None, None, str(error)) from None


def _variables_of(variables: Any) -> list[Any]:
    found = flat_variables(variables)
    for variable in found:
        if not hasattr(variable, "assign"):
            raise ValueError(f"broadcast_variables() takes variables, but found {variable!r}.")
    return found


def groups_of(variables: list[Any]) -> list[list[Any]]:
    """Runs of variables of one device and one kind, of at most GROUP_BYTES; the same on all ranks."""
    return runs_of(
        variables, lambda v: (getattr(v, "device", ""), hasattr(v, "handle")), bytes_of, GROUP_BYTES
    )


@do_not_convert
def broadcast_global_variables(
    root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Assign the root's values to all global variables of the graph, on all ranks.

    Args:
        root_rank: the GLOBAL rank whose values are sent.
        name: begins the names of the operations.
        process_set: the ranks that take part.

    Returns:
        An operation that assigns the values.

    Raises:
        RuntimeError: eager mode, which has no global variables.
    """
    if _executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank, process_set, name=name)


@do_not_convert
def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a Python object of the root to all ranks. Runs immediately in graph mode too, and needs no session.

        epoch = hvd.broadcast_object(epoch, root_rank=0)

    Args:
        obj: the object that the root sends (anything that cloudpickle can pickle); ignored on the other ranks.
        root_rank: the GLOBAL rank that sends.
        session: accepted for compatibility; not used.
        name: identifies the operation across ranks; the default is the same for all objects.
        process_set: the ranks that take part.

    Returns:
        On the root `obj` itself, on other ranks a copy of the root's object.

    Raises:
        ValueError: Horovod is not initialized, or bad root. HorovodInternalError: a rank is gone.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


@do_not_convert
def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function that calls broadcast_object() with its one argument and with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


@do_not_convert
def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Gather one Python object of every rank. Runs immediately in graph mode too.

        hosts = hvd.allgather_object(socket.gethostname())

    Args:
        obj: anything that cloudpickle can pickle.
        session: accepted for compatibility; not used.
        name: identifies the operation across ranks; the default is the same for all objects.
        process_set: the ranks that take part.

    Returns:
        The objects in rank order, the same list on all ranks.

    Raises:
        ValueError: Horovod is not initialized. HorovodInternalError: a rank is gone.
    """
    return objects.allgather_object(obj, name, process_set)


if TYPE_CHECKING:
    _SessionRunHook = object
else:
    _SessionRunHook = tf.compat.v1.train.SessionRunHook


class BroadcastGlobalVariablesHook(_SessionRunHook):
    """Assigns the root's values to all global variables after a session has been made.

    So all ranks begin with the same values, whether the root has initialized its variables or read a checkpoint. For
    tf.compat.v1.train.MonitoredTrainingSession.

    Args:
        root_rank: the GLOBAL rank whose values are sent.
        device: name of the device to broadcast on; empty: TensorFlow's choice.
        process_set: the ranks that take part.
    """

    def __init__(
        self, root_rank: int, device: str = "", process_set: ProcessSet = global_process_set
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.process_set = process_set
        self._variables: list[Any] = []
        self.bcast_op: Any = None
        self.device = device

    def begin(self) -> None:
        """Make the broadcast operation, before the graph is finalized."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with on_device(self.device):
                self._variables = tf.compat.v1.global_variables()
                self.bcast_op = broadcast_global_variables(self.root_rank, process_set=self.process_set)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the broadcast operation, if the ranks have the same variables. Raises as broadcast_variables()."""
        require_same_variables(
            "BroadcastGlobalVariablesHook", self._variables, "broadcast_hook", self.process_set
        )
        session.run(self.bcast_op)
