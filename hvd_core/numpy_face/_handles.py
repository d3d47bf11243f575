"""The parts that all functions of the NumPy API share, and the functions that take a handle.

The arrays of a handle are kept here until ``synchronize()``. Any thread may call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_core._frontend import job_operations
from hvd_core._frontend.job_operations import join
from hvd_core._runtime.current_job import call_after_the_job, engine
from hvd_core._runtime.host_arrays import output_array
from hvd_core._runtime.process_sets import ProcessSet
from hvd_core._runtime.process_sets import number_of as number_of_set
from hvd_core._runtime.refusals import report

__all__ = [
    "array_of",
    "barrier",
    "contiguous_array_of",
    "failed",
    "inputs_and_outputs",
    "join",
    "keep",
    "number_of",
    "poll",
    "results",
    "synchronize",
]

# handle -> (kind of result, description of the result, arrays that must stay alive)
results: dict[int, tuple[str, Any, Any]] = {}

call_after_the_job(results.clear)


def array_of(tensor: Any) -> np.ndarray:
    """The tensor as an array, without a copy where it is an array or speaks DLPack."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if hasattr(tensor, "__dlpack__") and not np.isscalar(tensor):
        return np.from_dlpack(tensor)
    return np.asarray(tensor)


def contiguous_array_of(tensor: Any) -> np.ndarray:
    """As array_of(), and contiguous; 0-dim arrays stay 0-dim."""
    array = array_of(tensor)
    return np.ascontiguousarray(array).reshape(array.shape)


def inputs_and_outputs(tensors: Any, in_place: bool) -> tuple[list, list]:
    """The lists of arrays that the engine reads and writes. In place they are one list, of the caller's arrays, which the
    engine checks; else contiguous arrays, and new ones of their shapes and dtypes."""
    if in_place:
        arrays = list(tensors)
        return arrays, arrays
    arrays = [contiguous_array_of(tensor) for tensor in tensors]
    return arrays, [np.empty_like(array) for array in arrays]


def number_of(process_set: ProcessSet | None) -> int:
    """The engine's number of a process set; None is all ranks. Raises ValueError for a set that is not registered."""
    return 0 if process_set is None else number_of_set(process_set)


def failed(operation: str, prefix: str, name: Any, process_set: Any, error: BaseException) -> None:
    """Let the other ranks' matching call fail, because ``error`` was raised while this one was prepared.

    Called in the guard of a function (see hvd_core._runtime.refusals), which then raises ``error`` again. Raises
    ValueError before init(), as the missing init() is the better message.
    """
    if isinstance(error, Exception):
        engine()
    report(operation, name, process_set, error, prefix)


def keep(handle: int, kind: str, result: Any, alive: Any) -> int:
    """Remember the result of ``synchronize(handle)``, and the arrays that must stay alive until then. Returns the handle.

    ``kind``: "ready" (``result`` is returned), "gathered" or "exchanged" (the engine allocates the outputs; ``result``
    is the pair of their dtypes and of whether one array is returned and not a list).
    """
    results[handle] = (kind, result, alive)
    return handle


def barrier(process_set: ProcessSet | None = None) -> None:
    """Wait until all ranks of the set have called barrier()."""
    try:
        number = number_of(process_set)
    except BaseException as error:
        failed("barrier", "barrier", None, process_set, error)
        raise
    job_operations.barrier(number)


def poll(handle: int) -> bool:
    """Whether the operation is done, so that synchronize() would not wait. Raises ValueError for an unknown handle."""
    return engine().poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result; the handle is forgotten.

    Raises HorovodInternalError when the operation failed, ValueError for an unknown handle.
    """
    core = engine()
    try:
        core.wait(handle)
        kind, result, _ = results[handle]
        if kind == "ready":
            return result
        dtypes, single = result
        arrays = [output_array(core, handle, i).view(dtype) for i, dtype in enumerate(dtypes)]
        if kind == "exchanged":
            splits = [np.array(core.received_splits(handle, i), dtype=np.int32) for i in range(len(arrays))]
            return (arrays[0], splits[0]) if single else (arrays, splits)
        return arrays[0] if single else arrays
    finally:
        # An interrupted wait leaves the operation pending: its arrays must stay.
        if core.known(handle) and core.poll(handle):
            core.release(handle)
            results.pop(handle, None)
