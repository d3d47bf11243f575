"""The asynchronous operations: each hands a request to the engine and returns a handle for poll() and
synchronize().

Not differentiable. Unnamed operations are matched in the order of submission, so all ranks must submit those
in the same order; named ones may be submitted in any order. Any thread that holds the GIL.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import _submit
from horovod.torch._devices import Submitted
from horovod.torch._submit import (
    _WIRE_OPS,
    BY_ADDRESS,
    MOVABLE,
    REDUCIBLE,
    Average,
    _handle_map,
    check,
    check_all,
    engine,
    fetch_many,
    fetch_one,
    keep_for_ever,
    operands,
    reference,
    resolve_op,
    wire_op,
)


def empty_like(tensor):
    """Room for the result; what is no tensor is returned as it is, for the checks to refuse."""
    return torch.empty_like(tensor, requires_grad=False) if isinstance(tensor, torch.Tensor) else tensor


def _on_device(tensor, output) -> tuple[Any, Any, Callable]:
    """What the engine is given for tensors on a device, and what synchronize() does with the handle."""
    inputs = [tensor]
    submitted = Submitted(inputs, inputs if output is tensor else [output])
    return submitted.sources[0], submitted.targets[0], submitted.first


def reduce_into(
    tensor, output, name, op, prescale_factor, postscale_factor, process_set, wait: bool = False
) -> int:
    """Submit an allreduce of `tensor` into `output`, which may be `tensor`. Returns the handle.

    With `wait` there is no handle: the call returns when the output is there.
    """
    if name is not None:
        name = f"allreduce.{name}"
    on_device = check(tensor, REDUCIBLE, name, process_set, "allreduce")
    number = _WIRE_OPS.get(op)
    if number is None:
        number = wire_op(op, name, process_set, "allreduce")
    source, target, fetch = tensor, output, None
    if on_device:
        source, target, fetch = _on_device(tensor, output)
    elif BY_ADDRESS:
        source, target = reference(tensor), reference(output)
    set_id = process_set.process_set_id
    if wait:
        try:
            return engine().allreduce(
                source, target, name, number, prescale_factor, postscale_factor, set_id, True
            )
        except KeyboardInterrupt:
            keep_for_ever((tensor, output))
            raise
    handle = engine().allreduce(source, target, name, number, prescale_factor, postscale_factor, set_id)
    _handle_map[handle] = (tensor, output, fetch)
    return handle


def reduce_group_into(tensors, outputs, name, op, prescale_factor, postscale_factor, process_set) -> int:
    """Submit one all-or-nothing allreduce of a list of tensors. Returns the handle."""
    if name is not None:
        name = f"grouped_allreduce.{name}"
    on_device = check_all(tensors, REDUCIBLE, name, process_set, "allreduce")
    core = engine()
    _require_members(tensors, name, process_set, "allreduce")
    number = wire_op(op, name, process_set, "allreduce")
    set_id = process_set.process_set_id
    fetch = None
    if on_device:
        submitted = Submitted(tensors, outputs)
        sources, targets, fetch = submitted.sources, submitted.targets, submitted.all
    else:
        sources = operands(tensors)
        targets = sources if outputs is tensors else operands(outputs)
    handle = core.allreduce(sources, targets, name, number, prescale_factor, postscale_factor, set_id)
    _handle_map[handle] = (tensors, outputs, fetch)
    return handle


def broadcast_into(tensor, output, root_rank, name, process_set, wait: bool = False) -> int:
    """Submit a broadcast of the root's `tensor` into everybody's `output`. Returns the handle.

    With `wait` there is no handle: the call returns when the output is there.
    """
    if name is not None:
        name = f"broadcast.{name}"
    source, target, fetch = tensor, output, None
    if check(tensor, MOVABLE, name, process_set, "broadcast"):
        source, target, fetch = _on_device(tensor, output)
    elif BY_ADDRESS:
        source, target = reference(tensor), reference(output)
    if wait:
        try:
            return engine().broadcast(source, target, root_rank, name, process_set.process_set_id, True)
        except KeyboardInterrupt:
            keep_for_ever((tensor, output))
            raise
    handle = engine().broadcast(source, target, root_rank, name, process_set.process_set_id)
    _handle_map[handle] = (tensor, output, fetch)
    return handle


def _require_members(tensors: Sequence, name: str | None, process_set: ProcessSet, operation: str) -> None:
    if not tensors:
        text = "A grouped operation needs at least one tensor, but the list is empty."
        _submit.poison(name, text, process_set, operation)
        raise ValueError(text)


def allreduce_async(
    tensor: torch.Tensor,
    average: Any = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing a tensor over all ranks into a new tensor.

    Args:
        tensor: any shape, contiguous, on the CPU or a device that is served; uint8, int8, int16, int32, int64,
            float16, bfloat16, float32 or float64. Shape and dtype must be the same on all ranks. It must not
            change before the operation is done.
        average: deprecated, use `op`.
        name: identifies the operation across ranks; None numbers it in the order of submission.
        op: hvd.Average (default), Sum, Min, Max or Product. Averages of integers truncate toward zero.
        prescale_factor: multiplies `tensor` before the reduction.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.

    Returns:
        A handle for poll() and synchronize(); the latter returns a tensor of the shape and dtype of `tensor`.

    Raises:
        ValueError: Horovod is not initialized, unsupported or non-contiguous tensor, `op` together with
            `average`, or an operation of this name is still in flight. Disagreements between ranks surface in
            synchronize().
    """
    op = Average if op is None and average is None else resolve_op(op, average)
    output = empty_like(tensor)
    return reduce_into(tensor, output, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_async_(
    tensor: torch.Tensor,
    average: Any = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing a tensor over all ranks in place. Arguments, handle and errors as in allreduce_async."""
    op = Average if op is None and average is None else resolve_op(op, average)
    return reduce_into(tensor, tensor, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: Any = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing several tensors as one all-or-nothing operation, into new tensors.

    Args:
        tensors: at least one; each as in allreduce_async. Number, shapes and dtypes must agree across ranks.
        average, name, op, prescale_factor, postscale_factor, process_set: as in allreduce_async.

    Returns:
        One handle for the group; synchronize() returns a list of tensors in the order of `tensors`.

    Raises:
        ValueError: as in allreduce_async, and for an empty list.
    """
    op = Average if op is None and average is None else resolve_op(op, average)
    tensors = list(tensors)
    outputs = [empty_like(t) for t in tensors]
    return reduce_group_into(tensors, outputs, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: Any = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing several tensors as one operation, in place. As grouped_allreduce_async."""
    op = Average if op is None and average is None else resolve_op(op, average)
    tensors = list(tensors)
    return reduce_group_into(tensors, tensors, name, op, prescale_factor, postscale_factor, process_set)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start concatenating the ranks' tensors along dimension 0, in rank order.

    Args:
        tensor: one dimension or more, contiguous, on the CPU or a device that is served; a type of allreduce_async,
            or bool or uint16. Dimension 0 may differ between ranks and may be 0; the other dimensions and the
            dtype must agree.
        name, process_set: as in allreduce_async.

    Returns:
        A handle; synchronize() returns a tensor whose dimension 0 is the sum of the ranks' ones.

    Raises:
        ValueError: as in allreduce_async. A 0-dim tensor fails in synchronize(), on all ranks.
    """
    if name is not None:
        name = f"allgather.{name}"
    source, fetch = tensor, fetch_one
    if check(tensor, MOVABLE, name, process_set, "allgather"):
        submitted = Submitted([tensor], None)
        source, fetch = submitted.sources[0], submitted.first
    elif BY_ADDRESS:
        source = reference(tensor)
    handle = engine().allgather(source, name, process_set.process_set_id)
    _handle_map[handle] = (tensor, None, fetch)
    return handle


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start gathering several tensors as one all-or-nothing operation; each as in allgather_async.

    Returns:
        One handle; synchronize() returns a list of tensors in the order of `tensors`.

    Raises:
        ValueError: as in allgather_async, and for an empty list.
    """
    if name is not None:
        name = f"grouped_allgather.{name}"
    tensors = list(tensors)
    on_device = check_all(tensors, MOVABLE, name, process_set, "allgather")
    core = engine()
    _require_members(tensors, name, process_set, "allgather")
    if on_device:
        submitted = Submitted(tensors, None)
        sources, fetch = submitted.sources, submitted.all
    else:
        sources, fetch = operands(tensors), fetch_many(len(tensors))
    handle = core.allgather(sources, name, process_set.process_set_id)
    _handle_map[handle] = (tensors, None, fetch)
    return handle


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start copying the root's tensor to all ranks, into a new tensor.

    Args:
        tensor: any shape, contiguous, on the CPU or a device that is served; a type of allgather_async. Shape and
            dtype must agree.
        root_rank: the GLOBAL rank whose values are sent, also within a process set.
        name, process_set: as in allreduce_async.

    Returns:
        A handle; synchronize() returns a tensor of the shape and dtype of `tensor`.

    Raises:
        ValueError: as in allreduce_async, and for a root that is not in the process set.
    """
    output = empty_like(tensor)
    return broadcast_into(tensor, output, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start copying the root's tensor to all ranks, in place. As broadcast_async."""
    return broadcast_into(tensor, tensor, root_rank, name, process_set)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start reducing a sparse COO tensor, by gathering indices and values.

    Args:
        tensor: sparse COO tensor; the shape must agree across ranks, the number of values may
            differ.
        name, process_set: as in allreduce_async; two operations, ``NAME.indices`` and ``NAME.values``, are
            made of it.
        op: hvd.Average or hvd.Sum.

    Returns:
        A function without arguments (no handle: poll() does not take it) that waits and returns the sparse
        tensor.

    Raises:
        ValueError: not sparse, or as in allreduce_async. NotImplementedError: another `op`.
    """
    if op not in (Average, _submit.Sum):
        raise NotImplementedError("Sparse tensors can be reduced with hvd.Average and hvd.Sum only.")
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        raise ValueError(
            f"A sparse COO tensor is required, but found {getattr(tensor, 'layout', type(tensor))}."
        )
    shape = tensor.shape
    tensor = tensor.coalesce()
    indices = tensor.indices().transpose(0, 1).contiguous()
    values = tensor.values().contiguous()
    prefix = None if name is None else str(name)
    handles = (
        allgather_async(indices, prefix and f"{prefix}.indices", process_set),
        allgather_async(values, prefix and f"{prefix}.values", process_set),
    )
    return SparseReduction(handles, shape, process_set.size() if op == Average else 1)


class SparseReduction:
    """A sparse allreduce that is under way; calling it waits and returns the sparse tensor."""

    def __init__(self, handles: tuple[int, int], shape: torch.Size, divisor: int):
        self.handles = handles
        self._shape = shape
        self._divisor = divisor

    def __call__(self) -> torch.Tensor:
        try:
            indices, values = [_submit.synchronize(handle) for handle in self.handles]
        except _submit.HorovodInternalError:
            _submit.forget_finished(self.handles)
            raise
        if self._divisor > 1:
            rounding = None if values.is_floating_point() else "trunc"
            values = torch.div(values, self._divisor, rounding_mode=rounding)
        return torch.sparse_coo_tensor(indices.transpose(0, 1), values, self._shape, check_invariants=False)
