"""Operations inside of functions that XLA compiles: ``tf.function(jit_compile=True)``, and Keras where it does that.

XLA knows no kernels of others. What it can do is to call a function of ours, which waits in XLA's thread until the
operation is done. So that no two ranks wait in different calls, each call takes a token from the one before it: within a
function all of them are made in the order of the program. Shapes are fixed before anything runs; where they depend on
other ranks, these are expected to give as many rows as this one, and a call fails where they do not.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.ops import control_flow_util

from horovod.common.basics import HorovodBasics
from horovod.tensorflow import _names
from horovod.tensorflow._library import library

_basics = HorovodBasics()
_TOKEN = "_horovod_token"
_ORDERED = "_horovod_ordered"
_COMPILED = "_horovod_compiled"
# Any number: managers are made by other programs, and have small ones.
_MANAGER = 0x68766400
# Of hvd/frontend_abi.h.
_OPS = {"Allreduce": 0, "Allgather": 1, "Broadcast": 2, "Alltoall": 4, "Reducescatter": 5}
_ADVICE = "Move the operation out of the compiled function, or use jit_compile=False."


def compiles(graph: tf.Graph) -> bool:
    """Whether XLA will compile what is made in `graph` now."""
    if control_flow_util.GraphOrParentsInXlaContext(graph):
        return True
    while graph is not None and not getattr(graph, _COMPILED, False):
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


def require() -> Any:
    """TensorFlow's way to call a function from a compiled program.

    Raises:
        NotImplementedError: this TensorFlow has none that we know.
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


def unsupported(what: str) -> NotImplementedError:
    """What to raise for an operation that has no compiled form."""
    return NotImplementedError(
        f"{what} cannot be used in a function that XLA compiles (jit_compile=True). {_ADVICE}"
    )


class _Made:
    """What the gradient functions ask an operation for."""

    def __init__(
        self, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor], attributes: dict[str, Any]
    ) -> None:
        self.inputs, self.outputs, self._attributes = inputs, outputs, attributes

    def get_attr(self, name: str) -> Any:
        return self._attributes[name]


def perform(kind: str, tensors: Any, attributes: dict[str, Any], name: str) -> Any:
    """As the generated function of the operation `kind`, for a compiled function. `name`: as agreed on.

    Raises:
        NotImplementedError: with alltoall's splits, with shapes that are not known, or with this TensorFlow.
    """
    from horovod.tensorflow._op_gradients import GRADIENTS  # which use the operations themselves

    require()
    if attributes.get("splits"):
        raise unsupported("hvd.alltoall with splits")
    attributes = {**attributes, "tensor_name": name}
    single = not isinstance(tensors, list)

    @tf.custom_gradient
    def call(*inputs: tf.Tensor) -> Any:
        outputs = _emit(kind, inputs, attributes)

        def gradient(*grads: tf.Tensor) -> Any:
            # With a tape around the function it is in a function of its own, which nothing tells to be compiled too.
            graph = tf.compat.v1.get_default_graph()
            if graph.building_function:
                setattr(graph, _COMPILED, True)
            if kind == "HorovodAlltoall":
                grads = (*grads, None)
            return GRADIENTS[kind](_Made(inputs, outputs, attributes), *grads)

        return (outputs[0] if single else outputs), gradient

    outputs = call(*([tensors] if single else tensors))
    if kind == "HorovodAlltoall":
        ranks = _basics._process_set_size(attributes["process_set_id"])
        return outputs, tf.fill([ranks], tensors.shape[0] // ranks)
    return outputs if single else list(outputs)


def fact(kind: str, process_set_id: int) -> tf.Tensor:
    """As the generated function of an operation that gives a fact about the job."""
    _order_calls(tf.compat.v1.get_default_graph())
    spec = tf.TensorSpec([], tf.int32)
    (value,) = require()(
        "hvd_fact", [], [spec], backend_config=f"{kind} {process_set_id}", has_side_effect=True
    )
    return value


def _emit(kind: str, inputs: Sequence[tf.Tensor], attributes: dict[str, Any]) -> list[tf.Tensor]:
    plain = kind.removeprefix("Horovod").removeprefix("Grouped").capitalize()
    shapes = [_result_shape(kind, tensor, attributes["process_set_id"]) for tensor in inputs]
    words: list[Any] = [_OPS[plain], attributes.get("reduce_op", 0), attributes["process_set_id"]]
    words += [attributes.get("root_rank", 0), attributes.get("prescale_factor", "1")]
    words += [attributes.get("postscale_factor", "1"), len(inputs)]
    for tensor, shape in zip(inputs, shapes):
        words += [tensor.dtype.as_datatype_enum, tensor.shape.rank, *tensor.shape, len(shape), *shape]
    words += [kind, attributes["tensor_name"]]
    _order_calls(tf.compat.v1.get_default_graph())
    token, holder = _token()
    specs = [tf.TensorSpec(shape, tensor.dtype) for tensor, shape in zip(inputs, shapes)]
    specs.append(tf.TensorSpec([], tf.float32))
    *outputs, token = require()(
        "hvd_collective",
        [*inputs, token],
        specs,
        backend_config=" ".join(map(str, words)),
        has_side_effect=True,
    )
    setattr(holder, _TOKEN, token)
    return outputs


@tf.function
def _effect() -> tf.Tensor:
    # XLA makes nothing of it, but to TensorFlow it is something that happens.
    tf.raw_ops.Assert(condition=tf.constant(True), data=[tf.constant(0)])
    return tf.constant(0.0)


def _order_calls(graph: tf.Graph) -> None:
    """Let calls of the compiled function that is being traced run one after the other, in the program's order.

    TensorFlow takes the operation that calls us for one without effects, and would run several such functions in any
    order: each holds a thread until it is done, and ranks would wait in different ones. That the function has effects
    is not enough, as functions that use different variables are not kept in order; members of a manager of collectives
    are.
    """
    if getattr(graph, _ORDERED, False):
        return
    setattr(graph, _ORDERED, True)
    with tf.init_scope():
        effect = _effect.get_concrete_function()
    call = effect().op
    managers = attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(i=[_MANAGER]))
    call._set_attr("_collective_manager_ids", managers)
    # Where a function is traced, this is found out from the call; a gradient's graph is not looked through.
    if not hasattr(graph, "collective_manager_ids_used"):
        graph.collective_manager_ids_used = {_MANAGER: call}


def _token() -> tuple[tf.Tensor, tf.Graph]:
    """What the last call has given in this function, or in the one around this branch or loop."""
    graph = here = tf.compat.v1.get_default_graph()
    while getattr(graph, _TOKEN, None) is None and _names.is_part(graph):
        graph = graph.outer_graph
    token = getattr(graph, _TOKEN, None)
    return (tf.constant(0.0) if token is None else token), here


def _result_shape(kind: str, tensor: tf.Tensor, process_set_id: int) -> list[int]:
    if not tensor.shape.is_fully_defined():
        raise NotImplementedError(
            f"{kind} of a tensor of shape {tensor.shape} is in a function that XLA compiles (jit_compile=True), where "
            f"shapes must be known when the function is traced. Give the function's arguments full shapes. Otherwise: "
            f"{_ADVICE[0].lower()}{_ADVICE[1:]}"
        )
    shape = tensor.shape.as_list()
    if not shape:
        return shape
    if kind.endswith("Allgather"):
        return [shape[0] * _basics._process_set_size(process_set_id), *shape[1:]]
    if kind.lower().endswith("reducescatter"):
        ranks, me = _basics._process_set_size(process_set_id), _basics._process_set_rank(process_set_id)
        return [shape[0] // ranks + (me < shape[0] % ranks), *shape[1:]]
    return shape
