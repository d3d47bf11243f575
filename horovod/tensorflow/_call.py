"""What all operations have in common: checks of the arguments, names, and how a failure here reaches the other ranks.

Used by the modules of this package only. Any thread; inside a function being traced, the one that traces.
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
    """Tell AutoGraph to call a function as it is. By its mark for that, as its decorator costs each eager call more."""
    function.autograph_info__ = {}
    return function


def _snake(kind: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", kind).lower()


_FUNCTIONS = {kind: getattr(operations, _snake(kind)) for kind in UNORDERED}


class Asked(NamedTuple):
    """What a program asked for, by which the other ranks are told should it fail here."""

    operation: int
    name: Any
    process_set: ProcessSet
    ignore_name_scope: bool = False


def poison(asked: Asked, text: str) -> None:
    """Let the other ranks' matching call fail: it failed here before the engine knew of it.

    In a graph names are made of tensors where none is given, which may not be there: the others hear nothing then but
    that this rank has ended.
    """
    number = getattr(asked.process_set, "process_set_id", None)
    if number is None or not _basics.is_initialized():
        return
    name = "" if asked.name is None else str(asked.name)
    if not _context.executing_eagerly():
        if not name:
            return
        name = _names.negotiated(tf.compat.v1.get_default_graph(), name, asked.ignore_name_scope)
    library.hvd_tf_poison(asked.operation, 0, name.encode(), number, text.encode())


def refuse(asked: Asked, text: str, error: type[Exception] = ValueError) -> NoReturn:
    """Raise `error(text)` here, and let the matching call fail on the other ranks."""
    poison(asked, text)
    raise error(text)


def prepare_devices() -> None:
    """Have kernels for this machine's devices, once the engine runs and can say what it serves."""
    global _devices_known
    if not _devices_known and _basics.is_initialized():
        _devices_known = True
        register_devices()


def set_number(process_set: ProcessSet) -> int:
    """The engine's number of a process set. ValueError for what is none, and for one that is not registered."""
    number = getattr(process_set, "process_set_id", None)
    if number is not None:
        return number
    if not isinstance(process_set, ProcessSet):
        raise ValueError(
            f"process_set must be an hvd.ProcessSet, but found {type(process_set).__name__}: {process_set!r:.80}. "
            "Leave it out for all ranks."
        )
    raise ValueError(f"Process set provided does not exist, or has not been registered: {process_set}.")


def wire_op(op: int, asked: Asked) -> int:
    """The engine's number of a reduce op. ValueError for what is none."""
    try:
        return WIRE_OPS[op]
    except (KeyError, TypeError):
        text = f"Unknown reduce op {op!r}. Use hvd.Average, Sum, Min, Max, Product or Adasum."
    refuse(asked, text)


def factor(value: float, what: str, asked: Asked) -> str:
    """A scale factor as the operations take it: in text, as TensorFlow's attributes round to 32 bits. ValueError for
    what is no number."""
    if isinstance(value, float) and value == 1.0:
        return "1"
    try:
        return repr(float(value))
    except (TypeError, ValueError, OverflowError) as error:
        text = f"{what} must be a number, but is {value!r:.80}: {error}"
    refuse(asked, text)


def tensor_of(value: Any, allowed: frozenset, asked: Asked) -> tf.Tensor:
    """`value` as a tensor of one of the allowed types.

    Raises:
        ValueError, TypeError: it cannot be one, or the name is no text. The other ranks' matching call fails as well.
    """
    name = asked.name
    if name is not None and not isinstance(name, str):
        refuse(asked, f"name must be a str, but found {type(name).__name__}: {name!r:.80}.", TypeError)
    try:
        tensor = value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
    except Exception as error:
        poison(asked, f"{type(error).__name__}: {error}")
        raise
    if tensor.dtype not in allowed:
        text = f"Tensor type {tensor.dtype.name} is not supported."
        if tensor.dtype in MOVABLE:
            text += " Reductions take integers of up to 64 bits but uint32 and uint64, and floats of 16 bits and more."
        refuse(asked, text)
    return tensor


def members_of(values: Any, asked: Asked) -> list:
    """The members of a group. ValueError for what is no list; the other ranks' matching call fails as well."""
    try:
        return list(values)
    except Exception as error:
        text = f"A grouped operation takes a list of tensors, but found {type(values).__name__}: {error}"
        poison(asked, text)
        raise ValueError(text) from error


def tensors_of(values: Any, allowed: frozenset, asked: Asked) -> list[tf.Tensor]:
    """The members of a group as tensors. At least one; ValueError otherwise."""
    if isinstance(values, tf.Tensor):
        refuse(asked, f"A grouped operation takes a list of tensors, but found {type(values).__name__}.")
    values = members_of(values, asked)
    if not values:
        refuse(asked, "A grouped operation needs at least one tensor.")
    return [tensor_of(value, allowed, asked) for value in values]


def perform(kind: str, tensors: Any, attributes: dict[str, Any], asked: Asked) -> Any:
    """Make the operation `kind`, or run it where operations run at once.

    Args:
        tensors: what its generated function takes first, a tensor or a list of them.
        attributes: the others of its arguments.
        asked: in a graph no name stands for one made of the tensors' names.

    Returns:
        What the generated function returns.
    """
    function, name = _FUNCTIONS[kind], asked.name
    if _context.executing_eagerly():
        if not _devices_known:
            prepare_devices()
        # The name is an attribute, and TensorFlow keeps a kernel for each value of it, so none is made up here.
        return function(tensors, tensor_name=name or "", blocking=True, **attributes)
    prepare_devices()
    graph = tf.compat.v1.get_default_graph()
    name = name or _names.default_name(kind, tensors if isinstance(tensors, list) else [tensors])
    agreed = _names.negotiated(graph, name, asked.ignore_name_scope)
    if _xla.compiles(graph):
        return _xla.perform(kind, tensors, attributes, agreed)
    if _names.is_by_round(graph):
        attributes = {**attributes, "by_round": True}
    with _program_order.after_fence(graph):
        return made(function(tensors, tensor_name=agreed, name=_names.node_name(name), **attributes))


def made(outputs: Any) -> Any:
    """What a generated function has returned for a graph, with the operation free to run."""
    first = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    op = first if isinstance(first, tf.Operation) else first.op
    run_in_parallel(op)
    _program_order.note(op)
    return outputs


def require_rows(tensors: list[tf.Tensor], kind: str, asked: Asked) -> None:
    """ValueError if one is known to be a scalar."""
    if any(tensor.shape.rank == 0 for tensor in tensors):
        refuse(asked, f"{kind} does not support scalar inputs.")
