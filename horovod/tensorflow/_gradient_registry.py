"""The gradient functions of the operations, by the operation's type.

``_op_gradients`` fills the table when it is imported; ``_xla`` reads it when it makes an operation in a compiled
function. So neither of them imports the other.
"""

from collections.abc import Callable

import tensorflow as tf

from horovod.tensorflow._autograph import plain

GRADIENTS: dict[str, Callable] = {}


def register_gradient(kind: str) -> Callable[[Callable], Callable]:
    """A decorator that makes a function the gradient of the operation `kind`, in TensorFlow and in GRADIENTS."""

    def register(function: Callable) -> Callable:
        GRADIENTS[kind] = plain(function)
        return tf.RegisterGradient(kind)(function)

    return register
