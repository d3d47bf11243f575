"""Hooks for sessions of tf.compat.v1."""

from typing import Any

import tensorflow as tf

from horovod.tensorflow.functions import broadcast_global_variables
from horovod.tensorflow.util import on_device

__all__ = ["BroadcastGlobalVariablesHook"]


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Assigns the root's values to all global variables after a session has been made.

    So all ranks begin with the same values, whether the root has initialized its variables or read a checkpoint. For
    tf.compat.v1.train.MonitoredTrainingSession.

    Args:
        root_rank: the rank whose values are sent.
        device: name of the device to broadcast on; empty: TensorFlow's choice.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None
        self.device = device

    def begin(self) -> None:
        """Make the broadcast operation, before the graph is finalized."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with on_device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the broadcast operation."""
        session.run(self.bcast_op)
