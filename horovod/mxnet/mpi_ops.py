"""The operations of ``horovod.mxnet`` on MXNet's arrays in host memory.

All ranks of the process set call an operation, and each call waits for its result. Calls with a name may come in any
order from rank to rank; calls without one in the same order. ``priority`` is accepted for programs written for Horovod
and has no effect: MXNet orders what waits in its queue by it, and here nothing waits. There are no gradients, as in
Horovod: reduce gradients with DistributedTrainer or DistributedOptimizer. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from horovod.common.arguments import Adasum, Average, op_from
from horovod.common.basics import engine
from horovod.common.failed_calls import reported_for_each
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet._arrays import NDArray, check, empty, reference
from hvd_core._core import Engine
from hvd_core._frontend import operations
from hvd_core._frontend.operations import MOVABLE, REDUCIBLE, engine_number, request_name, row_counts
from hvd_core._runtime.failures import send_failure
from hvd_core._runtime.process_sets import number_of

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]


class UnsupportedOpError(ValueError, AssertionError):
    """An operation does not have this reduce op: a ValueError, and the AssertionError that programs may catch."""


def allreduce(
    tensor: NDArray,
    average: Any = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> NDArray:
    """Reduce an array over all ranks into a new array.

        loss = hvd.allreduce(loss, name="loss")  # the mean of all ranks

    Args:
        tensor: any shape; a dense array in host memory of an integer type of up to 64 bits or float16, float32, float64.
            Shape and dtype must be the same on all ranks.
        average: deprecated, use `op`: True for Average, False for Sum.
        name: identifies the operation across ranks.
        priority: no effect.
        prescale_factor, postscale_factor: the input and the result are multiplied by them.
        process_set: the ranks that take part.
        op: hvd.Average (the default), Sum, Min, Max, Product or Adasum. Averages of integers truncate toward zero.

    Returns:
        An array of the shape, dtype and class of `tensor`, the same on all ranks.

    Raises:
        ValueError: the tensor, op or process set cannot be used, both `op` and `average` are given, or before init(); the
            matching calls of the other ranks fail. MXNetError: the work that produces `tensor` has failed.
        HorovodInternalError: ranks disagree, or a rank has made a mistake or is gone.
    """
    return _collective(
        "allreduce",
        tensor,
        name,
        process_set,
        _reduction(op, average, prescale_factor, postscale_factor),
    )[0]


def allreduce_(
    tensor: NDArray,
    average: Any = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> NDArray:
    """Reduce an array over all ranks in place, without a copy. Arguments and errors as in allreduce().

        hvd.allreduce_(gradient, op=hvd.Sum, name="gradient")

    Returns:
        `tensor`.
    """
    return _collective(
        "allreduce",
        tensor,
        name,
        process_set,
        _reduction(op, average, prescale_factor, postscale_factor),
        in_place=True,
    )[0]


def grouped_allreduce(
    tensors: Sequence[NDArray],
    average: Any = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[NDArray]:
    """Reduce several arrays as one all-or-nothing operation. Arguments and errors as in allreduce().

        loss, accuracy = hvd.grouped_allreduce([loss, accuracy], name="metrics")

    Args:
        tensors: a list; the arrays may differ in shape and dtype. Without arrays nothing is sent, and a list with arrays
            on another rank fails there.

    Returns:
        A list of new arrays.
    """
    return _collective(
        "allreduce",
        tensors,
        name,
        process_set,
        _reduction(op, average, prescale_factor, postscale_factor),
        grouped=True,
    )


def grouped_allreduce_(
    tensors: Sequence[NDArray],
    average: Any = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[NDArray]:
    """Reduce several arrays in place as one all-or-nothing operation. See grouped_allreduce().

        hvd.grouped_allreduce_([weight.grad(), bias.grad()], name="layer")

    Returns:
        A list of the arrays in `tensors`.
    """
    return _collective(
        "allreduce",
        tensors,
        name,
        process_set,
        _reduction(op, average, prescale_factor, postscale_factor),
        grouped=True,
        in_place=True,
    )


def allgather(
    tensor: NDArray,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Concatenate the arrays of all ranks along dimension 0, in rank order, into a new array.

        losses = hvd.allgather(loss.reshape((1,)), name="losses")  # shape (hvd.size(),)

    Args:
        tensor: one dimension or more, of any type that MXNet has. Dimension 0 may differ from rank to rank; the other
            dimensions and the dtype must agree.
        name, priority, process_set: as in allreduce().

    Raises:
        ValueError, MXNetError, HorovodInternalError: as in allreduce().
    """
    return _collective("allgather", tensor, name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[NDArray]:
    """Gather several arrays as one all-or-nothing operation; returns a list of new arrays. See allgather().

    outputs, labels = hvd.grouped_allgather([outputs, labels], name="predictions")
    """
    return _collective("allgather", tensors, name, process_set, grouped=True)


def broadcast(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """The root's array on every rank, as a new array.

        order = hvd.broadcast(order, root_rank=0, name="order")

    Args:
        tensor: of any type that MXNet has. Shape and dtype must be the same on all ranks; the values count on the root.
        root_rank: the GLOBAL rank that sends, also within a process set.
        name, priority, process_set: as in allreduce().

    Raises:
        ValueError, MXNetError, HorovodInternalError: as in allreduce().
    """
    return _collective("broadcast", tensor, name, process_set, lambda: (root_rank,))[0]


def broadcast_(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Overwrite the array with the root's; returns it. Arguments and errors as in broadcast().

    hvd.broadcast_(weight.data(), root_rank=0, name="weight")
    """
    return _collective("broadcast", tensor, name, process_set, lambda: (root_rank,), in_place=True)[0]


def alltoall(
    tensor: NDArray,
    splits: Sequence[int] | NDArray | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of an array to each rank, and receive the rows that the other ranks send here.

        tokens, rows = hvd.alltoall(tokens, splits=rows_for_each_rank, name="tokens")

    Args:
        tensor: one dimension or more, of any type that MXNet has. Dimension 0 may differ from rank to rank.
        splits: how many rows go to each rank of the process set, in rank order: integers, or a 1-D array of them. None:
            equal shares, dimension 0 must be a multiple of the number of ranks.
        name, priority, process_set: as in allreduce().

    Returns:
        The received rows in rank order. With `splits` a pair: these, and how many came from each rank, a 1-D array of
        int32.

    Raises:
        ValueError: as in allreduce(), and for splits that do not fit.
        MXNetError, HorovodInternalError: as in allreduce().
    """

    def rows() -> tuple[list[list[int]]]:
        if splits is None:
            return ([],)
        return ([row_counts(splits.asnumpy().tolist() if isinstance(splits, NDArray) else splits)],)

    outputs = _collective("alltoall", tensor, name, process_set, rows)
    return outputs[0] if splits is None else tuple(outputs)


def reducescatter(
    tensor: NDArray,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> NDArray:
    """Reduce an array over all ranks, and return this rank's rows of the result as a new array.

        rows = hvd.reducescatter(mx.nd.ones((2 * hvd.size(), 3)), op=hvd.Sum, name="sums")  # shape (2, 3)

    Args:
        tensor: one dimension or more; types as in allreduce(). Shape and dtype must be the same on all ranks. If the rows
            are not a multiple of the number of ranks, the first ranks get one more.
        op: hvd.Average, Sum, Min, Max or Product.
        name, priority, process_set, prescale_factor, postscale_factor: as in allreduce().

    Raises:
        ValueError, MXNetError, HorovodInternalError: as in allreduce(); the ValueError for op=hvd.Adasum is an
            AssertionError as well.
    """
    return _collective(
        "reducescatter",
        tensor,
        name,
        process_set,
        _scattering(op, prescale_factor, postscale_factor),
    )[0]


def grouped_reducescatter(
    tensors: Sequence[NDArray],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[NDArray]:
    """Reduce and scatter several arrays as one all-or-nothing operation; returns a list. See reducescatter().

    weights, biases = hvd.grouped_reducescatter([weights, biases], op=hvd.Sum, name="layer")
    """
    return _collective(
        "reducescatter",
        tensors,
        name,
        process_set,
        _scattering(op, prescale_factor, postscale_factor),
        grouped=True,
    )


def _reduction(
    op: int | None, average: Any, prescale: float, postscale: float
) -> Callable[[], tuple[int, float, float]]:
    return lambda: (engine_number(op_from(op, average, stacklevel=5)), prescale, postscale)


def _scattering(op: int, prescale: float, postscale: float) -> Callable[[], tuple[int, float, float]]:
    def arguments() -> tuple[int, float, float]:
        if op == Adasum:
            raise UnsupportedOpError(
                "Reducescatter has no op Adasum. Use hvd.Average, Sum, Min, Max or Product."
            )
        return engine_number(op), prescale, postscale

    return arguments


# The engine's call for each operation; `given` are the operation's own arguments. Returns a handle; 0 if it has waited.
_SUBMIT: dict[str, Callable[..., int]] = {
    "allgather": lambda core, sent, received, name, number: core.allgather(sent, name, number),
    "allreduce": lambda core, sent, received, name, number, *given: core.allreduce(
        sent, received, name, *given, number, True
    ),
    "alltoall": lambda core, sent, received, name, number, rows: core.alltoall(sent, rows, name, number),
    "broadcast": lambda core, sent, received, name, number, root: core.broadcast(
        sent, received, root, name, number, True
    ),
    "reducescatter": lambda core, sent, received, name, number, *given: core.reducescatter(
        sent, received, name, *given, number
    ),
}


def _collective(
    operation: str,
    tensors: Any,
    name: str | None,
    process_set: ProcessSet,
    arguments: Callable[[], tuple[Any, ...]] = tuple,
    *,
    grouped: bool = False,
    in_place: bool = False,
) -> list[NDArray]:
    """One operation, from the check of its arguments to its results.

    Args:
        tensors: an array, or those of a group.
        arguments: returns the operation's own arguments for _SUBMIT. A mistake that it raises, as any other one that is
            found before the engine is called, is an error of the other ranks' matching calls too.
    """
    prefix = f"grouped_{operation}" if grouped else operation
    with reported_for_each(operation, prefix, [name], process_set):
        inputs = operations.members_of(tensors, NDArray) if grouped else [tensors]
        given = arguments()
        full_name, number = request_name(prefix, name), number_of(process_set)
        for array in inputs:
            check(array, REDUCIBLE if operation in ("allreduce", "reducescatter") else MOVABLE)
            if operation == "reducescatter" and not array.shape:
                raise ValueError("reducescatter does not support scalar inputs.")
        outputs = inputs if in_place else _outputs(operation, inputs, number)
        sent = [reference(array, writes=in_place) for array in inputs]
        received = sent if in_place else [reference(array, writes=True) for array in outputs]
    if not inputs:  # the other ranks' groups fail, if they have arrays
        send_failure(operation, name, process_set, f"{prefix}() was called there with an empty list.", prefix)
        return []
    core = engine()
    if operation == "allreduce" and not grouped:
        handle = _SUBMIT[operation](core, sent[0], received[0], full_name, number, *given)
    else:
        handle = _SUBMIT[operation](core, sent, received, full_name, number, *given)
    if not handle:
        return outputs
    # The engine keeps the arrays of an operation whose wait ends early, so the handle is released in any case.
    try:
        core.wait(handle)
        if operation in ("allgather", "alltoall"):
            outputs = [_output(core, handle, i, array) for i, array in enumerate(inputs)]
        if operation == "alltoall" and given[0]:
            rows = empty((len(given[0][0]),), inputs[0]).astype("int32")
            rows[:] = np.array(core.received_splits(handle, 0), dtype=np.int32)
            outputs.append(rows)
        return outputs
    finally:
        core.release(handle)


def _outputs(operation: str, inputs: list[NDArray], number: int) -> list[NDArray]:
    """New arrays for the results; none where the engine allocates them."""
    if operation in ("allgather", "alltoall"):
        return []
    if operation == "reducescatter":
        rows = engine().scattered_rows
        return [empty((rows(a.shape[0], number), *a.shape[1:]), a) for a in inputs]
    return [empty(array.shape, array) for array in inputs]


def _output(core: Engine, handle: int, index: int, like: NDArray) -> NDArray:
    """An output that the engine has allocated, as a new array of the type of `like`."""
    output = empty(tuple(core.output_info(handle, index)[0]), like)
    core.copy_output(handle, index, reference(output, writes=True))
    return output
