"""The base classes of distributed optimizers of Keras 2 and Keras 3, by which other code recognizes them."""

from types import ModuleType
from typing import Any

from horovod._keras.backends import Backend
from horovod._keras.options import Options


class Distributed:
    """Base class of distributed optimizers. The class of an optimizer has its options, so that ``from_config`` makes
    optimizers with the same options; except for groups of variables and local layers, which belong to one model."""

    _hvd_keras: ModuleType
    _hvd_options: Options
    _hvd_backend: Backend
    _HAS_AGGREGATE_GRAD = True

    @property
    def _agg_helper(self) -> Any:
        """The object that sums the gradients of several passes; None for one pass per step."""
        return self._hvd if self._hvd_options.backward_passes_per_step > 1 else None


class DistributedScaler:
    """Base class of optimizers that scale losses and whose inner optimizer is a Distributed one."""

    _HAS_AGGREGATE_GRAD = True

    def register_local_var(self, var) -> None:
        """Do not reduce the gradient of a variable."""
        self.inner_optimizer.register_local_var(var)
