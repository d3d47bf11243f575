"""Gradient compression: a smaller tensor is sent in place of the caller's. The part that all frameworks share.

A compressor is a class with two static methods, so that programs can bring their own:
``compress(tensor) -> (tensor, context)`` and ``decompress(tensor, context) -> tensor``. A front end derives
FP16Compressor and BF16Compressor from CastCompressor.
"""

from typing import Any

__all__ = ["CastCompressor", "Compressor", "NoneCompressor"]


class Compressor:
    """Interface of a compressor."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send, and the context that `decompress` needs to undo it."""
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


class CastCompressor(Compressor):
    """Sends floating point tensors in a narrower type; other tensors are left alone.

    A front end's class defines ``_is_wider(tensor, dtype)`` (whether `tensor` is of a floating type with more bytes than
    `dtype`) and ``_cast(tensor, dtype)``; the classes derived from that define `wire_dtype`.
    """

    wire_dtype: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        if not cls._is_wider(tensor, cls.wire_dtype):
            return tensor, None
        return cls._cast(tensor, cls.wire_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else cls._cast(tensor, ctx)

    @staticmethod
    def _is_wider(tensor: Any, dtype: Any) -> bool:
        raise NotImplementedError

    @staticmethod
    def _cast(tensor: Any, dtype: Any) -> Any:
        raise NotImplementedError
