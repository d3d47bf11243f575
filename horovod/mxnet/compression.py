"""Gradient compression: a smaller array is sent in place of the caller's. Pure functions of one array; any thread."""

from typing import Any

import numpy as np

from horovod.common.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(CastCompressor):
    """Sends floating point arrays as float16."""

    wire_dtype = np.float16

    @staticmethod
    def _is_wider(tensor: Any, dtype: Any) -> bool:
        found = np.dtype(tensor.dtype)
        return found.kind == "f" and found.itemsize > np.dtype(dtype).itemsize

    @staticmethod
    def _cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class Compression:
    """The compressors that exist, for the `compression` argument of DistributedTrainer."""

    none = NoneCompressor
    fp16 = FP16Compressor
