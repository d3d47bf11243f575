"""Gradient compression for Keras on all backends: tensors are sent in another form. Any thread.

A compressor is a class with two static methods, so that programs can bring their own:
``compress(tensor) -> (tensor, context)`` and ``decompress(tensor, context) -> tensor``.
"""

import sys
from typing import Any

from horovod.common.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _KerasCastCompressor(CastCompressor):
    """Sends float32 and float64 tensors in a narrower dtype, and other tensors as they are."""

    wire_dtype: str

    @staticmethod
    def _is_wider(tensor: Any, dtype: str) -> bool:
        name = getattr(tensor.dtype, "name", None) or str(tensor.dtype).removeprefix("torch.")
        return name in ("float32", "float64")

    @staticmethod
    def _cast(tensor: Any, dtype: str | Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(tensor, torch.Tensor):
            return tensor.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        jax = sys.modules.get("jax")
        if jax is not None and isinstance(tensor, jax.Array):  # in a compiled step too
            return tensor.astype(dtype)
        import tensorflow as tf

        return tf.cast(tensor, dtype)


class FP16Compressor(_KerasCastCompressor):
    """Sends float32 and float64 as float16."""

    wire_dtype = "float16"


class BF16Compressor(_KerasCastCompressor):
    """Sends float32 and float64 as bfloat16: the range of float32 at half the volume."""

    wire_dtype = "bfloat16"


class Compression:
    """The compressors for the `compression` argument of operations and of DistributedOptimizer."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
