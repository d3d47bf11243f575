"""Gradient compression: a smaller tensor is sent in place of the caller's. Pure functions of one tensor; any thread.

A compressor is a class with two static methods, so that programs can bring their own:
``compress(tensor) -> (tensor, context)`` and ``decompress(tensor, context) -> tensor``.
"""

import torch

from horovod.common.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _TorchCastCompressor(CastCompressor):
    @staticmethod
    def _is_wider(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
        return tensor.dtype.is_floating_point and torch.finfo(tensor.dtype).bits > torch.finfo(dtype).bits

    @staticmethod
    def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype)


class FP16Compressor(_TorchCastCompressor):
    """Sends floating point tensors as float16."""

    wire_dtype = torch.float16


class BF16Compressor(_TorchCastCompressor):
    """Sends floating point tensors as bfloat16: the range of float32 at half the volume."""

    wire_dtype = torch.bfloat16


class Compression:
    """The compressors that exist, for the `compression` argument of operations and of DistributedOptimizer."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
