"""Operations inside of functions that XLA compiles, ``jit_compile=True``."""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util


def compiles(graph: tf.Graph) -> bool:
    """Whether XLA will compile what is made in `graph` now."""
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def perform(kind: str, tensors: Any, attributes: dict[str, Any], name: str) -> Any:
    raise NotImplementedError(f"{kind} inside jit_compile=True")
