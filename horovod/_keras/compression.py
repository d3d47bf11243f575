"""Gradient compression for Keras on all backends: tensors are sent in another form. Any thread.

A compressor is a class with two static methods, so that programs can bring their own:
``compress(tensor) -> (tensor, context)`` and ``decompress(tensor, context) -> tensor``.
"""

import sys
from typing import Any

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """Interface of a compressor."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send, and the context that `decompress` needs."""
        raise NotImplementedError("A Compressor must define compress(tensor).")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns `tensor` in its original form."""
        raise NotImplementedError("A Compressor must define decompress(tensor, ctx).")


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


def _cast(tensor: Any, dtype: str | Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return tensor.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    import tensorflow as tf

    return tf.cast(tensor, dtype)


class _CastCompressor(Compressor):
    """Sends float32 and float64 tensors in a narrower dtype, and other tensors as they are."""

    wire_dtype: str

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        name = getattr(tensor.dtype, "name", None) or str(tensor.dtype).removeprefix("torch.")
        return (
            (_cast(tensor, cls.wire_dtype), tensor.dtype)
            if name in ("float32", "float64")
            else (tensor, None)
        )

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else _cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """Sends float32 and float64 as float16."""

    wire_dtype = "float16"


class BF16Compressor(_CastCompressor):
    """Sends float32 and float64 as bfloat16: the range of float32 at half the volume."""

    wire_dtype = "bfloat16"


class Compression:
    """The compressors for the `compression` argument of operations and of DistributedOptimizer."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
