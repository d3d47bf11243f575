"""Hooks for sessions of tf.compat.v1."""

from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.functions import broadcast_global_variables, require_same_variables
from horovod.tensorflow.util import on_device

__all__ = ["BroadcastGlobalVariablesHook"]


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Assigns the root's values to all global variables after a session has been made.

    So all ranks begin with the same values, whether the root has initialized its variables or read a checkpoint. For
    tf.compat.v1.train.MonitoredTrainingSession.

    Args:
        root_rank: the GLOBAL rank whose values are sent.
        device: name of the device to broadcast on; empty: TensorFlow's choice.
        process_set: the ranks that take part.
    """

    def __init__(
        self, root_rank: int, device: str = "", process_set: ProcessSet = global_process_set
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.process_set = process_set
        self._variables: list = []
        self.bcast_op: Any = None
        self.device = device

    def begin(self) -> None:
        """Make the broadcast operation, before the graph is finalized."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with on_device(self.device):
                self._variables = tf.compat.v1.global_variables()
                self.bcast_op = broadcast_global_variables(self.root_rank, process_set=self.process_set)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the broadcast operation, if the ranks have the same variables. Raises as broadcast_variables()."""
        require_same_variables(
            "BroadcastGlobalVariablesHook", self._variables, "broadcast_hook", self.process_set
        )
        session.run(self.bcast_op)
