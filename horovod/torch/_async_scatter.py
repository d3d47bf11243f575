"""The asynchronous operations whose result differs from rank to rank: alltoall and reducescatter.

As in `_async_ops`: each hands a request to the engine and returns a handle for poll() and synchronize(). Any thread
that holds the GIL.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from horovod.common.arguments import Adasum, Average
from horovod.common.failed_calls import failed
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch._dtypes import MOVABLE, REDUCIBLE, as_sent, viewed
from horovod.torch._staging import submitted
from horovod.torch._submit import (
    BY_ADDRESS,
    UnsupportedOpError,
    check,
    check_all,
    dense,
    engine,
    fetch_one,
    keep,
    number_of_op,
    operands,
    reference,
    some_members_of,
)
from hvd_core._frontend.rows import row_counts

Splits: TypeAlias = Sequence[int] | torch.Tensor


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start sending rows of a tensor to each rank, and receiving the rows that the other ranks send here.

    Args:
        tensor: one dimension or more, on the CPU or a device that is served; a type of allgather_async.
            Dimension 0 may differ between ranks and may be 0; the other dimensions and the dtype must agree.
        splits: how many rows go to each rank of the process set, in rank order: integers, or a 1-D tensor of
            integers (read by the host). Rows beyond their sum are not sent. None: equal shares, dimension 0 must be a
            multiple of the number of ranks.
        name, process_set: as in allreduce_async.

    Returns:
        A handle; synchronize() ALWAYS returns a pair: the received rows in rank order, and how many came from each
        rank, a 1-D tensor of the dtype and device of `splits` if that is a tensor, else of int32 on the CPU.

    Raises:
        ValueError: as in allreduce_async, and for splits that do not fit the tensor or the process set. A 0-dim tensor
            fails in synchronize(), on all ranks.
    """
    taken = None
    try:
        full_name = None if name is None else f"alltoall.{name}"
        tensor = dense(tensor)
        source, fetch = as_sent(tensor), fetch_one
        as_bytes = source is not tensor
        on_device = check(source, MOVABLE, process_set)
        rows = [] if splits is None else [_row_counts(splits)]
        if on_device:
            taken = submitted([source], None, engine())
            source, fetch = taken.sources[0], taken.first
        elif BY_ADDRESS:
            source = reference(source)
        if as_bytes:
            fetch = viewed(fetch, tensor.dtype)
        fetch = _with_splits(fetch, splits)
        set_id = process_set.process_set_id
    except BaseException as error:
        failed("alltoall", "alltoall", name, process_set, error)
        raise
    handle = engine().alltoall(source, rows, full_name, set_id)
    keep(handle, None, fetch)
    if taken:
        taken.begin(engine(), handle, False)
    return handle


def _row_counts(splits: Any) -> list[int]:
    """The splits as a list of ints. Raises ValueError unless they are a sequence or a 1-D tensor of integers."""
    if not isinstance(splits, torch.Tensor):
        return row_counts(splits)
    if splits.dim() != 1:
        raise ValueError(f"alltoall expects a 1D splits tensor, not one of shape {tuple(splits.shape)}.")
    if splits.is_floating_point() or splits.is_complex() or splits.dtype is torch.bool:
        raise ValueError(f"alltoall expects splits to contain 32-bit integer elements, not {splits.dtype}.")
    return splits.tolist()


def _with_splits(fetch: Callable, splits: Splits | None) -> Callable:
    dtype, device = torch.int32, None
    if isinstance(splits, torch.Tensor):
        dtype, device = splits.dtype, splits.device

    def fetch_pair(core, handle: int) -> tuple[torch.Tensor, torch.Tensor]:
        received = torch.tensor(core.received_splits(handle, 0), dtype=dtype, device=device)
        return fetch(core, handle), received

    return fetch_pair


def _outputs(tensors: list, set_id: int, core) -> list[torch.Tensor]:
    """New tensors for this rank's rows of each tensor."""
    return [t.new_empty((core.scattered_rows(t.shape[0], set_id), *t.shape[1:])) for t in tensors]


def _reducescatter(
    tensors: list,
    single: bool,
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> int:
    prefix = "reducescatter" if single else "grouped_reducescatter"
    fetch = taken = None
    try:
        full_name = None if name is None else f"{prefix}.{name}"
        tensors = [dense(tensor) for tensor in some_members_of(tensors)]
        on_device = check_all(tensors, REDUCIBLE, process_set)
        number = _scattered_op(op)
        if not all(t.dim() for t in tensors):
            raise ValueError("Reducescatter does not support scalar inputs")
        set_id = process_set.process_set_id
        outputs = _outputs(tensors, set_id, engine())
        if on_device:
            taken = submitted(tensors, outputs, engine())
            sources, targets = taken.sources, taken.targets
            fetch = taken.first if single else taken.all
        else:
            sources, targets = operands(tensors), operands(outputs)
    except BaseException as error:
        failed("reducescatter", prefix, name, process_set, error)
        raise
    handle = engine().reducescatter(
        sources, targets, full_name, number, prescale_factor, postscale_factor, set_id
    )
    keep(handle, outputs[0] if single else outputs, fetch)
    if taken:
        taken.begin(engine(), handle, False)
    return handle


def _scattered_op(op: Any) -> int:
    """The engine's number of the reduce op of a reducescatter. Raises UnsupportedOpError for Adasum and for other values
    that are no such op."""
    number = number_of_op(op)
    if op == Adasum:
        raise UnsupportedOpError("Reducescatter has no op Adasum. Use hvd.Average, Sum, Min, Max or Product.")
    return number


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start reducing a tensor over all ranks and giving each rank its rows of the result.

    Args:
        tensor: one dimension or more, otherwise as in allreduce_async. Shape and dtype must agree across ranks.
        name: as in allreduce_async.
        op: hvd.Average (default), Sum, Min, Max or Product.
        process_set: the ranks that take part.
        prescale_factor, postscale_factor: as in allreduce_async.

    Returns:
        A handle; synchronize() returns the rows of this rank. Rows are distributed in rank order; if dimension 0 is not a
        multiple of the number of ranks, the first ranks get one more. A rank may get none.

    Raises:
        ValueError: as in allreduce_async, and for a 0-dim tensor. For another `op` it is a NotImplementedError as well.
    """
    return _reducescatter([tensor], True, name, op, prescale_factor, postscale_factor, process_set)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start reducing and scattering several tensors as one all-or-nothing operation.

    Args:
        tensors: at least one, on one device; each as in reducescatter_async.
        name, op, process_set, prescale_factor, postscale_factor: as in reducescatter_async.

    Returns:
        One handle for the group; synchronize() returns a list of tensors in the order of `tensors`.

    Raises:
        ValueError: as in reducescatter_async, and for an empty list.
    """
    return _reducescatter(tensors, False, name, op, prescale_factor, postscale_factor, process_set)
