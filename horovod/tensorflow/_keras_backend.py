"""Keras 2, and Keras 3 on TensorFlow: gradients and variables through ``horovod.tensorflow``.

See horovod/_keras/backends.py.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any

import tensorflow as tf

from horovod._keras.agreement import DENSE, SPARSE32, SPARSE64
from horovod._keras.backends import Backend, Function
from horovod._keras.options import Options
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import mpi_ops
from horovod.tensorflow._call import CallOptions, report, reported, run, run_group
from horovod.tensorflow._gradients import NEIGHBOUR_BYTES, depending_on, one_of, scaled
from horovod.tensorflow._xla import is_traced_for_xla
from horovod.tensorflow.functions import groups_of, require_same_variables
from horovod.tensorflow.mpi_ops import allreduce_slices, reduce_compressed
from horovod.tensorflow.util import GROUP_BYTES, may_be_of_operation, values_of


class TensorFlowBackend(Backend):
    """tf.Tensor, tf.IndexedSlices, tf.Variable and keras.Variable."""

    batch_prefix = "allreduce."

    def mode(self) -> str:
        if tf.executing_eagerly():
            return "eager"
        return "xla" if is_traced_for_xla() else "graph"

    def identity(self, variable: Any) -> Any:
        # The `value` of a keras.Variable is a tf.Variable; the `value` of a tf.Variable is a method.
        value = getattr(variable, "value", None)
        return variable if value is None or callable(value) else value

    def is_variable(self, value: Any) -> bool:
        return isinstance(self.identity(value), tf.Variable)

    def description_of(self, variable: Any) -> tuple[str, list[int], str]:
        own = self.identity(variable)
        name = getattr(variable, "path", None) or own.name
        return name, own.shape.as_list(), own.dtype.base_dtype.name

    def values_of(self, variable: Any) -> Any:
        return values_of(self.identity(variable))

    def gradients(self, loss: Any, variables: list[Any], grad_loss: Any, tape: Any) -> list[Any]:
        own = [self.identity(v) for v in variables]
        if callable(loss):
            with tf.GradientTape() as tape:
                loss = loss()
        if tape is not None:
            return list(tape.gradient(loss, own, grad_loss))
        if tf.executing_eagerly():
            raise ValueError(
                "`tape` is required when a tensor is passed as loss: the tf.GradientTape that has recorded it."
            )
        return list(tf.gradients(loss, own, grad_loss))

    def sparse_kind(self, gradient: Any) -> int:
        if not isinstance(gradient, tf.IndexedSlices):
            return 0
        return SPARSE32 if gradient.indices.dtype == tf.int32 else SPARSE64

    def dense(self, gradient: tf.IndexedSlices) -> tf.Tensor:
        return tf.convert_to_tensor(gradient)

    def sparse(self, gradient: Any, kind: int) -> tf.IndexedSlices:
        dtype = tf.int32 if kind == SPARSE32 else tf.int64
        if isinstance(gradient, tf.IndexedSlices):
            values, indices = gradient.values, tf.cast(gradient.indices, dtype)
        else:
            values, indices = gradient, tf.range(tf.shape(gradient, dtype)[0], dtype=dtype)
        return tf.IndexedSlices(values, indices, tf.constant(gradient.shape.as_list(), dtype))

    def zeros_for(self, variable: Any, kind: int) -> Any:
        own = self.identity(variable)
        if kind not in (SPARSE32, SPARSE64):
            return tf.zeros(own.shape, own.dtype.base_dtype)
        indices = tf.zeros([0], tf.int32 if kind == SPARSE32 else tf.int64)
        rows = tf.zeros([0, *own.shape[1:]], own.dtype.base_dtype)
        return tf.IndexedSlices(rows, indices, tf.constant(own.shape.as_list(), indices.dtype))

    def misfit_for(self, variable: Any, kind: int) -> Any:
        own = self.identity(variable)
        if kind == DENSE or self.mode() == "xla":
            dtype = own.dtype.base_dtype
            return tf.zeros([0], dtype if dtype.is_floating else tf.float32)
        # Both parts have a dimension too many.
        indices = tf.zeros([0, 1], tf.int32 if kind == SPARSE32 else tf.int64)
        return tf.IndexedSlices(tf.zeros([0, *own.shape[1:], 1], own.dtype.base_dtype), indices)

    def depending_on(self, outcomes: list[Any], gradients: list[Any]) -> list[Any]:
        return depending_on(tf.nest.flatten(outcomes, expand_composites=True), gradients)

    def nan_unless_finite(self, gradients: list[Any]) -> tf.Tensor:
        values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in values])
        return tf.where(finite, tf.constant(1.0), tf.constant(float("nan")))

    def scaled(self, gradient: Any, factor: Any) -> Any:
        return scaled(gradient, factor)

    def batches(self, indices: list[int], gradients: list[Any], variables: list[Any]) -> list[list[int]]:
        # Each batch has one dtype, and begins as soon as its gradients have been computed.
        most = NEIGHBOUR_BYTES if self.mode() == "graph" else GROUP_BYTES
        done: list[list[int]] = []
        filling: dict[Any, tuple[list[int], int]] = {}
        for index in indices:
            gradient = gradients[index]
            count = self.identity(variables[index]).shape.num_elements() or 0
            key = gradient.dtype, getattr(gradient, "device", "") or ""
            batch, size = filling.get(key, ([], 0))
            if batch and size + count * gradient.dtype.size > most:
                done.append(batch)
                batch, size = [], 0
            filling[key] = [*batch, index], size + count * gradient.dtype.size
        return sorted([*done, *(batch for batch, _ in filling.values())])

    def reduce(
        self,
        batches: list[list[Any]],
        names: list[str],
        variables: list[Any],
        options: Options,
        presence: list[bool] | None,
    ) -> tuple[list[list[Any]], Any]:
        factor = options.gradient_predivide_factor
        results: list[list[Any]] = []
        reduced_presence = None
        for tensors, name in zip(batches, names):
            call = CallOptions("allreduce", name, options.process_set, True, options.op, 1.0 / factor, factor)
            with reported(call):
                pairs = [options.compression.compress(tensor) for tensor in tensors]
            sent = [pair[0] for pair in pairs]
            if presence is not None and not results:
                with tf.device(sent[0].device):
                    sent.append(tf.constant([float(p) for p in presence], sent[0].dtype))
            if len(sent) == 1:
                received = [run("HorovodAllreduce", sent[0], call)]
            else:
                received = run_group("HorovodGroupedAllreduce", sent, call)
            if len(sent) > len(pairs):
                reduced_presence = received[-1]
            results.append(
                [options.compression.decompress(t, context) for t, (_, context) in zip(received, pairs)]
            )
        return results, reduced_presence

    def any_rank_has(self, presence: tf.Tensor) -> list[bool]:
        return [bool(value > 0) for value in presence.numpy()]

    def reduce_sparse(self, gradient: tf.IndexedSlices, name: str, options: Options) -> Any:
        return allreduce_slices(
            gradient, CallOptions("allgather", name, options.process_set, True, options.op)
        )

    def broadcast_variables(
        self,
        variables: Sequence[Any],
        root_rank: int,
        name: str,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        own = [self.identity(v) for v in variables]
        if tf.executing_eagerly():
            for batch, part in enumerate(groups_of(own)):
                mpi_ops.broadcast_(part, root_rank, name=f"{name}.{batch}", process_set=process_set)
            return
        # A graph of TensorFlow 1: the values of its variables are in the session of Keras.
        session = tf.compat.v1.keras.backend.get_session()
        with session.graph.as_default():
            assigned = [
                v.assign(mpi_ops.broadcast(v, root_rank, f"{name}.{i}", True, process_set))
                for i, v in enumerate(own)
            ]
            session.run(tf.group(*assigned))

    def may_be_of_operation(self, error: Exception) -> bool:
        return may_be_of_operation(error)

    def copies_of(self, variables: Sequence[Any], earlier: Sequence[Any] | None) -> list[Any]:
        own = [self.identity(v) for v in variables]
        if not tf.executing_eagerly():
            return tf.compat.v1.keras.backend.get_session().run(own) if own else []
        # TensorFlow copies when the variable changes: a value that was read stays what it is.
        return [v.read_value() for v in own]

    def assign(self, variables: Sequence[Any], copies: Sequence[Any]) -> None:
        own = [self.identity(v) for v in variables]
        if tf.executing_eagerly():
            for variable, copy in zip(own, copies):
                variable.assign(copy)
        else:
            tf.compat.v1.keras.backend.batch_set_value(list(zip(own, copies)))

    def one_of(self, process_set: ProcessSet) -> Any:
        return one_of(process_set)

    def has_global_variables(self) -> bool:
        return not tf.executing_eagerly()

    def broadcast_global_variables(self, root_rank: int, process_set: ProcessSet) -> None:
        variables, name = tf.compat.v1.global_variables(), "keras.broadcast.global"
        require_same_variables("broadcast_global_variables()", variables, name, process_set)
        self.broadcast_variables(variables, root_rank, name, process_set)

    def allreduce(
        self,
        value: Any,
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        compression: Any,
        process_set: ProcessSet,
    ) -> Any:
        call = CallOptions("allreduce", name, process_set, True, op, prescale_factor, postscale_factor)
        with reported(call):
            sent = self.identity(value)
        (result,) = reduce_compressed("HorovodAllreduce", [sent], compression, "", call)
        return _evaluated(result)

    def allgather(self, value: Any, name: str | None, process_set: ProcessSet) -> Any:
        call = CallOptions("allgather", name, process_set, True)
        return self._run("HorovodAllgather", value, call)

    def broadcast(self, value: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        call = CallOptions("broadcast", name, process_set, True, root_rank=root_rank)
        return self._run("HorovodBroadcast", value, call)

    def reducescatter(self, value: Any, name: str | None, op: int, process_set: ProcessSet) -> Any:
        call = CallOptions("reducescatter", name, process_set, True, op)
        return self._run("HorovodReducescatter", value, call)

    def _run(self, kind: str, value: Any, call: CallOptions) -> Any:
        with reported(call):
            sent = self.identity(value)
        return _evaluated(run(kind, sent, call))

    def report(
        self, operation: str, name: str | None, error: BaseException | str, process_set: ProcessSet
    ) -> None:
        report(CallOptions(operation, name, process_set, True), error)

    def outside_of_graphs(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = tf.init_scope()
        return scope

    def not_rewritten(self, function: Function) -> Function:
        converted: Function = tf.autograph.experimental.do_not_convert(function)
        return converted

    def methods_not_rewritten(self, methods: type) -> dict[str, Callable[..., Any]]:
        return {
            name: self.not_rewritten(method)
            for cls in reversed(methods.__mro__[:-1])
            for name, method in vars(cls).items()
            if isinstance(method, FunctionType)
        }


def _evaluated(tensor: Any) -> Any:
    """The tensor; in a graph of TensorFlow 1 that is not a function being traced, its value in the session of Keras."""
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        return tensor
    return tf.compat.v1.keras.backend.get_session().run(tensor)
