"""The asynchronous operations: each hands a request to the engine and returns a handle for poll() and
synchronize().

Not differentiable. Unnamed operations are matched in the order of submission, so all ranks must submit those
in the same order; named ones may be submitted in any order. Any thread that holds the GIL.
"""

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.arguments import Average
from horovod.common.exports import _basics
from horovod.common.failed_calls import failed
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch._dtypes import MOVABLE, REDUCIBLE, as_sent, returning, why_not
from horovod.torch._staging import submitted
from horovod.torch._submit import (
    BY_ADDRESS,
    _handle_map,
    check,
    check_all,
    dense,
    engine,
    keep,
    number_of_op,
    operands,
    reference,
    resolve_op,
    some_members_of,
    synchronize,
)
from hvd_core._frontend.reductions import ENGINE_NUMBERS


def empty_like(tensor):
    """A new tensor for the result. A value that is not a tensor is returned unchanged, for the checks to refuse.

    Raises:
        ValueError: the tensor has a layout that is not supported and that PyTorch makes no tensor of, such as mkldnn's.
    """
    try:
        return torch.empty_like(tensor, requires_grad=False) if isinstance(tensor, torch.Tensor) else tensor
    except NotImplementedError as error:
        raise ValueError(why_not(tensor, reduces=False)) from error


def _on_device(tensor, output, is_sent=True, is_received=True) -> Any:
    """The form in which the engine takes one tensor on a device and the tensor for the result; see submitted()."""
    inputs = [tensor]
    outputs = inputs if output is tensor else [output]
    return submitted(inputs, outputs, engine(), is_sent, is_received)


def _begin(taken: Any, handle: int, wait: bool) -> None:
    """Let an operation on a device begin; with `wait`, wait for its result."""
    taken.begin(engine(), handle, wait)
    if wait:
        synchronize(handle)


def reduce_into(
    tensor, output, name, op, prescale_factor, postscale_factor, process_set, wait: bool = False
) -> int:
    """Submit an allreduce of `tensor` into `output`, which may be `tensor`. Returns the handle.

    With `wait` there is no handle: the call returns when the output is there.
    """
    if (
        not BY_ADDRESS
        and op.__class__ is int
        and op in ENGINE_NUMBERS
        and process_set.__class__ is ProcessSet
    ):
        # Most calls need no conversion. The engine says in one call whether this is one of them.
        handle = engine().reduce_plain(
            tensor,
            output,
            name,
            ENGINE_NUMBERS[op],
            prescale_factor,
            postscale_factor,
            process_set.process_set_id,
            wait,
        )
        if handle is not None:
            if handle:
                _handle_map[handle] = output
            return handle
    source, target, fetch, taken = tensor, output, None, None
    try:
        full_name = None if name is None else f"allreduce.{name}"
        on_device = check(tensor, REDUCIBLE, process_set)
        try:
            number = ENGINE_NUMBERS[op]
        except (KeyError, TypeError):
            number = number_of_op(op)
        if on_device:
            taken = _on_device(tensor, output)
            source, target, fetch = taken.sources[0], taken.targets[0], taken.first
        elif BY_ADDRESS:
            source, target = reference(tensor), reference(output)
        set_id = process_set.process_set_id
    except BaseException as error:
        failed("allreduce", "allreduce", name, process_set, error)
        raise
    if wait and not (taken and taken.deferred):
        return engine().allreduce(
            source, target, full_name, number, prescale_factor, postscale_factor, set_id, True
        )
    handle = engine().allreduce(source, target, full_name, number, prescale_factor, postscale_factor, set_id)
    keep(handle, output, fetch)
    if taken:
        _begin(taken, handle, wait)
    return handle


def _reduce_group(
    tensors, in_place, average, name, op, prescale_factor, postscale_factor, process_set
) -> int:
    """Submit one all-or-nothing allreduce of a caller's list of tensors. Returns the handle."""
    try:
        if average is not None:
            op = resolve_op(op, average, stacklevel=5)
        elif op is None:
            op = Average
        tensors = some_members_of(tensors)
        if not in_place:
            tensors = [dense(tensor) for tensor in tensors]
        outputs = tensors if in_place else [empty_like(t) for t in tensors]
    except BaseException as error:
        failed("allreduce", "grouped_allreduce", name, process_set, error)
        raise
    return reduce_group_into(tensors, outputs, name, op, prescale_factor, postscale_factor, process_set)


def reduce_group_into(tensors, outputs, name, op, prescale_factor, postscale_factor, process_set) -> int:
    """Submit one all-or-nothing allreduce of a list of tensors, not empty. Returns the handle."""
    fetch = taken = None
    try:
        full_name = None if name is None else f"grouped_allreduce.{name}"
        on_device = check_all(tensors, REDUCIBLE, process_set)
        number = number_of_op(op)
        if on_device:
            taken = submitted(tensors, outputs, engine())
            sources, targets, fetch = taken.sources, taken.targets, taken.all
        else:
            sources = operands(tensors)
            targets = sources if outputs is tensors else operands(outputs)
        set_id = process_set.process_set_id
    except BaseException as error:
        failed("allreduce", "grouped_allreduce", name, process_set, error)
        raise
    handle = engine().allreduce(
        sources, targets, full_name, number, prescale_factor, postscale_factor, set_id
    )
    keep(handle, outputs, fetch)
    if taken:
        _begin(taken, handle, False)
    return handle


def broadcast_into(tensor, output, root_rank, name, process_set, wait: bool = False) -> int:
    """Submit a broadcast of the root's `tensor` into the `output` of each rank. Returns the handle.

    With `wait` there is no handle: the call returns when the output is there.
    """
    fetch = taken = None
    try:
        full_name = None if name is None else f"broadcast.{name}"
        source = as_sent(tensor)
        target = source if output is tensor else as_sent(output)
        if check(source, MOVABLE, process_set):
            is_root = _basics.rank() == root_rank
            changes = not is_root or output is not tensor
            taken = _on_device(source, target, is_sent=is_root, is_received=changes)
            source, target, fetch = taken.sources[0], taken.targets[0], returning(output, taken.first)
        elif BY_ADDRESS:
            source, target = reference(source), reference(target)
        set_id = process_set.process_set_id
    except BaseException as error:
        failed("broadcast", "broadcast", name, process_set, error)
        raise
    if wait and not (taken and taken.deferred):
        return engine().broadcast(source, target, root_rank, full_name, set_id, True)
    handle = engine().broadcast(source, target, root_rank, full_name, set_id)
    keep(handle, output, fetch)
    if taken:
        _begin(taken, handle, wait)
    return handle


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
        tensor: any shape, on the CPU or a device that is served; uint8, int8, uint16, int16, int32, int64,
            float16, bfloat16, float32 or float64. Shape and dtype must be the same on all ranks. It must not
            change before the operation is done.
        average: deprecated, use `op`.
        name: identifies the operation across ranks; None numbers it in the order of submission.
        op: hvd.Average (default), Sum, Min, Max, Product or, for floats, Adasum. Averages of integers truncate toward
            zero.
        prescale_factor: multiplies `tensor` before the reduction.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.

    Returns:
        A handle for poll() and synchronize(); the latter returns a tensor of the shape and dtype of `tensor`.

    Raises:
        ValueError: Horovod is not initialized, unsupported tensor, `op` together with
            `average`, or an operation of this name is still pending. Disagreements between ranks surface in
            synchronize().
    """
    try:
        if average is not None:
            op = resolve_op(op, average)
        elif op is None:
            op = Average
        tensor = dense(tensor)
        output = empty_like(tensor)
    except BaseException as error:
        failed("allreduce", "allreduce", name, process_set, error)
        raise
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
    """Start reducing a tensor over all ranks in place.

    Args:
        tensor: as in allreduce_async; it is overwritten, and must not be read before the operation is done.
        average, name, op, prescale_factor, postscale_factor, process_set: as in allreduce_async.

    Returns:
        A handle for poll() and synchronize(); the latter returns `tensor`.

    Raises:
        ValueError: as in allreduce_async.
    """
    try:
        if average is not None:
            op = resolve_op(op, average)
        elif op is None:
            op = Average
    except BaseException as error:
        failed("allreduce", "allreduce", name, process_set, error)
        raise
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
    return _reduce_group(tensors, False, average, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: Any = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing several tensors as one all-or-nothing operation, in place.

    Args:
        tensors: as in grouped_allreduce_async; they are overwritten.
        average, name, op, prescale_factor, postscale_factor, process_set: as in allreduce_async.

    Returns:
        One handle for the group; synchronize() returns a list of the tensors themselves.

    Raises:
        ValueError: as in grouped_allreduce_async.
    """
    return _reduce_group(tensors, True, average, name, op, prescale_factor, postscale_factor, process_set)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start copying the root's tensor to all ranks, into a new tensor.

    Args:
        tensor: any shape, on the CPU or a device that is served; a type of allgather_async. Shape and
            dtype must agree.
        root_rank: the GLOBAL rank whose values are sent, also within a process set.
        name, process_set: as in allreduce_async.

    Returns:
        A handle; synchronize() returns a tensor of the shape and dtype of `tensor`.

    Raises:
        ValueError: as in allreduce_async, and for a root that is not in the process set.
    """
    try:
        tensor = dense(tensor)
        output = empty_like(tensor)
    except BaseException as error:
        failed("broadcast", "broadcast", name, process_set, error)
        raise
    return broadcast_into(tensor, output, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start copying the root's tensor to all ranks, in place.

    Args:
        tensor: as in broadcast_async; on other ranks than the root it is overwritten.
        root_rank, name, process_set: as in broadcast_async.

    Returns:
        A handle; synchronize() returns `tensor`.

    Raises:
        ValueError: as in broadcast_async.
    """
    return broadcast_into(tensor, tensor, root_rank, name, process_set)
