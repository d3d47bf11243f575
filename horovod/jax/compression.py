"""Gradient compression: a smaller array is sent in place of the caller's. Pure functions of one array; any thread."""

from typing import Any

import jax.numpy as jnp

from horovod.common.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _JaxCastCompressor(CastCompressor):
    @staticmethod
    def _is_wider(tensor: Any, dtype: Any) -> bool:
        return (
            jnp.issubdtype(tensor.dtype, jnp.floating) and tensor.dtype.itemsize > jnp.dtype(dtype).itemsize
        )

    @staticmethod
    def _cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class FP16Compressor(_JaxCastCompressor):
    """Sends floating point arrays as float16."""

    wire_dtype = jnp.float16


class BF16Compressor(_JaxCastCompressor):
    """Sends floating point arrays as bfloat16: the range of float32 at half the volume."""

    wire_dtype = jnp.bfloat16


class Compression:
    """The compressors that exist, for the `compression` argument of operations and optimizers."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
