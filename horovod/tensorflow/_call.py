"""The common path of all operations: checks of the arguments, names, and the failure of a call on all ranks.

``run()`` takes a call from the Python functions of this package, and ends in the generated function of a TensorFlow
operation. Any thread; inside a function that is being traced, the thread that traces it.
"""

import contextlib
import operator
import re
from types import TracebackType
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.eager import context as _context

from horovod.common.arguments import Sum
from horovod.common.exports import _basics
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import _names, _xla
from horovod.tensorflow._library import (
    UNORDERED,
    let_run_unordered,
    library,
    operations,
    register_devices,
)
from horovod.tensorflow.util import do_not_convert
from hvd_core._frontend import operations as frontend_operations
from hvd_core._frontend.operations import engine_number, some_members_of, unsupported_text
from hvd_core._runtime import current_job, failures, process_sets
from hvd_core._runtime.process_sets import is_registered, number_of


def _dtypes(names: frozenset[str]) -> frozenset[Any]:
    """TensorFlow's dtypes of these names, as far as this TensorFlow has them."""
    # 8-bit floats are in tf.dtypes.experimental before they are in tf.
    found = (getattr(tf.dtypes.experimental, name, None) or getattr(tf, name, None) for name in names)
    return frozenset(dtype for dtype in found if dtype is not None)


REDUCIBLE = _dtypes(frontend_operations.REDUCIBLE)
MOVABLE = _dtypes(frontend_operations.MOVABLE)

_devices_known = False


def _forget_devices() -> None:
    """The next job may serve other devices, and allow copies of them or not."""
    global _devices_known
    _devices_known = False


current_job.call_after_the_job(_forget_devices)


def generated_function(kind: str) -> Any:
    """TensorFlow's Python function for an operation of the type `kind`, such as "HorovodAllreduce"."""
    return getattr(operations, re.sub(r"(?<!^)([A-Z])", r"_\1", kind).lower())


_REDUCTIONS = frozenset(kind for kind in UNORDERED if kind.lower().endswith(("allreduce", "reducescatter")))
_GROUPED = frozenset(kind for kind in UNORDERED if kind.startswith("HorovodGrouped"))
_FUNCTIONS = {kind: generated_function(kind) for kind in UNORDERED}


class CallOptions(NamedTuple):
    """The arguments of a call, without the tensors.

    Attributes:
        operation: "allreduce", "allgather", "broadcast", "alltoall", "reducescatter" or "barrier".
        name: the caller's argument; identifies the call across ranks.
        process_set: the ranks that take part.
        ignore_name_scope: leave the graph's name scopes out of the name.
        op, prescale_factor, postscale_factor: of a reduction.
        root_rank: of a broadcast.
    """

    operation: str
    name: Any = None
    process_set: ProcessSet = global_process_set
    ignore_name_scope: bool = False
    op: int = Sum
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0
    root_rank: Any = 0


class reported:
    """A context manager for the steps before a call of an operation: an exception that leaves it is reported to the other
    ranks as the failure of the call (see hvd_core._runtime.failures)."""

    __slots__ = ("_call",)

    def __init__(self, call: CallOptions) -> None:
        self._call = call

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            report(self._call, error)


def report(call: CallOptions, error: BaseException | str) -> None:
    """Let the other ranks' matching call fail: this rank's call failed before the engine knew of it.

    Does nothing before init() and for an unregistered process set, and in a graph for a call without a name: such a name
    is made of the names of tensors, and there may be no tensor. The other ranks' calls then fail when this rank ends.

    Args:
        error: the reason that the other ranks get.
    """
    name = None if isinstance(call.name, str) and not call.name else call.name
    if not _context.executing_eagerly():
        if not isinstance(name, str) or not _basics.is_initialized():
            return
        name = _names.negotiated(tf.compat.v1.get_default_graph(), name, call.ignore_name_scope)
    failures.send_failure(call.operation, name, call.process_set, error, call.operation)


def nothing(function: str, call: CallOptions) -> list[tf.Tensor]:
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


def process_set_number(process_set: Any) -> int:
    """The number of a process set. Raises ValueError for a value that is no registered set."""
    number = number_of(process_set)
    if number and not _context.executing_eagerly():
        process_sets.note_in_function()
    if number and _basics.is_initialized() and not is_registered(number):
        raise ValueError(
            f"Process set provided does not exist, or has not been registered. Its number is {number}."
        )
    return number


@do_not_convert
def run(kind: str, given: Any, call: CallOptions, more: dict[str, Any] | None = None) -> Any:
    """Check a call, and perform its operation. Returns the outputs of the generated function.

    Args:
        kind: the type of a TensorFlow operation, such as "HorovodAllreduce". "HorovodGrouped..." takes a list.
        given: the tensors, or what tf.convert_to_tensor() accepts.
        more: more attributes of the TensorFlow operation.

    Raises:
        ValueError, TypeError: an argument makes no sense. The matching calls of the other ranks fail.
    """
    with reported(call):
        attributes: dict[str, Any] = {"process_set_id": process_set_number(call.process_set)}
        allowed = MOVABLE
        if kind in _REDUCTIONS:
            allowed = REDUCIBLE
            attributes["reduce_op"] = engine_number(call.op)
            attributes["prescale_factor"] = _factor_text(call.prescale_factor, "prescale_factor")
            attributes["postscale_factor"] = _factor_text(call.postscale_factor, "postscale_factor")
        elif call.operation == "broadcast":
            attributes["root_rank"] = _root_number(call.root_rank)
        if more is not None:
            attributes |= more
        if call.name is not None:
            _check_name(call.name)
        tensors: Any
        if kind in _GROUPED:
            tensors = [_checked(member, allowed) for member in some_members_of(given, tf.Tensor)]
        else:
            tensors = _checked(given, allowed)
        if call.operation == "reducescatter":
            listed = tensors if isinstance(tensors, list) else [tensors]
            if any(tensor.shape.rank == 0 for tensor in listed):
                raise ValueError(f"{kind} does not support scalar inputs.")
    return perform(kind, tensors, attributes, call)


@do_not_convert
def run_group(kind: str, given: Any, call: CallOptions) -> list[tf.Tensor]:
    """run() of a "HorovodGrouped..." operation."""
    return list(run(kind, given, call))


@do_not_convert
def perform(kind: str, tensors: Any, attributes: dict[str, Any], call: CallOptions) -> Any:
    """Run the operation `kind`, or add it to the graph, where a call without a name gets one of the tensors' names.

    Args:
        tensors, attributes: the arguments of its generated function.
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
    let_run_unordered()
    if _names.is_by_round(graph):
        attributes = {**attributes, "by_round": True}
    with _after_fence(graph):
        return _unordered(function(tensors, tensor_name=agreed, name=_names.node_name(name), **attributes))


def _root_number(root_rank: Any) -> int:
    """`root_rank` as an int of 32 bits. Raises ValueError if it is not one."""
    with contextlib.suppress(TypeError):
        root = operator.index(root_rank)
        # The engine refuses a number that is not a rank. A number of more bits would be another one there.
        if -(1 << 31) <= root < 1 << 31:
            return root
    raise ValueError(f"root_rank must be the number of a rank, but is {root_rank!r:.80}.")


def _factor_text(value: float, argument: str) -> str:
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


def _check_name(name: Any) -> None:
    """Raise TypeError for a name that is not a str, ValueError for one that TensorFlow cannot take."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, but found {type(name).__name__}: {name!r:.80}.")
    name.encode()


def _checked(value: Any, allowed: frozenset[Any]) -> tf.Tensor:
    """`value` as a tensor. Raises ValueError if its dtype is not allowed, and the errors of tf.convert_to_tensor()."""
    tensor = value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
    dtype = tensor.dtype
    if dtype not in allowed:
        raise ValueError(unsupported_text(dtype.name, reduces=dtype in MOVABLE))
    return tensor


# The order of join and barrier inside functions: they run after the operations before them in the program, and before the
# operations after them. Our other operations run at any time within their function. TensorFlow itself orders branches,
# loops and calls of functions relative to a join or barrier.

_UNORDERED = "_horovod_unordered"
_FENCE = "_horovod_fence"


def _unordered(outputs: Any) -> Any:
    """The outputs of a generated function, whose operation may run as soon as its inputs are there, and always runs.

    Otherwise TensorFlow may drop an operation of a function whose result is not used, depending on the rank's optimizer
    settings, and may start the next round of a loop before the operation is done.
    """
    first = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    op = first if isinstance(first, tf.Operation) else first.op
    manager = getattr(op.graph, "experimental_acd_manager", None)
    if manager is not None and library.hvd_tf_asynchronous():
        manager.run_independently(op)
    if op.graph.building_function:  # for the next join or barrier
        if not hasattr(op.graph, _UNORDERED):
            setattr(op.graph, _UNORDERED, [])
        getattr(op.graph, _UNORDERED).append(op)
    return outputs


def _after_fence(graph: tf.Graph) -> contextlib.AbstractContextManager[object]:
    """A context: operations made within it run after the last join or barrier of this function, branch or loop."""
    fence = getattr(graph, _FENCE, None)
    ordered: contextlib.AbstractContextManager[object] = graph.control_dependencies(
        [] if fence is None else [fence]
    )
    return ordered


def before_fence(graph: tf.Graph) -> contextlib.AbstractContextManager[object]:
    """A context: operations made within it run after all earlier operations, also after those that stand before the
    branch or loop around it."""
    if not graph.building_function:
        return contextlib.nullcontext()
    earlier = list(getattr(graph, _UNORDERED, ()))
    part = graph
    while _names.is_part(part):
        part = part.outer_graph
        earlier += getattr(part, _UNORDERED, ())
    ordered: contextlib.AbstractContextManager[object] = graph.control_dependencies(earlier)
    return ordered


def note_fence(op: tf.Operation) -> None:
    """Remember a join or barrier, which was made within before_fence(), for the operations after it."""
    if op.graph.building_function:
        setattr(op.graph, _UNORDERED, [])
        setattr(op.graph, _FENCE, op)
