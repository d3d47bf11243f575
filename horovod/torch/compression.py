"""Gradient compression: a smaller tensor is sent instead of the caller's. Pure functions of one tensor; any thread.

A compressor is a class with two static methods, so that programs can bring their own:
``compress(tensor) -> (tensor, context)`` and ``decompress(tensor, context) -> tensor``.
"""

import torch

from horovod.common import compression
from horovod.common.compression import Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compression(compression.Compression, cast=torch.Tensor.to, fp16=torch.float16, bf16=torch.bfloat16):
    """The compressors that exist, for the `compression` argument of operations and of DistributedOptimizer."""


FP16Compressor: type[Compressor] = Compression.fp16
BF16Compressor: type[Compressor] = Compression.bf16
