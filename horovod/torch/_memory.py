"""What the engine must know about the memory of PyTorch's tensors.

A tensor in flight may be given other memory: ``tensor.data = ...``, ``module.to(...)``. So an operation under way holds
on to the storage that the tensor had at the submission, and the engine writes to memory that still belongs to it.
Registered once, when this module is imported.
"""

import torch

from horovod.common.basics import UNAVAILABLE
from horovod.torch._dtypes import DTYPE_NUMBERS, REDUCIBLE

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
