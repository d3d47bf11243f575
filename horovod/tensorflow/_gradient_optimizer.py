"""The distributed optimizer of tf.compat.v1 that reduces gradients, for every reduction but Adasum."""

from typing import Any

import tensorflow as tf

from horovod.common.arguments import Average
from horovod.common.exports import rank
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._autograph import plain
from horovod.tensorflow._gradients import _make_allreduce_grads_fn, scaled_local
from horovod.tensorflow._wrapped_optimizer import WrappedOptimizer
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.util import ref


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
        super().__init__(optimizer, name, use_locking, process_set)
        self._scale_local_gradients = scale_local_gradients
        self._allreduce_grads = _make_allreduce_grads_fn(
            name,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            op,
            gradient_predivide_factor,
            groups,
            process_set,
        )
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

    @plain
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The pairs (gradient, variable) of the wrapped optimizer, the gradients reduced over all ranks.

        Args:
            As of tf.compat.v1.train.Optimizer.

        Raises:
            ValueError: see DistributedOptimizer().
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return pairs
        grads, variables = map(list, zip(*pairs))
        if self._agg_helper is not None:
            _check_references(variables)
            return list(zip(self._agg_helper.compute_gradients(grads, variables), variables))
        shared = [i for i, v in enumerate(variables) if ref(v) not in self._local_vars]
        reduced = self._allreduce_grads([grads[i] for i in shared], [variables[i] for i in shared])
        if self._scale_local_gradients:
            for i in set(range(len(grads))).difference(shared):
                grads[i] = scaled_local(grads[i], self.process_set)
        for i, gradient in zip(shared, reduced):
            grads[i] = gradient
        return list(zip(grads, variables))

    @plain
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


def _check_references(variables: list) -> None:
    """Raises ValueError for variables that cannot be assigned to in every N-th pass only."""
    old = [v.name for v in variables if v.dtype._is_ref_dtype]
    if old and tf.compat.v1.control_flow_v2_enabled():
        raise ValueError(
            f"backward_passes_per_step > 1 cannot be used with variables that are no resources ({', '.join(old[:4])}) "
            "while TensorFlow makes conditions as functions. Make the variables with use_resource=True, or call "
            "tf.compat.v1.disable_control_flow_v2() before the graph is built."
        )
