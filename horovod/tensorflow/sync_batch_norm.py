"""SyncBatchNormalization: a Keras layer whose statistics are those of the batches of all ranks.

Each layer makes one reduction of two sums and a count in the forward pass, and one in the backward pass. The class is
made at first use, as it derives from the layer of the Keras (2 or 3) that tf.keras is.
"""

import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod.common.arguments import Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import _names
from horovod.tensorflow._gradients import takes_part
from horovod.tensorflow.mpi_ops import _allreduce
from horovod.tensorflow.util import do_not_convert

if TYPE_CHECKING:
    from tensorflow.keras.layers import BatchNormalization as _BatchNormalization
else:
    _BatchNormalization = object

__all__ = ["SyncBatchNormalization"]


def _moments_of_all(
    inputs: tf.Tensor, weights: tf.Tensor | None, axes: list[int], name: str | None, process_set: ProcessSet
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and biased variance over `axes` and over all ranks. Both have the dtype of `inputs`, and its shape with size 1
    in `axes`. Zeros if there are no elements.

    Args:
        inputs: float32 or float64.
        weights: the weight of each element, a tensor that broadcasts to `inputs`; None for 1.
    """
    dtype = inputs.dtype
    if weights is None:
        count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(inputs), axes)), tf.float64)
        local_mean = tf.math.divide_no_nan(tf.reduce_sum(inputs, axes, keepdims=True), tf.cast(count, dtype))
        squares = tf.reduce_sum(tf.math.squared_difference(inputs, local_mean), axes, keepdims=True)
    else:
        weights = tf.broadcast_to(tf.cast(weights, dtype), tf.shape(inputs))
        # The count is the same for each channel, as a mask has no channels.
        count = tf.reduce_max(tf.reduce_sum(weights, axes))
        local_mean = tf.math.divide_no_nan(tf.reduce_sum(inputs * weights, axes, keepdims=True), count)
        squares = tf.reduce_sum(tf.math.squared_difference(inputs, local_mean) * weights, axes, keepdims=True)
    # The subtraction below loses digits, so the sums are computed in float64.
    local_mean, squares, count = (tf.cast(t, tf.float64) for t in (local_mean, squares, count))
    parts = [count * local_mean, squares + count * tf.square(local_mean)]
    sent = tf.concat([tf.reshape(t, [-1]) for t in (*parts, count)], 0)
    received = _allreduce(sent, name=name, op=Sum, ignore_name_scope=True, process_set=process_set)
    total = received[-1]
    sums, squares = tf.split(received[:-1], 2)
    mean = tf.math.divide_no_nan(sums, total)
    variance = tf.maximum(tf.math.divide_no_nan(squares, total) - tf.square(mean), 0.0)
    shape = tf.shape(local_mean)
    return tuple(tf.cast(tf.reshape(t, shape), dtype) for t in (mean, variance))


class _SyncMethods(_BatchNormalization):
    """Batch normalization with the statistics of the batches of all ranks together.

    Output, moving averages and gradients equal those of tf.keras.layers.BatchNormalization (not fused) in one
    process that has the whole batch. The gradients of the layer's own weights are this rank's part, which a
    distributed optimizer or tape reduces. The ranks' batches may differ in length. Statistics are sent in float64.
    In training all ranks must call the layers of a model in the same order; in inference nothing is sent. Works
    eagerly, in functions, and with ``jit_compile``.

    Args:
        fused: False. Other values are refused, because TensorFlow's fused operation does not return its statistics.
        process_set: the ranks that take part. On other ranks the layer is an ordinary batch normalization.
        kwargs: those of tf.keras.layers.BatchNormalization.

    Raises:
        ValueError: `fused` is not False; in training: the process set is not registered.
    """

    def __init__(
        self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any
    ) -> None:
        if fused in (True, None):
            raise ValueError(
                "SyncBatchNormalization does not support fused=True. Leave it out, or pass fused=False."
            )
        if hasattr(type(self), "_fused_can_be_used"):  # in Keras 2 a base class has the argument
            kwargs["fused"] = False
        super().__init__(**kwargs)
        self._hvd_process_set = process_set

    @do_not_convert
    def _hvd_moments(self, inputs: Any, mask: Any, axes: Any, keep_dims: bool) -> tuple[tf.Tensor, tf.Tensor]:
        inputs = tf.convert_to_tensor(inputs)
        narrow = inputs.dtype.size < 4
        name = None if tf.executing_eagerly() else _names.call_prefix("SyncBatchNormalization")
        mean, variance = _moments_of_all(
            tf.cast(inputs, tf.float32) if narrow else inputs,
            None if mask is None else tf.expand_dims(mask, -1),
            list(axes),
            name,
            self._hvd_process_set,
        )
        if not keep_dims:
            mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
        if narrow:
            mean, variance = tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)
        return mean, variance


class _Keras2Methods(_SyncMethods):
    def _calculate_mean_and_var(
        self, inputs: Any, reduction_axes: Any, keep_dims: bool, mask: Any = None
    ) -> Any:
        if not takes_part(self._hvd_process_set):
            return super()._calculate_mean_and_var(inputs, reduction_axes, keep_dims, mask=mask)
        return self._hvd_moments(inputs, mask, reduction_axes, keep_dims)


class _Keras3Methods(_SyncMethods):
    def _moments(self, inputs: Any, mask: Any) -> Any:
        if not takes_part(self._hvd_process_set):
            return super()._moments(inputs, mask)
        return self._hvd_moments(inputs, mask, self._reduction_axes, False)


@functools.cache
def _layer_class() -> type:
    base = tf.keras.layers.BatchNormalization
    methods = _Keras2Methods if hasattr(base, "_calculate_mean_and_var") else _Keras3Methods
    members = {
        "__module__": __name__,
        "__qualname__": "SyncBatchNormalization",
        "__doc__": _SyncMethods.__doc__,
        "__init__": _SyncMethods.__init__,  # for inspect.signature(): the layer of Keras 3 has a __new__
    }
    return type("SyncBatchNormalization", (methods, base), members)


if TYPE_CHECKING:

    class SyncBatchNormalization(_SyncMethods):
        __doc__ = _SyncMethods.__doc__

else:

    def __getattr__(name: str) -> Any:
        if name == "SyncBatchNormalization":
            return _layer_class()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
