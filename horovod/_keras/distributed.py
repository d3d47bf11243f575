"""What optimizers of both Keras 2 and Keras 3 are once they are distributed, and how they are known as such."""

from types import ModuleType

from horovod._keras.backends import Backend
from horovod._keras.options import Options


class Distributed:
    """Mark of a distributed optimizer. The class of each one says what it was asked for, so that what its
    ``from_config`` makes is distributed alike."""

    _hvd_keras: ModuleType
    _hvd_options: Options
    _hvd_backend: Backend
    _HAS_AGGREGATE_GRAD = True


class DistributedScaler:
    """Mark of an optimizer that scales losses, whose inner optimizer is a Distributed one."""

    _HAS_AGGREGATE_GRAD = True

    def register_local_var(self, var) -> None:
        """Leave a variable to each rank: its gradient is not reduced."""
        self.inner_optimizer.register_local_var(var)
