"""Gradient compression: tensors are sent in another form. Pure functions of one tensor; eager and in graphs.

A compressor is a class with two static methods, so that programs can bring their own:
``compress(tensor) -> (tensor, context)`` and ``decompress(tensor, context) -> tensor``.
"""

from typing import Any

import tensorflow as tf

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """Interface of a compressor."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor to send, and the context that `decompress` needs."""
        raise NotImplementedError("A Compressor must define compress(tensor).")

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Returns `tensor` in its original form."""
        raise NotImplementedError("A Compressor must define decompress(tensor, ctx).")


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor


class _CastCompressor(Compressor):
    """Sends floating point tensors in a narrower dtype, and other tensors as they are."""

    wire_dtype: tf.DType

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        if not tensor.dtype.is_floating or tensor.dtype.size <= cls.wire_dtype.size:
            return tensor, None
        return tf.cast(tensor, cls.wire_dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating point tensors as float16."""

    wire_dtype = tf.float16


class BF16Compressor(_CastCompressor):
    """Sends floating point tensors as bfloat16: the range of float32 at half the volume."""

    wire_dtype = tf.bfloat16


class Compression:
    """The compressors for the `compression` argument of operations, tapes and optimizers."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
