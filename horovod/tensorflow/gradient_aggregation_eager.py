"""Adding up the gradients of several backward passes before they are reduced, in eager mode and in tf.function."""

from collections.abc import Callable
from typing import Any

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper

__all__ = ["LocalGradientAggregationHelperEager"]


class LocalGradientAggregationHelperEager(LocalGradientAggregationHelper):
    """LocalGradientAggregationHelper for Keras optimizers outside of graphs of tf.compat.v1.

    Args:
        backward_passes_per_step, allreduce_func, sparse_as_dense, average_aggregated_gradients, process_set,
            scale_local_gradients: as there.

    Attributes:
        counter: as there.
        locally_aggregated_grads: {place in the list of gradients: variable}.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., Any],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            rank=0,
            optimizer_type=self._OPTIMIZER_TYPE_KERAS,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
        self.locally_aggregated_grads: dict[int, Any] = {}

    def _keep(self, sums: list[Any]) -> None:
        self.locally_aggregated_grads = dict(zip(self._places, sums))
