"""The base class of the distributed optimizers of tf.compat.v1."""

from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet
from horovod.tensorflow.util import ref


class WrappedOptimizer(tf.compat.v1.train.Optimizer):
    """An optimizer of tf.compat.v1 around another one, whose slots and variables it reports as its own."""

    def __init__(
        self, optimizer: tf.compat.v1.train.Optimizer, name: str, use_locking: bool, process_set: ProcessSet
    ) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self.process_set = process_set
        self._local_vars: set = set()

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
