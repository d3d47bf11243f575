"""Gradient compression for arrays of JAX, in programs and outside. See horovod.common.compression."""

from typing import Any

import jax.numpy as jnp

from horovod.common import compression
from horovod.common.compression import Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


def _cast(array: Any, dtype: Any) -> Any:
    return array.astype(dtype)


class Compression(compression.Compression, cast=_cast, fp16=jnp.float16, bf16=jnp.bfloat16):
    """The compressors for the `compression` argument of operations and optimizers."""


FP16Compressor: type[Compressor] = Compression.fp16
BF16Compressor: type[Compressor] = Compression.bf16
