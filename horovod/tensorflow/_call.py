"""The common path of all operations: checks of the arguments, names, and the refusal of a call on all ranks.

Used by the modules of this package and by ``horovod._keras``. Any thread; inside a function that is being traced, the
thread that traces it.
"""

import contextlib
import re
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.eager import context as _context

from horovod.common.exports import _basics
from horovod.common.process_sets import ProcessSet
from horovod.tensorflow import _names, _xla
from horovod.tensorflow._library import UNORDERED, operations, register_devices, run_in_parallel
from horovod.tensorflow.util import plain
from hvd_core._frontend import element_types, groups
from hvd_core._runtime import current_job, process_sets, refusals
from hvd_core._runtime.process_sets import is_registered, number_of

# The order of join and barrier inside functions.
#
# They run after the operations before them in the program, and before the operations after them. Our other operations run
# at any time within their function. TensorFlow itself orders branches, loops and calls of functions relative to a join or
# barrier. Used by the thread that traces a function.

_UNORDERED = "_horovod_unordered"
_FENCE = "_horovod_fence"


def note(op: tf.Operation) -> None:
    """Remember an operation that may run at any time, for the next join or barrier."""
    graph = op.graph
    if graph.building_function:
        if not hasattr(graph, _UNORDERED):
            setattr(graph, _UNORDERED, [])
        getattr(graph, _UNORDERED).append(op)


def after_fence(graph: tf.Graph) -> contextlib.AbstractContextManager:
    """A context: operations made within it run after the last join or barrier of this function, branch or loop."""
    fence = getattr(graph, _FENCE, None)
    return contextlib.nullcontext() if fence is None else graph.control_dependencies([fence])


def before_fence(graph: tf.Graph) -> contextlib.AbstractContextManager:
    """A context: operations made within it run after all earlier operations, also after those that stand before the
    branch or loop around it."""
    if not graph.building_function:
        return contextlib.nullcontext()
    earlier = list(getattr(graph, _UNORDERED, ()))
    part = graph
    while _names.is_part(part):
        part = part.outer_graph
        earlier += getattr(part, _UNORDERED, ())
    return graph.control_dependencies(earlier)


def note_fence(op: tf.Operation) -> None:
    """Remember a join or barrier, which was made within before_fence(), for the operations after it."""
    if op.graph.building_function:
        setattr(op.graph, _UNORDERED, [])
        setattr(op.graph, _FENCE, op)


def _dtypes(names: frozenset) -> frozenset:
    """TensorFlow's dtypes of these names, as far as this TensorFlow has them."""
    # 8-bit floats are in tf.dtypes.experimental before they are in tf.
    found = (getattr(tf.dtypes.experimental, name, None) or getattr(tf, name, None) for name in names)
    return frozenset(dtype for dtype in found if dtype is not None)


REDUCIBLE = _dtypes(element_types.REDUCIBLE)
MOVABLE = _dtypes(element_types.MOVABLE)

_devices_known = False


def _forget_devices() -> None:
    """The next job may serve other devices, and allow copies of them or not."""
    global _devices_known
    _devices_known = False


current_job.call_after_the_job(_forget_devices)


def _snake(kind: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", kind).lower()


_FUNCTIONS = {kind: getattr(operations, _snake(kind)) for kind in UNORDERED}


class CallIdentity(NamedTuple):
    """The operation, name and process set of a call: how the other ranks know which call failed, if it fails here."""

    operation: str  # of hvd_core._frontend.operations
    name: Any
    process_set: ProcessSet
    ignore_name_scope: bool = False


def report(call: CallIdentity, error: BaseException | str) -> None:
    """Let the other ranks' matching call fail: this rank's call failed before the engine knew of it.

    To be called in the guard of a function (see hvd_core._runtime.refusals), which then raises `error` again. Does
    nothing before init() and for an unregistered process set, and in a graph for a call without a name: such a name is
    made of the names of tensors, and there may be no tensor. The other ranks' calls then fail when this rank ends.

    Args:
        error: the reason that the other ranks get.
    """
    name = None if isinstance(call.name, str) and not call.name else call.name
    if not _context.executing_eagerly():
        if not isinstance(name, str) or not _basics.is_initialized():
            return
        name = _names.negotiated(tf.compat.v1.get_default_graph(), name, call.ignore_name_scope)
    refusals.report(call.operation, name, call.process_set, error, call.operation)


def nothing(function: str, call: CallIdentity) -> list:
    """The result of a grouped operation without tensors. Nothing is sent. If the groups of other ranks have tensors,
    their calls fail."""
    report(call, f"{function}() was called there with an empty list.")
    return []


def prepare_devices() -> None:
    """Register kernels for this machine's devices, once the engine runs and knows which device types it serves."""
    global _devices_known
    if not _devices_known and _basics.is_initialized():
        _devices_known = True
        register_devices()


def set_number(process_set: Any) -> int:
    """The number of a process set. Raises ValueError for a value that is no registered set."""
    number = number_of(process_set)
    if number and not _context.executing_eagerly():
        process_sets.note_in_function()
    if number and _basics.is_initialized() and not is_registered(number):
        raise ValueError(
            f"Process set provided does not exist, or has not been registered. Its number is {number}."
        )
    return number


def factor_text(value: float, argument: str) -> str:
    """A factor as the operations take it: as text, because TensorFlow rounds attributes that are numbers to 32 bits.

    Raises:
        ValueError: `value` is not a number.
    """
    if isinstance(value, float) and value == 1.0:
        return "1"
    try:
        return repr(float(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{argument} must be a number, but is {value!r:.80}: {error}") from None


def check_name(name: Any) -> None:
    """Raise TypeError for a name that is not a str, ValueError for one that TensorFlow cannot take."""
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, but found {type(name).__name__}: {name!r:.80}.")
    name.encode()


def checked_tensor(value: Any, allowed: frozenset, call: CallIdentity) -> tf.Tensor:
    """`value` as a tensor, whose dtype is one of `allowed`.

    Raises:
        ValueError: the dtype is not allowed. TypeError: the name is not a str. The errors of tf.convert_to_tensor().
    """
    check_name(call.name)
    tensor = value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
    dtype = tensor.dtype
    if dtype not in allowed:
        raise ValueError(element_types.unsupported_text(dtype.name, reduces=dtype in MOVABLE))
    return tensor


def group_members(values: Any) -> list:
    """The members of a group as a new list, which may be empty. Rows of a tensor count as members.

    Raises:
        ValueError: `values` cannot be iterated over. The errors of a generator.
    """
    return groups.members_of(values, ())


def checked_tensors(values: Any, allowed: frozenset, call: CallIdentity) -> list[tf.Tensor]:
    """The members of a group as tensors, at least one.

    Raises:
        ValueError: `values` is empty, one tensor, or cannot be iterated over. The errors of a generator and of
            checked_tensor().
    """
    members = groups.some_members_of(values, tf.Tensor)
    return [checked_tensor(member, allowed, call) for member in members]


@plain
def perform(kind: str, tensors: Any, attributes: dict[str, Any], call: CallIdentity) -> Any:
    """Run the operation `kind`, or, in a graph, add it to the graph.

    Args:
        kind: the type of a TensorFlow operation, such as "HorovodAllreduce".
        tensors: the first argument of its generated function: a tensor, or a list of tensors for a group.
        attributes: the other arguments of the generated function.
        call: gives the name. In a graph a call without a name gets one that is made of the tensors' names.

    Returns:
        The outputs of the generated function.
    """
    function, name = _FUNCTIONS[kind], call.name
    if _context.executing_eagerly():
        if not _devices_known:
            prepare_devices()
        # The name is an attribute, and TensorFlow keeps a kernel for each value of it. So no name is made up here: the
        # engine counts calls without one.
        return function(tensors, tensor_name=name or "", blocking=True, **attributes)
    prepare_devices()
    graph = tf.compat.v1.get_default_graph()
    name = name or _names.default_name(kind, tensors if isinstance(tensors, list) else [tensors])
    agreed = _names.negotiated(graph, name, call.ignore_name_scope)
    if _xla.compiles(graph):
        return _xla.perform(kind, tensors, attributes, agreed)
    if _names.is_by_round(graph):
        attributes = {**attributes, "by_round": True}
    with after_fence(graph):
        return without_order(function(tensors, tensor_name=agreed, name=_names.node_name(name), **attributes))


def without_order(outputs: Any) -> Any:
    """`outputs` of a generated function in a graph, after its operation was allowed to run as soon as its inputs are
    there."""
    first = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    op = first if isinstance(first, tf.Operation) else first.op
    run_in_parallel(op)
    note(op)
    return outputs


def require_rows(tensors: list[tf.Tensor], kind: str) -> None:
    """Raise ValueError if one of `tensors` is known to be a scalar."""
    if any(tensor.shape.rank == 0 for tensor in tensors):
        raise ValueError(f"{kind} does not support scalar inputs.")
