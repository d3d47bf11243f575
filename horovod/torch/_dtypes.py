"""Which of PyTorch's types can be communicated, and as what. Tables made once, and pure functions; any thread.

Every type that the engine knows can be moved; integers and floats of 16 bits and more can be reduced. 8-bit floats
are moved as what they are where the engine has a name for them, else as the bytes that they are.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from hvd_core.frontend import element_types

# The engine's numbers of PyTorch's types.
DTYPE_NUMBERS = {
    getattr(torch, name): number for name, number in element_types.NUMBERS.items() if hasattr(torch, name)
}

REDUCIBLE = frozenset(getattr(torch, name) for name in element_types.REDUCIBLE if hasattr(torch, name))

_FLOAT8 = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)


def _comes_back(dtype: torch.dtype) -> bool:
    """Whether this PyTorch takes tensors of a type over DLPack, as results of the engine come."""
    try:
        return from_dlpack(torch.empty(1, dtype=dtype).__dlpack__()).dtype is dtype
    except (RuntimeError, BufferError, TypeError):
        return False


# Types that travel as bytes.
_AS_BYTES = frozenset(t for t in _FLOAT8 if t not in DTYPE_NUMBERS or not _comes_back(t))
MOVABLE = frozenset(DTYPE_NUMBERS) - _AS_BYTES


def travelling(tensor: Any) -> Any:
    """`tensor` as what the engine is given: itself, or its bytes. What is no tensor is left to the checks."""
    try:
        if tensor.dtype in _AS_BYTES and tensor.layout is torch.strided:
            return tensor.view(torch.uint8)
    except AttributeError:
        pass
    return tensor


def viewed(fetch: Callable, dtype: torch.dtype) -> Callable:
    """`fetch`, whose result arrives as bytes, with the result in its own type again."""
    return lambda core, handle: fetch(core, handle).view(dtype)


def viewed_all(fetch: Callable, dtypes: list[torch.dtype]) -> Callable:
    """The same for a group."""
    return lambda core, handle: [t.view(dtype) for t, dtype in zip(fetch(core, handle), dtypes)]


def gives(output: torch.Tensor, fetch: Callable) -> Callable:
    """`fetch`, with the caller's own tensor as the result."""

    def given(core, handle):
        fetch(core, handle)
        return output

    return given


def why_not(tensor: torch.Tensor, reduces: bool) -> str:
    """The text of the error for a type or layout that is not taken."""
    text = f"Tensor type {tensor.type()} is not supported."
    if reduces and tensor.dtype in _FLOAT8:
        text += (
            " 8-bit floats are too coarse to be summed: reduce them in float16, bfloat16 or float32. allgather, "
            "broadcast and alltoall move them as they are."
        )
    elif reduces and tensor.dtype in MOVABLE and tensor.layout is torch.strided:
        text += " Convert it to a type that reductions take, such as int32."
    elif tensor.layout is torch.sparse_coo:
        text += " Sparse tensors are reduced by hvd.sparse_allreduce_async()."
    return text
