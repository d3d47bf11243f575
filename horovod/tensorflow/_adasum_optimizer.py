"""The distributed optimizer of tf.compat.v1 with op=Adasum.

Each rank makes its own step, and Adasum combines the changes. Adasum is meant for changes of the weights rather than
for gradients: a change contains the learning rate and the optimizer's own arithmetic.
"""

from typing import Any

import tensorflow as tf

from horovod.common.arguments import Adasum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._autograph import plain
from horovod.tensorflow._gradients import _make_allreduce_grads_fn, takes_part
from horovod.tensorflow._wrapped_optimizer import WrappedOptimizer
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.gradient_aggregation import _local_variable, _true_after
from horovod.tensorflow.util import ref


class _DistributedAdasumOptimizer(WrappedOptimizer):
    """Lets the wrapped optimizer make `backward_passes_per_step` steps with this rank's gradients. Then it replaces the
    sum of their changes of the variables by the Adasum of all ranks' changes."""

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
        self._combine = _make_allreduce_grads_fn(
            name, device_dense, device_sparse, compression, False, Adasum, process_set=process_set
        )

    @plain
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """As of the wrapped optimizer: the gradients of this rank, not reduced."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    @plain
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

    def _counter_and_starts(self, variables: list) -> tuple[Any, list]:
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

    def _replace(self, variables: list, starts: list, counter: Any = None) -> tf.Tensor:
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
