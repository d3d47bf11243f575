"""Adding up the gradients of several backward passes before they are reduced (``backward_passes_per_step``).

For optimizers of tf.compat.v1 and of Keras, in graphs and in functions; the eager form is in gradient_aggregation_eager.
The sums are local variables: no checkpoint contains them, and no broadcast sends them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.arguments import check_backward_passes
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._gradients import reduce_shared
from horovod.tensorflow.util import do_not_convert, ref

__all__ = ["LocalGradientAggregationHelper"]


class LocalGradientAggregationHelper:
    """Lets each N-th step reduce and apply the sum of the gradients of N backward passes.

    Args:
        backward_passes_per_step: N, an integer > 0.
        allreduce_func: reduces a list of gradients: called with the gradients and their variables.
        sparse_as_dense: make tf.IndexedSlices tensors; otherwise they are an error.
        average_aggregated_gradients: divide the sum of the passes by N.
        rank: this process's rank; for the names of variables.
        optimizer_type: _OPTIMIZER_TYPE_KERAS or _OPTIMIZER_TYPE_LEGACY: passes that apply nothing are counted in the
            optimizer's iterations, or in the global step.
        process_set: the ranks that reduce.
        scale_local_gradients: divide gradients that are not reduced by the number of ranks.
        name: for the names of variables.

    Attributes:
        counter: int32 variable, the passes since the last reduction; None before the first pass.
        locally_aggregated_grads: the sums since then, as variables, one for each gradient that is not None.

    Raises:
        ValueError: `backward_passes_per_step` is not > 0.
    """

    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., Any],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: str,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        check_backward_passes(backward_passes_per_step)
        self.backward_passes_per_step = backward_passes_per_step
        self.allreduce_func = allreduce_func
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.rank = rank
        self.optimizer_type = optimizer_type
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.name = name
        self.counter: Any = None
        self.locally_aggregated_grads: Any = []
        self._sums: list[Any] = []
        self._places: list[int] = []  # of the gradients that are not None
        self._graph: Any = None
        self._local_vars: set[Any] = set()

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of this variable (or of a list of them)."""
        self._local_vars.update(ref(v) for v in tf.nest.flatten(var))

    @do_not_convert
    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Add the gradients of one pass.

        Args:
            grads: tensors, or None; the same elements are None in each pass.
            vars: their variables.

        Returns:
            In each N-th pass the reduced sums, which are then set to zero; zeros in the other passes. None where `grads`
            has None. With N = 1 the reduced `grads`.

        Raises:
            ValueError: tf.IndexedSlices without `sparse_as_dense`; other elements are None than before. The errors
                of `allreduce_func`.
        """
        grads, vars = list(grads), list(vars)
        if self.backward_passes_per_step == 1:
            return self._reduced(grads, vars)
        grads = [self._dense(g) for g in grads]
        places = [i for i, g in enumerate(grads) if g is not None]
        self._make_variables([grads[i] for i in places], [vars[i] for i in places], places)
        sums = self._sums
        added = [total.assign_add(grads[i]) for total, i in zip(sums, places)]
        counted = self.counter.assign_add(1)
        with tf.control_dependencies([tf.convert_to_tensor(t) for t in (*added, counted)]):
            full = tf.equal(self.counter.read_value(), self.backward_passes_per_step)
        present = tf.cond(
            full,
            lambda: self._finish(sums, [vars[i] for i in places]),
            lambda: [tf.zeros_like(total.read_value()) for total in sums],
        )
        # tf.cond returns the element of a list with one element.
        present = present if isinstance(present, (list, tuple)) else [present]
        result: list[Any] = [None] * len(grads)
        for i, gradient in zip(places, present):
            result[i] = gradient
        return result

    @do_not_convert
    def apply_gradients(
        self, apply_grads_closure: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call the closure in each N-th pass; count a step in the other passes.

        Args:
            apply_grads_closure: applies the gradients; returns an operation, or a tensor.
            optimizer: for Keras, the optimizer whose iterations are counted.
            args, kwargs: the arguments of the wrapped apply_gradients(): the pairs (gradient, variable) come first;
                `global_step`.
        """
        if self.backward_passes_per_step == 1:
            return apply_grads_closure()
        pairs = list(args[0]) if args else list(kwargs.get("grads_and_vars", ()))
        global_step = args[1] if len(args) > 1 else kwargs.get("global_step")
        if global_step is None:
            global_step = tf.compat.v1.train.get_global_step()

        def applied() -> tf.Tensor:
            return _true_after(apply_grads_closure())

        def counted() -> tf.Tensor:
            if self.optimizer_type == self._OPTIMIZER_TYPE_LEGACY:
                return _true_after(None if global_step is None else tf.compat.v1.assign_add(global_step, 1))
            iterations = getattr(optimizer, "_iterations", None)
            return _true_after(None if iterations is None else iterations.assign_add(1))

        with tf.control_dependencies([tf.convert_to_tensor(g) for g, _ in pairs if g is not None]):
            applies = tf.equal(self.counter.read_value(), 0)
        outcome = tf.cond(applies, applied, counted)
        return outcome if tf.executing_eagerly() else outcome.op

    def _dense(self, gradient: Any) -> Any:
        """The gradient as a tensor. Raises ValueError for tf.IndexedSlices without `sparse_as_dense`."""
        if isinstance(gradient, tf.IndexedSlices):
            if not self.sparse_as_dense:
                raise ValueError(
                    "tf.IndexedSlices are not supported when backward_passes_per_step > 1 and sparse_as_dense is False. "
                    "Pass sparse_as_dense=True."
                )
            return tf.convert_to_tensor(gradient)
        return gradient

    def _make_variables(self, grads: list[Any], vars: list[Any], places: list[int]) -> None:
        """Make the counter and the sums at the first pass, and again for another graph of tf.compat.v1."""
        with tf.init_scope():
            eagerly = tf.executing_eagerly()
            graph = None if eagerly else tf.compat.v1.get_default_graph()
        if self.counter is not None and graph is self._graph:
            if places != self._places:
                raise ValueError(
                    f"backward_passes_per_step={self.backward_passes_per_step} adds up the gradients of several passes, "
                    f"but the variables that have one differ between passes: before they were numbers {self._places} "
                    f"of the list, and now {places}."
                )
            return
        self._graph, self._places = graph, places
        shapes = [v.shape if g.shape.num_elements() is None else g.shape for g, v in zip(grads, vars)]
        with tf.init_scope():
            prefix = f"aggregation_variables_{self.name}{self.rank}"
            self.counter = _local_variable(f"{prefix}/aggregation_counter", [], tf.int32)
            sums = [
                _local_variable(f"{prefix}/grad_aggregation_variable_{i}", shape, g.dtype)
                for i, shape, g in zip(places, shapes, grads)
            ]
        self._sums = sums
        self._keep(sums)

    def _keep(self, sums: list[Any]) -> None:
        self.locally_aggregated_grads = sums

    def _finish(self, sums: list[Any], vars: list[Any]) -> list[Any]:
        """The reduced sums. Sets the sums and the counter to zero."""
        totals = [total.read_value() for total in sums]
        reduced = self._reduced(totals, vars)
        if self.average_aggregated_gradients:
            reduced = [g / tf.cast(self.backward_passes_per_step, g.dtype) for g in reduced]
        with tf.control_dependencies(reduced):
            cleared = [total.assign(tf.zeros_like(total)) for total in sums]
            cleared.append(self.counter.assign(0))
        with tf.control_dependencies([tf.convert_to_tensor(c) for c in cleared]):
            return [tf.identity(g) for g in reduced]

    def _reduced(self, grads: list[Any], vars: list[Any]) -> list[Any]:
        share_of = self.process_set if self.scale_local_gradients else None
        return reduce_shared(self.allreduce_func, grads, vars, self._local_vars, share_of)


def _local_variable(name: str, shape: Any, dtype: Any) -> Any:
    if tf.executing_eagerly():
        return tf.Variable(tf.zeros(shape, dtype), trainable=False, name=name)
    return tf.compat.v1.Variable(
        lambda: tf.zeros(shape, dtype),
        trainable=False,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        name=name,
        use_resource=True,
    )


def _true_after(executed: Any) -> tf.Tensor:
    """True, once `executed` (an operation, a tensor or None) has been executed. Both branches of a tf.cond can return
    it."""
    if executed is None or tf.executing_eagerly():
        return tf.constant(True)
    with tf.control_dependencies([executed]):
        return tf.constant(True)
