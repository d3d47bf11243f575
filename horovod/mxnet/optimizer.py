"""DistributedOptimizer for Module and for loops that call an updater: gradients are averaged before each update."""

from typing import Any

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet._gradients import GradientReducer
from horovod.mxnet._load import mx
from horovod.mxnet.compression import Compression

__all__ = ["DistributedOptimizer"]


class DistributedOptimizer(mx.optimizer.Optimizer):
    """An MXNet optimizer that averages gradients over all ranks, and then updates as the wrapped optimizer does.

    The two share their attributes: a learning rate that is set on one is that of the other. Pass it to
    ``Module.fit(..., kvstore=None, optimizer=...)``. With Gluon use DistributedTrainer.

    Args:
        optimizer: the wrapped optimizer.
        gradient_predivide_factor: gradients are divided by it before the sum, and multiplied by it afterwards.
        num_groups: the gradients that MXNet hands over in one call are reduced in so many groups; 0: each by itself.
        process_set: the ranks that take part. Each of them calls the update of the same indices.

    Raises:
        ValueError: an argument makes no sense.
    """

    # Outside of the attributes, which are the wrapped optimizer's.
    __slots__ = ("_arguments", "_optimizer", "_reducer")

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise ValueError(
                f"DistributedOptimizer wraps an mx.optimizer.Optimizer, but found {type(optimizer).__name__}: "
                f"{optimizer!r:.80}. Make one with mx.optimizer.create()."
            )
        self._arguments = (gradient_predivide_factor, num_groups, process_set)
        self._reducer = GradientReducer("DistributedOptimizer", Compression.none, *self._arguments)
        self._optimizer = optimizer
        self.__dict__ = optimizer.__dict__

    def __reduce__(self) -> tuple:
        return DistributedOptimizer, (self._optimizer, *self._arguments)

    def __getattr__(self, name: str) -> Any:
        if name in DistributedOptimizer.__slots__:  # not there yet
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def create_state(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradient, or the list of gradients, and update. Errors as in allreduce()."""
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As update(), with a copy of the weights in float32 where the wrapped optimizer has one."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def _average(self, index: Any, grad: Any) -> None:
        several = isinstance(index, (list, tuple))
        indices, gradients = (index, grad) if several else ([index], [grad])
        self._reducer.reduce(lambda: list(gradients), [f"gradient.{i}" for i in indices])
