"""The common path of all operations: checks of the arguments, names, and the refusal of a call on all ranks.

Used by the modules of this package and by ``horovod._keras``. Any thread; inside a function that is being traced, the
thread that traces it.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import tensorflow as tf
from tensorflow.python.eager import context as _context

from horovod.common.basics import HorovodBasics
from horovod.common.process_sets import ProcessSet
from horovod.tensorflow import _names, _program_order, _xla
from horovod.tensorflow._library import UNORDERED, library, operations, register_devices, run_in_parallel

_basics = HorovodBasics()

Average = _basics.Average
Sum = _basics.Sum
Adasum = _basics.Adasum
Min = _basics.Min
Max = _basics.Max
Product = _basics.Product

# The numbers of hvd/backend_abi.h, and of hvd/frontend_abi.h for Adasum.
WIRE_OPS = {Average: 4, Sum: 0, Min: 2, Max: 3, Product: 1, Adasum: 100}
OP_OF_WIRE = {number: op for op, number in WIRE_OPS.items()}

# Of hvd/frontend_abi.h.
ALLREDUCE, ALLGATHER, BROADCAST, BARRIER, ALLTOALL, REDUCESCATTER, JOIN = range(7)

REDUCIBLE = frozenset(
    (
        *(tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64),
        *(tf.float16, tf.bfloat16, tf.float32, tf.float64),
    )
)
# 8-bit floats are in tf.dtypes.experimental before they are in tf.
_FLOAT8 = [
    getattr(tf.dtypes.experimental, name, None) or getattr(tf, name, None)
    for name in ("float8_e5m2", "float8_e4m3fn")
]
MOVABLE = REDUCIBLE | {tf.bool, tf.uint32, tf.uint64} | {dtype for dtype in _FLOAT8 if dtype is not None}

_devices_known = False


def plain(function: Callable) -> Callable:
    """Tell AutoGraph to call a function as it is. Sets AutoGraph's mark, as its decorator costs each eager call more."""
    function.autograph_info__ = {}
    return function


def _snake(kind: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", kind).lower()


_FUNCTIONS = {kind: getattr(operations, _snake(kind)) for kind in UNORDERED}


class CallIdentity(NamedTuple):
    """The operation, name and process set of a call: how the other ranks know which call failed, if it fails here."""

    operation: int
    name: Any
    process_set: ProcessSet
    ignore_name_scope: bool = False


def poison(call: CallIdentity, text: str) -> None:
    """Let the other ranks' matching call fail with `text`: this rank's call failed before the engine knew of it.

    Does nothing before init() and for an unregistered process set, and in a graph for a call without a name: such a
    name is made of the names of tensors, and the tensor may be what is missing. The other ranks' calls then fail when
    this rank ends.
    """
    number = getattr(call.process_set, "process_set_id", None)
    if number is None or not _basics.is_initialized():
        return
    name = "" if call.name is None else str(call.name)
    if not _context.executing_eagerly():
        if not name:
            return
        name = _names.negotiated(tf.compat.v1.get_default_graph(), name, call.ignore_name_scope)
    library.hvd_tf_poison(call.operation, 0, name.encode(), number, text.encode())


def poison_with(call: CallIdentity, error: Exception) -> None:
    """poison() with the text of an exception that this rank is about to raise."""
    poison(call, f"{type(error).__name__}: {error}")


def refuse(call: CallIdentity, text: str, error: type[Exception] = ValueError) -> NoReturn:
    """Raise `error(text)` here, and let the matching call fail on the other ranks."""
    poison(call, text)
    raise error(text)


def prepare_devices() -> None:
    """Register kernels for this machine's devices, once the engine runs and knows which device types it serves."""
    global _devices_known
    if not _devices_known and _basics.is_initialized():
        _devices_known = True
        register_devices()


def set_number(process_set: ProcessSet) -> int:
    """The engine's number of a process set.

    Raises:
        ValueError: `process_set` is not an hvd.ProcessSet, or is not registered.
    """
    number = getattr(process_set, "process_set_id", None)
    if number is not None:
        return number
    if not isinstance(process_set, ProcessSet):
        raise ValueError(
            f"process_set must be an hvd.ProcessSet, but found {type(process_set).__name__}: {process_set!r:.80}. "
            "Leave it out for all ranks."
        )
    raise ValueError(f"Process set provided does not exist, or has not been registered: {process_set}.")


def wire_op(op: int, call: CallIdentity) -> int:
    """The engine's number of a reduce op.

    Raises:
        ValueError: `op` is not a reduce op. The other ranks' matching call fails as well.
    """
    try:
        return WIRE_OPS[op]
    except (KeyError, TypeError):
        text = f"Unknown reduce op {op!r}. Use hvd.Average, Sum, Min, Max, Product or Adasum."
    refuse(call, text)


def factor_text(value: float, argument: str, call: CallIdentity) -> str:
    """A factor as the operations take it: as text, because TensorFlow rounds attributes that are numbers to 32 bits.

    Raises:
        ValueError: `value` is not a number. The other ranks' matching call fails as well.
    """
    if isinstance(value, float) and value == 1.0:
        return "1"
    try:
        return repr(float(value))
    except (TypeError, ValueError, OverflowError) as error:
        text = f"{argument} must be a number, but is {value!r:.80}: {error}"
    refuse(call, text)


def checked_tensor(value: Any, allowed: frozenset, call: CallIdentity) -> tf.Tensor:
    """`value` as a tensor, whose dtype is one of `allowed`.

    Raises:
        ValueError: the dtype is not allowed. TypeError: the name is not a str. Whatever tf.convert_to_tensor() raises.
            The other ranks' matching call fails as well.
    """
    name = call.name
    if name is not None and not isinstance(name, str):
        refuse(call, f"name must be a str, but found {type(name).__name__}: {name!r:.80}.", TypeError)
    try:
        tensor = value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
    except Exception as error:
        poison_with(call, error)
        raise
    if tensor.dtype not in allowed:
        text = f"Tensor type {tensor.dtype.name} is not supported."
        if tensor.dtype in MOVABLE:
            text += " Reductions take integers of up to 64 bits but uint32 and uint64, and floats of 16 bits and more."
        refuse(call, text)
    return tensor


def group_members(values: Any, call: CallIdentity) -> list:
    """The members of a group as a new list.

    Raises:
        ValueError: `values` cannot be iterated over. The other ranks' matching call fails as well.
    """
    try:
        return list(values)
    except Exception as error:
        text = f"A grouped operation takes a list of tensors, but found {type(values).__name__}: {error}"
        poison(call, text)
        raise ValueError(text) from error


def checked_tensors(values: Any, allowed: frozenset, call: CallIdentity) -> list[tf.Tensor]:
    """The members of a group as tensors, at least one.

    Raises:
        ValueError: `values` is empty or not a list; what checked_tensor() raises.
    """
    if isinstance(values, tf.Tensor):
        refuse(call, f"A grouped operation takes a list of tensors, but found {type(values).__name__}.")
    values = group_members(values, call)
    if not values:
        refuse(call, "A grouped operation needs at least one tensor.")
    return [checked_tensor(value, allowed, call) for value in values]


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
    with _program_order.after_fence(graph):
        return without_order(function(tensors, tensor_name=agreed, name=_names.node_name(name), **attributes))


def without_order(outputs: Any) -> Any:
    """`outputs` of a generated function in a graph, after its operation was allowed to run as soon as its inputs are
    there."""
    first = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    op = first if isinstance(first, tf.Operation) else first.op
    run_in_parallel(op)
    _program_order.note(op)
    return outputs


def require_rows(tensors: list[tf.Tensor], kind: str, call: CallIdentity) -> None:
    """Raise ValueError if one of `tensors` is known to be a scalar. The other ranks' matching call fails as well."""
    if any(tensor.shape.rank == 0 for tensor in tensors):
        refuse(call, f"{kind} does not support scalar inputs.")
