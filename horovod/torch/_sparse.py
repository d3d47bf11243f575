"""The reduction of sparse tensors, by gathering indices and values.

Any thread that holds the GIL.
"""

from collections.abc import Callable

import torch

from horovod.common.arguments import Average, Sum
from horovod.common.failed_calls import failed
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch._async_gather import allgather_async
from horovod.torch._dtypes import REDUCIBLE
from horovod.torch._submit import HorovodInternalError, check, synchronize


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start reducing a sparse COO tensor, by gathering indices and values.

    Args:
        tensor: sparse COO tensor; the shape must agree across ranks, the number of values may
            differ.
        name, process_set: as in allreduce_async. There are two operations, ``NAME.indices`` and ``NAME.values``.
        op: hvd.Average or hvd.Sum.

    Returns:
        A function without arguments (no handle: poll() does not take it) that waits and returns the sparse
        tensor.

    Raises:
        ValueError: not sparse, or as in allreduce_async. NotImplementedError: another `op`.
    """
    names: list[str | None] = [None, None]
    try:
        if name is not None:
            names = [f"{name}.indices", f"{name}.values"]
        if op not in (Average, Sum):
            raise NotImplementedError("Sparse tensors can be reduced with hvd.Average and hvd.Sum only.")
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
            found = getattr(tensor, "layout", type(tensor))
            raise ValueError(f"A sparse COO tensor is required, but found {found}.")
        shape = tensor.shape
        tensor = tensor.detach().coalesce()
        indices = tensor.indices().transpose(0, 1).contiguous()
        values = tensor.values().contiguous()
        check(values, REDUCIBLE, process_set)
        divisor = process_set.size() if op == Average else 1
    except BaseException as error:
        for part in names:
            failed("allgather", "allgather", part, process_set, error)
        raise
    try:
        first = allgather_async(indices, names[0], process_set)
    except BaseException as error:  # the first of the two operations has been reported
        failed("allgather", "allgather", names[1], process_set, error)
        raise
    return SparseReduction((first, allgather_async(values, names[1], process_set)), shape, divisor)


class SparseReduction:
    """A pending sparse allreduce; calling it waits and returns the sparse tensor."""

    def __init__(self, handles: tuple[int, int], shape: torch.Size, divisor: int):
        self.handles = handles
        self._shape = shape
        self._divisor = divisor

    def __call__(self) -> torch.Tensor:
        # Wait for both, also when the first has failed: every rank submits both or fails both.
        gathered, failure = [], None
        for handle in self.handles:
            try:
                gathered.append(synchronize(handle))
            except HorovodInternalError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        indices, values = gathered
        if self._divisor > 1:
            rounding = None if values.is_floating_point() else "trunc"
            values = torch.div(values, self._divisor, rounding_mode=rounding)
        return torch.sparse_coo_tensor(indices.transpose(0, 1), values, self._shape, check_invariants=False)
