"""What optimizers of both Keras 2 and Keras 3 are once they are distributed, and how they are known as such."""

from types import ModuleType
from typing import Any

from horovod._keras.backends import Backend
from horovod._keras.options import Options


class Distributed:
    """Mark of a distributed optimizer. The class of each one says what it was asked for, so that what its
    ``from_config`` makes is distributed alike; but for groups of variables and local layers, which are of one model."""

    _hvd_keras: ModuleType
    _hvd_options: Options
    _hvd_backend: Backend
    _HAS_AGGREGATE_GRAD = True

    @property
    def _agg_helper(self) -> Any:
        """What sums gradients of several passes, where there are several."""
        return self._hvd if self._hvd_options.backward_passes_per_step > 1 else None


class DistributedScaler:
    """Mark of an optimizer that scales losses, whose inner optimizer is a Distributed one."""

    _HAS_AGGREGATE_GRAD = True

    def register_local_var(self, var) -> None:
        """Leave a variable to each rank: its gradient is not reduced."""
        self.inner_optimizer.register_local_var(var)
