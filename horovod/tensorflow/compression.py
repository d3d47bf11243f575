"""Gradient compression: tensors are sent in another form. Pure functions of one tensor; eager and in graphs.

A compressor is a class with two static methods, so that programs can bring their own:
``compress(tensor) -> (tensor, context)`` and ``decompress(tensor, context) -> tensor``.
"""

import tensorflow as tf

from horovod.common.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _TensorFlowCastCompressor(CastCompressor):
    @staticmethod
    def _is_wider(tensor: tf.Tensor, dtype: tf.DType) -> bool:
        return tensor.dtype.is_floating and tensor.dtype.size > dtype.size

    @staticmethod
    def _cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        return tf.cast(tensor, dtype)


class FP16Compressor(_TensorFlowCastCompressor):
    """Sends floating point tensors as float16."""

    wire_dtype = tf.float16


class BF16Compressor(_TensorFlowCastCompressor):
    """Sends floating point tensors as bfloat16: the range of float32 at half the volume."""

    wire_dtype = tf.bfloat16


class Compression:
    """The compressors for the `compression` argument of operations, tapes and optimizers."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
