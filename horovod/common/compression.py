"""Gradient compression: a smaller tensor is sent instead of the caller's. Pure functions of one tensor; any thread.

A compressor is a class with two static methods, so that programs can bring their own:
``compress(tensor) -> (tensor, context)`` and ``decompress(tensor, context) -> tensor``.

A front end derives its ``Compression`` from the one here and passes what its framework makes different. It exports
the classes under their names too, which are those that a pickle of them contains::

    from horovod.common import compression
    from horovod.common.compression import Compressor, NoneCompressor

    class Compression(
        compression.Compression, cast=torch.Tensor.to, fp16=torch.float16, bf16=torch.bfloat16
    ):
        \"\"\"The compressors for the `compression` argument of operations and of DistributedOptimizer.\"\"\"

    FP16Compressor, BF16Compressor = Compression.fp16, Compression.bf16
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

__all__ = ["CastCompressor", "Compression", "Compressor", "NoneCompressor"]

# Tensors and dtypes are those of any framework, for which there is no common type.
Cast = Callable[[Any, Any], Any]

_WIDE = frozenset({"float32", "float64"})


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
    """Sends tensors of float32 and float64 in the narrower type `wire_dtype`, and other tensors as they are."""

    wire_dtype: ClassVar[Any]
    _cast: ClassVar[Cast]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        if _name_of(tensor.dtype) not in _WIDE:
            return tensor, None
        return cls._cast(tensor, cls.wire_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else cls._cast(tensor, ctx)


def _name_of(dtype: Any) -> str:
    """The name of a dtype: an object with a name, a class with one, or one that only prints it, as "torch.float32"."""
    return getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]


class Compression:
    """The compressors of a framework. Front ends derive from it.

    Args:
        cast: ``cast(tensor, dtype)`` returns the tensor converted to a dtype: to `fp16` or `bf16`, or back to the dtype
            that a tensor of the framework had.
        fp16: the framework's float16.
        bf16: its bfloat16; None: there is no ``Compression.bf16``.
    """

    none: ClassVar[type[Compressor]] = NoneCompressor
    fp16: ClassVar[type[CastCompressor]]
    bf16: ClassVar[type[CastCompressor]]

    def __init_subclass__(cls, *, cast: Cast, fp16: Any, bf16: Any = None) -> None:
        def compressor(name: str, dtype: Any, text: str) -> type[CastCompressor]:
            members = {
                "wire_dtype": dtype,
                "_cast": staticmethod(cast),
                "__module__": cls.__module__,
                "__doc__": text,
            }
            return type(name, (CastCompressor,), members)

        cls.fp16 = compressor("FP16Compressor", fp16, "Sends tensors of float32 and float64 as float16.")
        if bf16 is not None:
            text = (
                "Sends tensors of float32 and float64 as bfloat16: the range of float32 at half the volume."
            )
            cls.bf16 = compressor("BF16Compressor", bf16, text)
