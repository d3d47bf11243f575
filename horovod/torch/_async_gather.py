"""The asynchronous allgather, of one tensor and of a group: the engine finds the sizes of the results.

As in `_async_ops`: each function hands a request to the engine and returns a handle for poll() and synchronize(). Any
thread that holds the GIL.
"""

from collections.abc import Sequence

import torch

from horovod.common.failed_calls import failed
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch._dtypes import MOVABLE, as_sent, viewed, viewed_all
from horovod.torch._staging import submitted
from horovod.torch._submit import (
    BY_ADDRESS,
    check,
    check_all,
    dense,
    engine,
    fetch_many,
    fetch_one,
    keep,
    operands,
    reference,
    some_members_of,
)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start concatenating the ranks' tensors along dimension 0, in rank order.

    Args:
        tensor: one dimension or more, on the CPU or a device that is served; a type of allreduce_async,
            bool, uint32, uint64 or an 8-bit float. Dimension 0 may differ between ranks and may be 0; the
            other dimensions and the dtype must agree.
        name, process_set: as in allreduce_async.

    Returns:
        A handle; synchronize() returns a tensor whose dimension 0 is the sum of those of all ranks.

    Raises:
        ValueError: as in allreduce_async. A 0-dim tensor fails in synchronize(), on all ranks.
    """
    taken = None
    try:
        full_name = None if name is None else f"allgather.{name}"
        tensor = dense(tensor)
        source, fetch = as_sent(tensor), fetch_one
        as_bytes = source is not tensor
        if check(source, MOVABLE, process_set):
            taken = submitted([source], None, engine())
            source, fetch = taken.sources[0], taken.first
        elif BY_ADDRESS:
            source = reference(source)
        if as_bytes:
            fetch = viewed(fetch, tensor.dtype)
        set_id = process_set.process_set_id
    except BaseException as error:
        failed("allgather", "allgather", name, process_set, error)
        raise
    handle = engine().allgather(source, full_name, set_id)
    keep(handle, None, fetch)
    if taken:
        taken.begin(engine(), handle, False)
    return handle


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start gathering several tensors as one all-or-nothing operation; each as in allgather_async.

    Args:
        tensors: at least one, on one device; each as in allgather_async.
        name, process_set: as in allreduce_async.

    Returns:
        One handle; synchronize() returns a list of tensors in the order of `tensors`.

    Raises:
        ValueError: as in allgather_async, and for an empty list.
    """
    taken = None
    try:
        full_name = None if name is None else f"grouped_allgather.{name}"
        tensors = [dense(tensor) for tensor in some_members_of(tensors)]
        sources = [as_sent(tensor) for tensor in tensors]
        as_bytes = any(source is not tensor for source, tensor in zip(sources, tensors))
        if check_all(sources, MOVABLE, process_set):
            taken = submitted(sources, None, engine())
            sources, fetch = taken.sources, taken.all
        else:
            sources, fetch = operands(sources), fetch_many(len(tensors))
        if as_bytes:
            fetch = viewed_all(fetch, [tensor.dtype for tensor in tensors])
        set_id = process_set.process_set_id
    except BaseException as error:
        failed("allgather", "grouped_allgather", name, process_set, error)
        raise
    handle = engine().allgather(sources, full_name, set_id)
    keep(handle, None, fetch)
    if taken:
        taken.begin(engine(), handle, False)
    return handle
