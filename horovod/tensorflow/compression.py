"""Gradient compression for tensors of TensorFlow, eager and in graphs. See horovod.common.compression."""

import tensorflow as tf

from horovod.common import compression
from horovod.common.compression import Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compression(compression.Compression, cast=tf.cast, fp16=tf.float16, bf16=tf.bfloat16):
    """The compressors for the `compression` argument of operations, tapes and optimizers."""


FP16Compressor: type[Compressor] = Compression.fp16
BF16Compressor: type[Compressor] = Compression.bf16
