"""PyTorch's types that can be communicated, and the types in which they are sent. Tables and pure functions; any thread.

Every type that the engine knows can be moved; hvd_core._frontend.operations says which can be reduced. An 8-bit float
is sent in its own type if the engine knows that type, else as bytes.
"""

from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from horovod.common.basics import UNAVAILABLE
from hvd_core._frontend import operations

# The engine's numbers of PyTorch's types.
DTYPE_NUMBERS = {
    getattr(torch, name): number for name, number in operations.DTYPE_NUMBERS.items() if hasattr(torch, name)
}

REDUCIBLE = frozenset(getattr(torch, name) for name in operations.REDUCIBLE if hasattr(torch, name))

_FLOAT8 = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)


def _comes_back(dtype: torch.dtype) -> bool:
    """Whether this PyTorch imports tensors of a type over DLPack, which is how the engine returns its results."""
    try:
        return from_dlpack(torch.empty(1, dtype=dtype).__dlpack__()).dtype is dtype
    except (RuntimeError, BufferError, TypeError):
        return False


# Types that are sent as bytes.
AS_BYTES = frozenset(t for t in _FLOAT8 if t not in DTYPE_NUMBERS or not _comes_back(t))
MOVABLE = frozenset(DTYPE_NUMBERS) - AS_BYTES


def as_sent(tensor: Any) -> Any:
    """The tensor that the engine takes for `tensor`: itself, or its bytes. A value that is not a tensor is returned
    unchanged, for the checks to refuse."""
    try:
        if tensor.dtype in AS_BYTES and tensor.layout is torch.strided:
            return tensor.view(torch.uint8)
    except AttributeError:
        pass
    return tensor


def why_not(tensor: torch.Tensor, reduces: bool) -> str:
    """The text of the error for a type or layout that is not supported."""
    try:
        kind = tensor.type()
    except RuntimeError:  # PyTorch has no such name for most layouts
        kind = f"{tensor.dtype} with the layout {tensor.layout} on {tensor.device.type}"
    text = f"Tensor type {kind} is not supported."
    if reduces and tensor.dtype in _FLOAT8:
        text += (
            " 8-bit floats are too coarse to be summed: reduce them in float16, bfloat16 or float32. allgather, "
            "broadcast and alltoall move them as they are."
        )
    elif reduces and tensor.dtype in MOVABLE and tensor.layout is torch.strided:
        text += " Convert it to a type that reductions take, such as int32."
    elif tensor.layout is torch.sparse_coo:
        text += " Sparse tensors are reduced by hvd.sparse_allreduce_async()."
    elif tensor.layout is not torch.strided:
        text += " Convert it to a dense tensor, or to a sparse COO tensor for hvd.sparse_allreduce_async()."
    return text


# What the engine must know about the memory of PyTorch's tensors.
#
# A tensor in flight may be given other memory: ``tensor.data = ...``, ``module.to(...)``. So an operation under way holds
# on to the storage that the tensor had at the submission, and the engine writes to memory that still belongs to it.
# Registered once, when this module is imported.

_WITHOUT_MEMORY = (
    "Wrappers (DTensor, FakeTensor, functional and batched tensors) have none of their own. Pass the tensor that holds "
    "the data; for a DTensor that is its local part, tensor.to_local()."
)

if UNAVAILABLE is None:
    from hvd_core._core import register_tensor_type

    register_tensor_type(
        torch.Tensor,
        memory_owner=getattr(torch.Tensor, "untyped_storage", torch.Tensor.storage),
        without_memory=_WITHOUT_MEMORY,
        reducible=[DTYPE_NUMBERS[dtype] for dtype in REDUCIBLE],
        shows_other_values=torch.Tensor.is_neg,
    )
