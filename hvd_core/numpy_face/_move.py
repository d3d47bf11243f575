"""The functions that move data without computing: allgather, broadcast, alltoall. Any thread may call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hvd_core._frontend.operations import request_name
from hvd_core._frontend.rows import row_counts
from hvd_core._runtime.current_job import engine
from hvd_core._runtime.process_sets import ProcessSet
from hvd_core.numpy_face._handles import (
    contiguous_array_of,
    failed,
    inputs_and_outputs,
    keep,
    number_of,
    synchronize,
)


def _as_bits(array: np.ndarray) -> np.ndarray:
    """The array in a type that NumPy takes back over DLPack: operations that only move data can send plain bits."""
    return array if array.dtype.kind in "biuf" else array.view(f"u{array.dtype.itemsize}")


def _arrays(tensors: Iterable) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The tensors as contiguous arrays, and the arrays that are sent for them."""
    arrays = [contiguous_array_of(tensor) for tensor in tensors]
    return arrays, [_as_bits(array) for array in arrays]


def _allgather_async(tensors, prefix, name, process_set, single) -> int:
    try:
        full_name = request_name(prefix, name)
        arrays, plain = _arrays(tensors)
        result = [a.dtype for a in arrays], single
        number = number_of(process_set)
    except BaseException as error:
        failed("allgather", prefix, name, process_set, error)
        raise
    return keep(engine().allgather(plain, full_name, number), "gathered", result, plain)


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet | None = None) -> int:
    """Start an allgather; the first dimension may differ from rank to rank. Returns a handle."""
    return _allgather_async([tensor], "allgather", name, process_set, single=True)


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet | None = None) -> np.ndarray:
    """Concatenate the arrays of all ranks along dimension 0, in rank order.

    All other dimensions and the dtype must be the same everywhere; dimension 0 may be 0 on some or all ranks.
    """
    return synchronize(allgather_async(tensor, name, process_set))


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet | None = None
) -> int:
    """Start the allgather of a group: all members are gathered, or none. Returns one handle."""
    return _allgather_async(tensors, "grouped_allgather", name, process_set, single=False)


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet | None = None
) -> list[np.ndarray]:
    """Gather several arrays in one operation; see allgather()."""
    return synchronize(grouped_allgather_async(tensors, name, process_set))


def _broadcast(tensors, in_place, single, root_rank, prefix, name, process_set) -> int:
    try:
        full_name = request_name(prefix, name)
        inputs, outputs = inputs_and_outputs(tensors, in_place)
        number = number_of(process_set)
    except BaseException as error:
        failed("broadcast", prefix, name, process_set, error)
        raise
    handle = engine().broadcast(inputs, outputs, root_rank, full_name, number)
    return keep(handle, "ready", outputs[0] if single else outputs, inputs)


def broadcast_async_(
    tensor: np.ndarray, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> int:
    """Start a broadcast in place. Returns a handle."""
    return _broadcast((tensor,), True, True, root_rank, "broadcast", name, process_set)


def broadcast_(
    tensor: np.ndarray, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> np.ndarray:
    """Overwrite the array with that of ``root_rank`` (its rank in the job, also within a process set).

    Shape and dtype must be the same on all ranks.
    """
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> int:
    """Start a broadcast into a new array. Returns a handle."""
    return _broadcast((tensor,), False, True, root_rank, "broadcast", name, process_set)


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> np.ndarray:
    """The array of ``root_rank``, on every rank; shape and dtype of the inputs must be the same everywhere."""
    return synchronize(broadcast_async(tensor, root_rank, name, process_set))


def grouped_broadcast_async_(
    tensors: Sequence[np.ndarray],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the broadcast of a group in place: all members, or none. Returns one handle."""
    return _broadcast(tensors, True, False, root_rank, "grouped_broadcast", name, process_set)


def grouped_broadcast_(
    tensors: Sequence[np.ndarray],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[np.ndarray]:
    """Overwrite several arrays with those of ``root_rank``; see broadcast_()."""
    return synchronize(grouped_broadcast_async_(tensors, root_rank, name, process_set))


def _alltoall_async(tensors, splits, prefix, name, process_set, single) -> int:
    try:
        full_name = request_name(prefix, name)
        arrays, plain = _arrays(tensors)
        rows = [] if splits is None else [row_counts(given) for given in splits]
        result = [a.dtype for a in arrays], single
        number = number_of(process_set)
    except BaseException as error:
        failed("alltoall", prefix, name, process_set, error)
        raise
    return keep(engine().alltoall(plain, rows, full_name, number), "exchanged", result, plain)


def alltoall_async(
    tensor: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> int:
    """Start an alltoall. Returns a handle; its result is the pair (output, received splits)."""
    given = None if splits is None else [splits]
    return _alltoall_async([tensor], given, "alltoall", name, process_set, True)


def alltoall(
    tensor: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Send ``splits[i]`` rows of the array, in order, to rank i of the set, and return the rows that all ranks sent here,
    in rank order.

    ``splits``: one entry per rank of the set; their sum may be smaller than dimension 0, then the rows at the end are not
    sent. None: equal shares, dimension 0 must be a multiple of the number of ranks. With splits the result is the pair
    (output, received splits as int32), without it is the output alone. Raises ValueError for splits that do not fit.
    """
    output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, received)


def grouped_alltoall_async(
    tensors: Sequence[Any],
    splits: Sequence[Sequence[int]] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the alltoall of a group, with splits for each member or for no member. Returns one handle."""
    return _alltoall_async(tensors, splits, "grouped_alltoall", name, process_set, False)


def grouped_alltoall(
    tensors: Sequence[Any],
    splits: Sequence[Sequence[int]] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Exchange several arrays in one operation; returns outputs and received splits. See alltoall()."""
    return synchronize(grouped_alltoall_async(tensors, splits, name, process_set))
