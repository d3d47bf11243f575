"""Which exceptions of TensorFlow may be a failed operation. Any thread."""

import tensorflow as tf

__all__ = ["may_be_of_operation"]

_MISTAKES = (tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError)


def may_be_of_operation(error: Exception) -> bool:
    """Whether an exception may be the end of the job, as an operation or a function of TensorFlow raises it."""
    return isinstance(error, tf.errors.OpError) and not isinstance(error, _MISTAKES)
