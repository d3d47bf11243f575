"""The functions that compute: allreduce and reducescatter. Any thread may call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_core._frontend.operations import request_name
from hvd_core._frontend.reductions import ENGINE_NUMBERS, Average, engine_number
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


def _allreduce(
    tensors, in_place, single, prefix, name, op, prescale_factor, postscale_factor, process_set
) -> int:
    try:
        full_name = request_name(prefix, name)
        inputs, outputs = inputs_and_outputs(tensors, in_place)
        op = engine_number(op)
        number = number_of(process_set)
    except BaseException as error:
        failed("allreduce", prefix, name, process_set, error)
        raise
    handle = engine().allreduce(inputs, outputs, full_name, op, prescale_factor, postscale_factor, number)
    return keep(handle, "ready", outputs[0] if single else outputs, inputs)


def allreduce_async(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start an allreduce of one array; the result is a new array of the same shape and dtype. Returns a handle."""
    return _allreduce(
        (tensor,), False, True, "allreduce", name, op, prescale_factor, postscale_factor, process_set
    )


def allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> np.ndarray:
    """Reduce an array over all ranks and return the result, of the same shape and dtype, on every rank.

    ``op``: Average, Sum, Adasum (floating types only), Min, Max or Product. The input is multiplied by
    ``prescale_factor``, the result by ``postscale_factor``. Averages of integers truncate toward zero.
    """
    return synchronize(allreduce_async(tensor, name, op, prescale_factor, postscale_factor, process_set))


def allreduce_async_(
    tensor: np.ndarray,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start an allreduce in place. The array must be contiguous and writable. Returns a handle."""
    return _allreduce(
        (tensor,), True, True, "allreduce", name, op, prescale_factor, postscale_factor, process_set
    )


def allreduce_(
    tensor: np.ndarray,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> np.ndarray:
    """Reduce an array in place over all ranks; see allreduce()."""
    try:
        full_name = None if name is None else f"allreduce.{name}"
        try:
            op_number = ENGINE_NUMBERS[op]
        except (KeyError, TypeError):
            op_number = engine_number(op)
        set_number = number_of(process_set)
    except BaseException as error:
        failed("allreduce", "allreduce", name, process_set, error)
        raise
    engine().allreduce(
        tensor, tensor, full_name, op_number, prescale_factor, postscale_factor, set_number, True
    )
    return tensor


def grouped_allreduce_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the allreduce of a group: all members are reduced, or none. Returns one handle."""
    return _allreduce(
        tensors, False, False, "grouped_allreduce", name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce(
    tensors: Sequence[Any], name: str | None = None, op: int = Average, **options
) -> list[np.ndarray]:
    """Reduce a group of arrays; see allreduce() and grouped_allreduce_async()."""
    return synchronize(grouped_allreduce_async(tensors, name, op, **options))


def grouped_allreduce_async_(
    tensors: Sequence[np.ndarray],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the allreduce of a group in place. Returns one handle."""
    return _allreduce(
        tensors, True, False, "grouped_allreduce", name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_(tensors: Sequence[np.ndarray], name: str | None = None, op: int = Average, **options):
    """Reduce a group of arrays in place; see allreduce()."""
    return synchronize(grouped_allreduce_async_(tensors, name, op, **options))


def _reducescatter(tensors, prefix, name, op, prescale_factor, postscale_factor, process_set, single) -> int:
    try:
        full_name = request_name(prefix, name)
        arrays = [contiguous_array_of(tensor) for tensor in tensors]
        op = engine_number(op)
        number = number_of(process_set)
        rows = engine().scattered_rows
        outputs = [
            np.empty((rows(a.shape[0], number), *a.shape[1:]) if a.ndim else (), a.dtype) for a in arrays
        ]
    except BaseException as error:
        failed("reducescatter", prefix, name, process_set, error)
        raise
    handle = engine().reducescatter(arrays, outputs, full_name, op, prescale_factor, postscale_factor, number)
    return keep(handle, "ready", outputs[0] if single else outputs, (arrays, outputs))


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start a reducescatter. Returns a handle."""
    return _reducescatter(
        [tensor], "reducescatter", name, op, prescale_factor, postscale_factor, process_set, True
    )


def reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> np.ndarray:
    """Reduce an array over the ranks of the set and return this rank's rows of the result.

    Rows (dimension 0) are shared out in rank order; if they are not a multiple of the number of ranks, the first ranks
    get one more. ``op``: Average, Sum, Min, Max or Product; factors as in allreduce(). Shape and dtype must be the same
    on all ranks; a 0-dim array is a ValueError.
    """
    return synchronize(reducescatter_async(tensor, name, op, prescale_factor, postscale_factor, process_set))


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
) -> int:
    """Start the reducescatter of a group: all members, or none. Returns one handle."""
    return _reducescatter(
        tensors, "grouped_reducescatter", name, op, prescale_factor, postscale_factor, process_set, False
    )


def grouped_reducescatter(
    tensors: Sequence[Any], name: str | None = None, op: int = Average, **options
) -> list[np.ndarray]:
    """Reduce and scatter several arrays in one operation; see reducescatter()."""
    return synchronize(grouped_reducescatter_async(tensors, name, op, **options))
