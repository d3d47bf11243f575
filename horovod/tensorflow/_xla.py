"""Operations in functions that XLA compiles: ``tf.function(jit_compile=True)``, and Keras where it does that.

XLA cannot run kernels of other libraries. It can call a function of ours, which waits in XLA's thread until the operation
is done. So that no two ranks wait in different calls, each call takes a token from the call before it: within a function
all calls are made in the order of the program. Shapes are fixed before anything runs. Where a shape depends on other
ranks, they are expected to give as many rows as this rank; otherwise the call fails.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.ops import control_flow_util

from horovod.common.exports import _basics
from horovod.tensorflow import _names
from horovod.tensorflow._library import GRADIENTS, library
from horovod.tensorflow.util import do_not_convert
from hvd_core._frontend.operations import scattered_rows

_TOKEN = "_horovod_token"
_ORDERED = "_horovod_ordered"
_COMPILED = "_horovod_compiled"
# The number of our manager of collectives. Other programs' managers have small numbers.
_MANAGER = 0x68766400
_ADVICE = "Move the operation out of the compiled function, or use jit_compile=False."


def compiles(graph: tf.Graph) -> bool:
    """Whether XLA will compile operations that are made in `graph` now."""
    if control_flow_util.GraphOrParentsInXlaContext(graph):
        return True
    while graph is not None and not getattr(graph, _COMPILED, False):
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


def is_traced_for_xla() -> bool:
    """Whether the calling code is being traced into a graph that XLA will compile."""
    return not tf.executing_eagerly() and compiles(tf.compat.v1.get_default_graph())


def custom_call_function() -> Any:
    """TensorFlow's Python function that makes the operation by which a compiled program calls a C function.

    Raises:
        NotImplementedError: this TensorFlow does not have it as this release of hvd-core knows it.
    """
    missing = library.hvd_tf_register_with_xla().decode()
    try:
        from tensorflow.compiler.tf2xla.python.xla import custom_call_v2
    except ImportError as error:
        missing = str(error)
    if missing:
        raise NotImplementedError(
            f"TensorFlow {tf.__version__} does not let Horovod's operations into functions that XLA compiles (missing: "
            f"{missing}). {_ADVICE}"
        )
    return custom_call_v2


def not_compilable(operation: str) -> NotImplementedError:
    """The exception to raise for an operation that has no compiled form."""
    return NotImplementedError(
        f"{operation} cannot be used in a function that XLA compiles (jit_compile=True). {_ADVICE}"
    )


class _CompiledOperation:
    """Stands for the tf.Operation of a compiled call: has the attributes that gradient functions read."""

    def __init__(
        self, kind: str, inputs: Sequence[Any], outputs: Sequence[Any], attributes: dict[str, Any]
    ) -> None:
        self.type, self.inputs, self.outputs, self._attributes = kind, inputs, outputs, attributes

    def get_attr(self, name: str) -> Any:
        return self._attributes[name]


def perform(kind: str, tensors: Any, attributes: dict[str, Any], name: str) -> Any:
    """Add the operation `kind` to a function that XLA compiles, instead of the operation's generated function.

    Args:
        kind, tensors, attributes: as for _call.perform().
        name: by which the ranks find each other's calls.

    Raises:
        NotImplementedError: alltoall with splits, a shape that is not known, or custom_call_function() raises it.
    """
    custom_call_function()
    if attributes.get("splits"):
        raise not_compilable("hvd.alltoall with splits")
    attributes = {**attributes, "tensor_name": name}
    single = not isinstance(tensors, list)

    @tf.custom_gradient
    @do_not_convert
    def call(*inputs: tf.Tensor) -> Any:
        outputs = _emit(kind, inputs, attributes)

        @do_not_convert
        def gradient(*grads: tf.Tensor) -> Any:
            # With a tape around the function the gradient has its own function, which is compiled too, but is not marked
            # as compiled.
            graph = tf.compat.v1.get_default_graph()
            if graph.building_function:
                setattr(graph, _COMPILED, True)
            if kind == "HorovodAlltoall":
                grads = (*grads, None)
            return GRADIENTS[kind](_CompiledOperation(kind, inputs, outputs, attributes), *grads)

        return (outputs[0] if single else outputs), gradient

    outputs = call(*([tensors] if single else tensors))
    if kind == "HorovodAlltoall":
        ranks = _basics._process_set_size(attributes["process_set_id"])
        return outputs, tf.fill([ranks], tensors.shape[0] // ranks)
    return outputs if single else list(outputs)


def fact(kind: str, process_set_id: int) -> tf.Tensor:
    """A fact about the job, instead of the generated function of `kind` (such as "HorovodSize"): a scalar int32."""
    _order_calls(tf.compat.v1.get_default_graph())
    (value,) = custom_call_function()(
        "hvd_fact",
        [],
        [tf.TensorSpec([], tf.int32)],
        backend_config=_call_text(kind, process_set_id),
        has_side_effect=True,
    )
    return value


def _emit(kind: str, inputs: Sequence[tf.Tensor], attributes: dict[str, Any]) -> list[tf.Tensor]:
    """Add the compiled call to the graph. Returns the results, without the token."""
    shapes = [_result_shape(kind, tensor, attributes["process_set_id"]) for tensor in inputs]
    values = {key: attributes.get(key, default) for key, default in _DEFAULTS.items()}
    values["tensors"] = ";".join(
        f"{tensor.dtype.as_datatype_enum}:{_dims(tensor.shape)}>{_dims(shape)}"
        for tensor, shape in zip(inputs, shapes)
    )
    values["name"] = attributes["tensor_name"]
    _order_calls(tf.compat.v1.get_default_graph())
    token, holder = _latest_token()
    specs = [tf.TensorSpec(shape, tensor.dtype) for tensor, shape in zip(inputs, shapes)]
    specs.append(tf.TensorSpec([], tf.float32))
    outputs: list[tf.Tensor]
    *outputs, token = custom_call_function()(
        "hvd_collective",
        [*inputs, token],
        specs,
        backend_config=_call_text(kind, attributes["process_set_id"], values),
        has_side_effect=True,
    )
    setattr(holder, _TOKEN, token)
    return outputs


# The text in a compiled program from which libhvd_tf.so reads which operation to run (native/xla_call_text.cc):
#
#     hvd1 operation=HorovodAllreduce process_set=0 reduce_op=4 root_rank=0 prescale_factor=1 postscale_factor=1
#         tensors=1:3,2>3,2;1:>  name=step/gradient
#
# (in one line). Words are KEY=VALUE; `name` comes last and extends to the end of the text, as a name may have spaces.
# A tensor is DTYPE:SHAPE>SHAPE OF THE RESULT, with TensorFlow's number of the dtype. Numbers of reduce ops are those of
# hvd/backend_abi.h. A SavedModel may hold such texts, so another release may read them: a change of the format is a new
# version, in both files.
_TEXT_VERSION = 1

# The attributes of a collective that the text has, with the values of operations that do not have them.
_DEFAULTS = {"reduce_op": 0, "root_rank": 0, "prescale_factor": "1", "postscale_factor": "1"}


def _call_text(operation: str, process_set_id: int, values: Mapping[str, Any] = MappingProxyType({})) -> str:
    words = {"operation": operation, "process_set": process_set_id, **values}
    return " ".join([f"hvd{_TEXT_VERSION}", *(f"{key}={value}" for key, value in words.items())])


def _dims(shape: Iterable[Any]) -> str:
    return ",".join(map(str, shape))


@tf.function(autograph=False)
def _effect() -> tf.Tensor:
    # XLA drops the assertion, but to TensorFlow the function has an effect.
    tf.raw_ops.Assert(condition=tf.constant(True), data=[tf.constant(0)])
    return tf.constant(0.0)


def _order_calls(graph: tf.Graph) -> None:
    """Let calls of the compiled function that is being traced run one after the other, in the program's order.

    TensorFlow assumes that a custom call has no effects, and would run several such functions in any order: each holds a
    thread until it is done, and the ranks would wait in different functions. An effect in the function is not enough, as
    TensorFlow does not order functions that use different variables. It does order functions that belong to a manager
    of collectives.
    """
    if getattr(graph, _ORDERED, False):
        return
    setattr(graph, _ORDERED, True)
    with tf.init_scope():
        effect = _effect.get_concrete_function()
    call = effect().op
    managers = attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(i=[_MANAGER]))
    call._set_attr("_collective_manager_ids", managers)
    # TensorFlow finds this out from the call when it traces a function, but not for the graph of a gradient.
    if not hasattr(graph, "collective_manager_ids_used"):
        graph.collective_manager_ids_used = {_MANAGER: call}


def _latest_token() -> tuple[tf.Tensor, tf.Graph]:
    """The token of the last call in this function, or in the function around this branch or loop, and the graph that
    keeps the next token."""
    graph = here = tf.compat.v1.get_default_graph()
    while getattr(graph, _TOKEN, None) is None and _names.is_part(graph):
        graph = graph.outer_graph
    token = getattr(graph, _TOKEN, None)
    return (tf.constant(0.0) if token is None else token), here


def _result_shape(kind: str, tensor: tf.Tensor, process_set_id: int) -> list[int]:
    """The shape of the result for `tensor`, if all ranks give tensors of the same shape.

    Raises:
        NotImplementedError: the tensor's shape is not fully known.
    """
    if not tensor.shape.is_fully_defined():
        raise NotImplementedError(
            f"{kind} of a tensor of shape {tensor.shape} is in a function that XLA compiles (jit_compile=True), where "
            f"shapes must be known when the function is traced. Give the function's arguments full shapes. Otherwise: "
            f"{_ADVICE[0].lower()}{_ADVICE[1:]}"
        )
    shape: list[int] = tensor.shape.as_list()
    if not shape:
        return shape
    if kind.endswith("Allgather"):
        return [shape[0] * _basics._process_set_size(process_set_id), *shape[1:]]
    if kind.lower().endswith("reducescatter"):
        ranks, rank = _basics._process_set_size(process_set_id), _basics._process_set_rank(process_set_id)
        return [scattered_rows(shape[0], ranks, rank), *shape[1:]]
    return shape
