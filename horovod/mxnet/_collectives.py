"""One collective on arrays of MXNet, from the check of its arguments to its result. Used by ``mpi_ops``. Any thread.

A mistake that is found here is an error of the other ranks' matching calls too. `prefix` begins the request's name, and
keeps groups apart.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from horovod.common.arguments import Adasum
from horovod.common.basics import engine
from horovod.common.failed_calls import failed
from horovod.mxnet._arrays import MOVABLE, REDUCIBLE, NDArray, check, empty, reference
from hvd_core._core import TensorRef
from hvd_core._frontend.operations import request_name
from hvd_core._frontend.reductions import engine_number
from hvd_core._frontend.rows import row_counts
from hvd_core._runtime.process_set import number_of


class UnsupportedOpError(ValueError, AssertionError):
    """An operation does not have this reduce op: a ValueError, and the AssertionError that programs may catch."""


def reduce(inputs, outputs, prefix, name, op, factors, process_set) -> list:
    """Allreduce of the arrays, into `outputs` (the inputs themselves) or new arrays; returns these."""
    try:
        full_name = request_name(prefix, name)
        for array in inputs:
            check(array, REDUCIBLE)
        op_number, set_number = engine_number(op), number_of(process_set)
        if outputs is None:
            outputs = [empty(array.shape, array) for array in inputs]
            sent = [reference(array, writes=False) for array in inputs]
            received = [reference(array, writes=True) for array in outputs]
        else:
            sent = received = [reference(array, writes=True) for array in inputs]
    except BaseException as error:
        failed("allreduce", prefix, name, process_set, error)
        raise
    if prefix == "allreduce":
        sent, received = sent[0], received[0]
    engine().allreduce(sent, received, full_name, op_number, *factors, set_number, True)
    return list(outputs)


def gather(inputs, prefix, name, process_set) -> list:
    """Allgather of the arrays into new arrays."""
    try:
        full_name = request_name(prefix, name)
        for array in inputs:
            check(array, MOVABLE)
        sent = [reference(array, writes=False) for array in inputs]
        number = number_of(process_set)
    except BaseException as error:
        failed("allgather", prefix, name, process_set, error)
        raise
    core = engine()
    handle = core.allgather(sent, full_name, number)
    return _results(core, handle, lambda: [_output(core, handle, i, a) for i, a in enumerate(inputs)])


def _results(core, handle: int, fetch: Callable) -> Any:
    """The value of fetch(), when the operation is done. The engine keeps the arrays of an operation whose wait ends
    early, so the handle is released in any case."""
    try:
        core.wait(handle)
        return fetch()
    finally:
        core.release(handle)


def _output(core, handle: int, index: int, like: NDArray) -> NDArray:
    """An output that the engine has allocated, as a new array of the type of `like`."""
    output = empty(tuple(core.output_info(handle, index)[0]), like)
    core.copy_output(handle, index, reference(output, writes=True))
    return output


def send_root(tensor, in_place, root_rank, name, process_set) -> NDArray:
    """Broadcast of an array, in place or into a new array."""
    try:
        full_name = request_name("broadcast", name)
        check(tensor, MOVABLE)
        output = tensor if in_place else empty(tensor.shape, tensor)
        received = reference(output, writes=True)
        sent = received if in_place else reference(tensor, writes=False)
        number = number_of(process_set)
    except BaseException as error:
        failed("broadcast", "broadcast", name, process_set, error)
        raise
    core = engine()
    handle = core.broadcast([sent], [received], root_rank, full_name, number)
    return _results(core, handle, lambda: output)


def send_rows(tensor, splits, name, process_set) -> Any:
    """Alltoall of an array: the received rows, and with splits also how many came from each rank."""
    try:
        full_name = request_name("alltoall", name)
        check(tensor, MOVABLE)
        if isinstance(splits, NDArray):
            splits = splits.asnumpy().tolist()
        rows = [] if splits is None else [row_counts(splits)]
        sent = reference(tensor, writes=False)
        number = number_of(process_set)
    except BaseException as error:
        failed("alltoall", "alltoall", name, process_set, error)
        raise
    core = engine()
    handle = core.alltoall([sent], rows, full_name, number)

    def fetch() -> Any:
        output = _output(core, handle, 0, tensor)
        if splits is None:
            return output
        received = empty((len(rows[0]),), tensor).astype("int32")
        received[:] = np.array(core.received_splits(handle, 0), dtype=np.int32)
        return output, received

    return _results(core, handle, fetch)


def scatter(inputs, prefix, name, op, factors, process_set) -> list:
    """Reducescatter of the arrays into new arrays."""
    try:
        full_name = request_name(prefix, name)
        if op == Adasum:
            raise UnsupportedOpError(
                "Reducescatter has no op Adasum. Use hvd.Average, Sum, Min, Max or Product."
            )
        op_number, set_number = engine_number(op), number_of(process_set)
        for array in inputs:
            check(array, REDUCIBLE)
            if not array.shape:
                raise ValueError("reducescatter does not support scalar inputs.")
        rows = engine().scattered_rows
        outputs = [empty((rows(a.shape[0], set_number), *a.shape[1:]), a) for a in inputs]
        sent = [reference(array, writes=False) for array in inputs]
        received: list[TensorRef] = [reference(array, writes=True) for array in outputs]
    except BaseException as error:
        failed("reducescatter", prefix, name, process_set, error)
        raise
    core = engine()
    handle = core.reducescatter(sent, received, full_name, op_number, *factors, set_number)
    return _results(core, handle, lambda: outputs)
