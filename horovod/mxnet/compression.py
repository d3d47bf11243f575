"""Gradient compression: a smaller array is sent instead of the caller's. Pure functions of one array; any thread."""

import numpy as np

from horovod.common import compression
from horovod.common.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compression(compression.Compression, cast=lambda array, dtype: array.astype(dtype), fp16=np.float16):
    """The compressors that exist, for the `compression` argument of DistributedTrainer."""


FP16Compressor = Compression.fp16
