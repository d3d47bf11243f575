"""The smallest complete front end: Horovod's API on Python's array.array. docs/write-a-front-end.md explains it."""

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from horovod.common import exports
from horovod.common.arguments import Average
from horovod.common.basics import call_after_the_job, engine
from horovod.common.exceptions import HorovodInternalError
from horovod.common.exports import *  # noqa: F403
from horovod.common.objects import allgather_object, broadcast_object
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hvd_core._frontend import operations
from hvd_core._frontend.operations import (
    MOVABLE,
    REDUCIBLE,
    engine_number,
    join,
    request_name,
    unsupported_text,
)
from hvd_core._runtime.failures import report_failure
from hvd_core._runtime.process_sets import number_of

__all__ = [
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce_",
    "allreduce_async_",
    "broadcast_object",
    "global_process_set",
    "grouped_allreduce_",
    "join",
    "remove_process_set",
    "synchronize",
]
__all__ += exports.__all__

# The framework's part: handle -> (arrays that must stay alive, function that makes the result).
_pending: dict[int, tuple[Any, Callable]] = {}
call_after_the_job(_pending.clear)


# The framework's part: its tensor in a form that the engine takes, or a ValueError.
def _view(values: array, allowed: frozenset) -> np.ndarray:
    if not isinstance(values, array):
        raise ValueError(f"An array.array is required, but found {type(values).__name__}.")
    view = np.frombuffer(values, dtype=values.typecode)
    if view.dtype.name not in allowed:
        raise ValueError(unsupported_text(values.typecode, allowed is REDUCIBLE))
    return view


def allreduce_async_(
    values: array, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> int:
    """Start reducing an array in place. Returns a handle."""
    name = request_name("allreduce", name)
    with report_failure("allreduce", name, process_set):
        view, number = _view(values, REDUCIBLE), engine_number(op)
    handle = engine().allreduce(view, view, name, number, 1.0, 1.0, number_of(process_set))
    _pending[handle] = (view, lambda core: values)
    return handle


def grouped_allreduce_(
    arrays: list[array],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> list[array]:
    """Reduce several arrays in place as one all-or-nothing operation."""
    name = request_name("grouped_allreduce", name)
    with report_failure("allreduce", name, process_set):
        arrays = operations.some_members_of(arrays, array)
        views, number = [_view(values, REDUCIBLE) for values in arrays], engine_number(op)
    engine().allreduce(views, views, name, number, 1.0, 1.0, number_of(process_set), True)
    return arrays


def allreduce_(values: array, *arguments: Any, **options: Any) -> array:
    """Reduce an array in place, and wait. Arguments as in allreduce_async_."""
    return synchronize(allreduce_async_(values, *arguments, **options))


def allgather(values: array, name: str | None = None, process_set: ProcessSet = global_process_set) -> array:
    """The arrays of all ranks behind each other, in rank order. Their lengths may differ."""
    name = request_name("allgather", name)
    with report_failure("allgather", name, process_set):
        view = _view(values, MOVABLE)
    handle = engine().allgather([view], name, number_of(process_set))
    # The framework's part: a tensor of the framework for memory that the engine has allocated.
    _pending[handle] = (view, lambda core: array(values.typecode, core.output_array(handle, 0).tobytes()))
    return synchronize(handle)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result."""
    core = engine()
    try:
        core.wait(handle)
        _, result_of = _pending[handle]
        return result_of(core)
    finally:
        # Ctrl-C ends the wait and leaves the operation pending: its arrays must stay alive.
        if core.poll(handle):
            core.release(handle)
            del _pending[handle]
