"""DistributedOptimizer, for optimizers of tf.compat.v1 and of Keras, and the distributed gradient tapes."""

import functools
import sys
import warnings
from typing import Any

import tensorflow as tf

from horovod._keras import patches
from horovod._keras.options import from_arguments, list_of_layers
from horovod.common.arguments import Adasum, Average, Sum, check_backward_passes, check_predivide_factor
from horovod.common.exports import rank
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._gradients import (
    GradientReduction,
    checked_groups,
    reduce_shared,
    takes_part,
)
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.gradient_aggregation import (
    LocalGradientAggregationHelper,
    _local_variable,
    _true_after,
)
from horovod.tensorflow.util import _executing_eagerly, do_not_convert, plain_variable, ref

__all__ = ["DistributedGradientTape", "DistributedOptimizer", "PartialDistributedGradientTape"]


class WrappedOptimizer(tf.compat.v1.train.Optimizer):
    """An optimizer of tf.compat.v1 around another one, whose slots and variables it reports as its own."""

    def __init__(
        self, optimizer: tf.compat.v1.train.Optimizer, name: str, use_locking: bool, process_set: ProcessSet
    ) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self.process_set = process_set
        self._local_vars: set[Any] = set()

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of this variable (or of a list of them)."""
        self._local_vars.update(ref(v) for v in tf.nest.flatten(var))

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """As of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """As of the wrapped optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """As of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


class _DistributedOptimizer(WrappedOptimizer):
    """Reduces the gradients that the wrapped optimizer computes. The wrapped optimizer applies the reduced gradients."""

    def __init__(
        self,
        optimizer: tf.compat.v1.train.Optimizer,
        name: str | None = None,
        use_locking: bool = False,
        device_dense: str = "",
        device_sparse: str = "",
        compression: type[Compressor] = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        name = name or f"Distributed{type(optimizer).__name__}"
        self._allreduce_grads = from_arguments(GradientReduction, locals())
        super().__init__(optimizer, name, use_locking, process_set)
        self._scale_local_gradients = scale_local_gradients
        self._agg_helper = None
        if backward_passes_per_step > 1:
            self._agg_helper = LocalGradientAggregationHelper(
                backward_passes_per_step=backward_passes_per_step,
                allreduce_func=self._allreduce_grads,
                sparse_as_dense=sparse_as_dense,
                average_aggregated_gradients=average_aggregated_gradients,
                rank=rank(),
                optimizer_type=LocalGradientAggregationHelper._OPTIMIZER_TYPE_LEGACY,
                process_set=process_set,
                scale_local_gradients=scale_local_gradients,
                name=name,
            )

    def register_local_var(self, var: Any) -> None:
        super().register_local_var(var)
        if self._agg_helper is not None:
            self._agg_helper.register_local_var(var)

    @do_not_convert
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The pairs (gradient, variable) of the wrapped optimizer, the gradients reduced over all ranks.

        Args:
            As of tf.compat.v1.train.Optimizer.

        Raises:
            ValueError: see DistributedOptimizer().
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return []
        grads, variables = map(list, zip(*pairs))
        if self._agg_helper is not None:
            _check_references(variables)
            return list(zip(self._agg_helper.compute_gradients(grads, variables), variables))
        share_of = self.process_set if self._scale_local_gradients else None
        grads = reduce_shared(self._allreduce_grads, grads, variables, self._local_vars, share_of)
        return list(zip(grads, variables))

    @do_not_convert
    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Apply gradients by the wrapped optimizer, in each `backward_passes_per_step`-th pass.

        Args:
            As of tf.compat.v1.train.Optimizer: grads_and_vars, global_step=None, name=None.
        """
        if self._agg_helper is None:
            return self._optimizer.apply_gradients(*args, **kwargs)
        if args:
            args = (list(args[0]), *args[1:])
        elif "grads_and_vars" in kwargs:
            kwargs["grads_and_vars"] = list(kwargs["grads_and_vars"])
        return self._agg_helper.apply_gradients(
            lambda: self._optimizer.apply_gradients(*args, **kwargs), self, *args, **kwargs
        )


def _check_references(variables: list[Any]) -> None:
    """Raises ValueError for variables that cannot be assigned to in every N-th pass only."""
    old = [v.name for v in variables if v.dtype._is_ref_dtype]
    if old and tf.compat.v1.control_flow_v2_enabled():
        raise ValueError(
            f"backward_passes_per_step > 1 cannot be used with variables that are no resources ({', '.join(old[:4])}) "
            "while TensorFlow makes conditions as functions. Make the variables with use_resource=True, or call "
            "tf.compat.v1.disable_control_flow_v2() before the graph is built."
        )


class _DistributedAdasumOptimizer(WrappedOptimizer):
    """Lets the wrapped optimizer make `backward_passes_per_step` steps with this rank's gradients. Then it replaces the
    sum of their changes of the variables by the Adasum of all ranks' changes.

    Adasum is meant for changes of the weights rather than for gradients: a change contains the learning rate and the
    optimizer's own arithmetic.
    """

    def __init__(
        self,
        optimizer: tf.compat.v1.train.Optimizer,
        name: str | None = None,
        use_locking: bool = False,
        device_dense: str = "",
        device_sparse: str = "",
        compression: type[Compressor] = Compression.none,
        backward_passes_per_step: int = 1,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        name = name or f"DistributedDelta{type(optimizer).__name__}"
        super().__init__(optimizer, name, use_locking, process_set)
        self._backward_passes_per_step = backward_passes_per_step
        # The graph, the counter of passes, and the variables' values before the first of several passes.
        self._pass_variables: Any = None
        self._combine = GradientReduction(
            name, device_dense, device_sparse, compression, op=Adasum, process_set=process_set
        )

    @do_not_convert
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """As of the wrapped optimizer: the gradients of this rank, not reduced."""
        return list(self._optimizer.compute_gradients(*args, **kwargs))

    @do_not_convert
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Make a step of the wrapped optimizer. Each `backward_passes_per_step`-th step combines the ranks' changes.

        Args:
            As of tf.compat.v1.train.Optimizer.
        """
        pairs = list(grads_and_vars)
        if not takes_part(self.process_set):
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        # All variables take part, so that the ranks agree: one without a gradient here has the change zero.
        variables = [v for _, v in pairs if ref(v) not in self._local_vars]
        waits = [tf.convert_to_tensor(g) for g, _ in pairs if g is not None]
        with tf.control_dependencies(waits):
            counter, starts = self._counter_and_starts(variables)
        with tf.control_dependencies(starts):
            applied = self._optimizer.apply_gradients(pairs, global_step=global_step)
        with tf.control_dependencies([] if applied is None or tf.executing_eagerly() else [applied]):
            if counter is None:
                combined = self._replace(variables, starts)
            else:
                full = tf.equal(counter.assign_add(1), self._backward_passes_per_step)
                combined = tf.cond(
                    full, lambda: self._replace(variables, starts, counter), lambda: _true_after(None)
                )
        if tf.executing_eagerly():
            return combined
        return tf.group(combined, name=name or self.get_name())

    def _counter_and_starts(self, variables: list[Any]) -> tuple[Any, list[Any]]:
        """The counter of passes (None for one pass per step), and the variables' values before the first pass."""
        if self._backward_passes_per_step == 1:
            return None, [_copy(v) for v in variables]
        with tf.init_scope():
            graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
            if self._pass_variables is None or self._pass_variables[0] is not graph:
                counter = _local_variable(f"{self.get_name()}/passes", [], tf.int32)
                starts = [
                    _local_variable(f"{self.get_name()}/delta_start_{i}", v.shape, v.dtype.base_dtype)
                    for i, v in enumerate(variables)
                ]
                self._pass_variables = graph, counter, starts
        _, counter, kept = self._pass_variables
        first = tf.equal(counter.read_value(), 0)
        return counter, [
            tf.cond(first, lambda k=k, v=v: tf.identity(k.assign(_copy(v))), lambda k=k: k.read_value())
            for k, v in zip(kept, variables)
        ]

    def _replace(self, variables: list[Any], starts: list[Any], counter: Any = None) -> tf.Tensor:
        """Give the variables their values in `starts` plus the combined changes. Returns True, once that is done."""
        changes = [_read(v) - start for v, start in zip(variables, starts)]
        sums = [start + change for start, change in zip(starts, self._combine(changes, variables))]
        assigned = [tf.compat.v1.assign(v, value) for v, value in zip(variables, sums)]
        if counter is not None:
            assigned.append(counter.assign(0))
        return _true_after(None if tf.executing_eagerly() else tf.group(*assigned))


def _read(variable: Any) -> tf.Tensor:
    return variable.read_value() if hasattr(variable, "read_value") else tf.identity(variable)


def _copy(variable: Any) -> tf.Tensor:
    """A copy of the present value. An assignment to a reference variable also changes tensors that were read from it."""
    if hasattr(variable, "handle"):
        return variable.read_value()
    return tf.raw_ops.DeepCopy(x=variable)


def _is_keras(optimizer: Any) -> bool:
    """Whether it is an optimizer of one of the packages of Keras. Imports none of them."""
    return any(
        cls.__module__.split(".")[0] in ("keras", "tf_keras")
        or cls.__module__.startswith("tensorflow.python.keras")
        for cls in type(optimizer).__mro__
    )


@do_not_convert
def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer that reduces gradients over all ranks before `optimizer` applies them.

        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(0.001 * hvd.size()))
        step = optimizer.minimize(loss)

    Args:
        optimizer: of tf.compat.v1.train, or of Keras: then horovod.tensorflow.keras.DistributedOptimizer() is called.
        name: of the optimizer, and the beginning of its operations' names; ``Distributed<class>`` by default.
        use_locking: of tf.compat.v1.train.Optimizer; not used by Keras.
        device_dense, device_sparse: names of the devices to reduce tensors and tf.IndexedSlices on; empty: TensorFlow's
            choice.
        compression: hvd.Compression.none, .fp16 or .bf16: the form in which gradients are sent.
        sparse_as_dense: reduce tf.IndexedSlices (of embeddings) as tensors, rather than gathering their rows.
        backward_passes_per_step: gradients of so many passes are added up before they are reduced and applied. Each
            pass counts as a step in global_step and in iterations.
        op: Average, Sum, or Adasum, which combines the changes of the ranks' own steps (tf.compat.v1 only).
        gradient_predivide_factor: f divides the gradients by f before the sum, and by size / f after it. Only with
            op=Average.
        average_aggregated_gradients: divide the sum of the passes by their number.
        num_groups: deprecated, see `groups`.
        groups: the number of groups in which the gradients are reduced, or lists of variables, each of which is a group;
            the gradients of other variables are reduced one by one.
        process_set: the ranks that take part. On other ranks gradients stay as they are.
        scale_local_gradients: divide gradients that register_local_var() keeps from being reduced by the number of ranks.

    Returns:
        An optimizer of the same kind. For tf.compat.v1 it has register_local_var(), and get_slot(), get_slot_names() and
        variables() return those of the wrapped optimizer.

    Raises:
        ValueError: `optimizer` is neither of tf.compat.v1 nor of Keras; arguments contradict each other. With
            `backward_passes_per_step` > 1 and an optimizer of tf.compat.v1 also: eager mode; tf.IndexedSlices without
            `sparse_as_dense`; variables that are not resource variables, while
            tf.compat.v1.control_flow_v2_enabled().
    """
    check_predivide_factor(gradient_predivide_factor, op)
    check_backward_passes(backward_passes_per_step)
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    groups = checked_groups(num_groups, groups)
    arguments = dict(locals())

    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if backward_passes_per_step > 1 and _executing_eagerly():
            raise ValueError(
                f"backward_passes_per_step={backward_passes_per_step} with an optimizer of tf.compat.v1 needs a graph, "
                "and eager execution is on. Use tf.keras.optimizers there, or call "
                "tf.compat.v1.disable_eager_execution()."
            )
        if op == Adasum:
            return _DistributedAdasumOptimizer(
                optimizer, name, use_locking, device_dense, device_sparse,
                compression, backward_passes_per_step, process_set,
            )  # fmt: skip
        if op not in (Average, Sum):
            warnings.warn(f"DistributedOptimizer reduces gradients with op={op}.", stacklevel=2)
        del arguments["num_groups"]
        return _DistributedOptimizer(**arguments)
    if _is_keras(optimizer):
        if op == Adasum:
            raise ValueError(
                "op == Adasum is not supported yet with Keras optimizers. Use "
                "hvd.DistributedGradientTape(op=hvd.Adasum), or an optimizer of tf.compat.v1.train."
            )
        # horovod.tensorflow.keras is built on this package. It is imported here because it loads Keras.
        from horovod.tensorflow.keras import DistributedOptimizer as KerasDistributedOptimizer

        del arguments["num_groups"], arguments["use_locking"]
        return KerasDistributedOptimizer(**arguments)
    raise ValueError(
        "Provided optimizer doesn't inherit from either legacy TensorFlow or Keras optimizer: "
        f"{optimizer!r}. Pass one of tf.compat.v1.train or of tf.keras.optimizers."
    )


# Gradient tapes whose gradients are reduced over all ranks.


class _DistributedTape:
    """The methods of a distributed tape, in front of those of the wrapped tape's class. Their state is in slots, because
    the wrapped tape and the distributed one share their attributes."""

    __slots__ = ("_hvd_local", "_hvd_reduce", "_hvd_scale_local")
    _hvd_local: set[Any]
    _hvd_reduce: GradientReduction
    _hvd_scale_local: bool

    @do_not_convert
    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of a variable (or of a list of them) as this rank computes it."""
        self._hvd_local.update(ref(v) for v in tf.nest.flatten(source))

    @do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The gradients of `target`, reduced over all ranks. All ranks must call it, in the same order.

        Args:
            target, sources, output_gradients, unconnected_gradients: as in tf.GradientTape.
            use_generic_names: see get_local_and_global_gradients().

        Returns:
            Gradients in the structure of `sources`, as from tf.GradientTape. None for a source that `target` does not
            depend on. Which gradients are None, and which are tf.IndexedSlices, must be the same on all ranks. A source
            that was given to register_local_source() has this rank's gradient, divided by the number of ranks if
            `scale_local_gradients` is set.

        Raises:
            The errors of hvd.allreduce(). tf.errors.FailedPreconditionError also if only some ranks have a gradient, or
            have it as tf.IndexedSlices: in the message shape [0] then means None, and [0, 0] tf.IndexedSlices.
        """
        flat = tf.nest.flatten(sources)
        grads = self._hvd_plain().gradient(target, flat, output_gradients, unconnected_gradients)
        grads = reduce_shared(
            lambda grads, variables: self._hvd_reduce(grads, variables, use_generic_names),
            grads,
            flat,
            self._hvd_local,
            self._hvd_reduce.process_set if self._hvd_scale_local else None,
        )
        return tf.nest.pack_sequence_as(sources, grads) if tf.nest.is_nested(sources) else grads[0]

    @do_not_convert
    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """As gradient(), but separates the sources that are not reduced from the others.

        Args:
            use_generic_names: name the operations ``grad_0``, ``grad_1``, ... in each function.

        Returns:
            Two lists of pairs (source, gradient): first the gradients that are not reduced, then the reduced ones.
        """
        flat = tf.nest.flatten(sources)
        pairs = list(zip(flat, self.gradient(target, flat, output_gradients, use_generic_names)))
        local = [ref(source) in self._hvd_local for source in flat]
        return [p for p, is_local in zip(pairs, local) if is_local], [
            p for p, is_local in zip(pairs, local) if not is_local
        ]

    @do_not_convert
    def jacobian(self, *args: Any, **options: Any) -> Any:
        """As tf.GradientTape: for this rank's `target`; nothing is reduced."""
        return self._hvd_plain().jacobian(*args, **options)

    @do_not_convert
    def batch_jacobian(self, *args: Any, **options: Any) -> Any:
        """As tf.GradientTape: for this rank's `target`; nothing is reduced."""
        return self._hvd_plain().batch_jacobian(*args, **options)

    def _hvd_plain(self) -> tf.GradientTape:
        """This tape as an instance of the class that was wrapped."""
        plain_class: Any = type(self).__mro__[2]
        tape = plain_class.__new__(plain_class)
        tape.__dict__ = self.__dict__
        return tape


@do_not_convert
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """A tape like `gradtape` whose gradient() reduces over all ranks.

        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(model(x, training=True), y)
        gradients = tape.gradient(loss, model.trainable_variables)

    It shares what `gradtape` has recorded, and both may be used; wrap it before, within or after the ``with`` block.

    Args:
        gradtape: a tf.GradientTape.
        op: Average, Sum or Adasum (or Min, Max, Product).
        scale_local_gradients: divide gradients that are not reduced by the number of ranks.
        The others are those of DistributedOptimizer().

    Returns:
        An instance of a class with the name of `gradtape`'s class, derived from it.

    Raises:
        ValueError: bad `groups`, or `gradient_predivide_factor` with an op other than Average.
    """
    _prepare_keras()
    check_predivide_factor(gradient_predivide_factor, op)
    groups, name = checked_groups(num_groups, groups), "DistributedGradientTape"
    reduction = from_arguments(GradientReduction, locals())
    plain_class: Any = type(gradtape)
    distributed_class: Any = _distributed_class(plain_class)
    tape = distributed_class.__new__(distributed_class)
    tape.__dict__ = gradtape.__dict__
    tape._hvd_reduce = reduction
    tape._hvd_local = set()
    tape._hvd_scale_local = scale_local_gradients
    return tape


def _prepare_keras() -> None:
    """Let `optimizer.variables` of Keras 3 be called, as programs with a tape do. Does not import Keras."""
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "optimizers"):  # the import of Keras has ended
        patches.let_variables_be_called(keras)


@functools.cache
def _distributed_class(plain_class: type) -> type:
    return type(plain_class.__name__, (_DistributedTape, plain_class), {"__doc__": plain_class.__doc__})


@do_not_convert
def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """DistributedGradientTape() for models in which some layers are different on each rank.

    Args:
        local_layers: a Keras layer, or a list of them, whose trainable weights' gradients are not reduced.
        The others are those of DistributedGradientTape().

    Raises:
        ValueError: as DistributedGradientTape(); or `local_layers` is neither a layer nor a list of layers.
    """
    arguments = dict(locals())
    del arguments["local_layers"]
    tape: Any = DistributedGradientTape(**arguments)
    for layer in list_of_layers(local_layers):
        tape.register_local_source([plain_variable(v) for v in layer.trainable_weights])
    return tape
