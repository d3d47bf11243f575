"""Gradient compression for Keras on all backends. See horovod.common.compression."""

import sys
from typing import Any

from horovod.common import compression
from horovod.common.compression import Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


def _cast(tensor: Any, dtype: Any) -> Any:
    """A tensor of any backend in another dtype (its name, or the dtype of a tensor). Imports no framework."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return tensor.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(tensor, jax.Array):  # in a compiled step too
        return tensor.astype(dtype)
    import tensorflow as tf

    return tf.cast(tensor, dtype)


class Compression(compression.Compression, cast=_cast, fp16="float16", bf16="bfloat16"):
    """The compressors for the `compression` argument of operations and of DistributedOptimizer."""


FP16Compressor, BF16Compressor = Compression.fp16, Compression.bf16
