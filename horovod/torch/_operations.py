"""The collectives: a table of operations, and submit(), from which all public functions are made.

The tensors of a call are an `Operand`; what differs between the operations stands in the rows of the table. A small
allreduce of a plain tensor takes the short way of start_plain(). Unnamed operations are matched in the order of
submission, so all ranks must submit those in the same order; named ones may be submitted in any order. Any thread that
holds the GIL (backward hooks run on autograd's threads).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from horovod.common.arguments import Adasum, Average, Sum, op_from
from horovod.common.basics import call_after_the_job, engine
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch._dtypes import MOVABLE, REDUCIBLE
from horovod.torch._operand import BY_ADDRESS, Operand, are_plain, check, dense, empty_like
from hvd_core._frontend import operations
from hvd_core._frontend.operations import ENGINE_NUMBERS, engine_number, row_counts
from hvd_core._runtime.failures import report_failure, send_failure

if TYPE_CHECKING:
    from hvd_core._core import Engine


class UnsupportedOpError(ValueError, NotImplementedError):
    """An operation does not have this reduce op: a ValueError, and the NotImplementedError (a RuntimeError) that programs
    catch."""


def resolve_op(op: int | None, average: Any, prefix: str, name: str | None, process_set: ProcessSet) -> int:
    """The reduce op that the arguments `op` and `average` of a public function mean together, which calls this.

    Raises:
        ValueError: both are given. The other ranks' calls fail too.
    """
    with report_failure("allreduce", name, process_set, prefix):
        return op_from(op, average, stacklevel=4)


# ------------------------------------------------------------------------------------------------------- the table

# The arguments of a call that are the operation's own, such as (op, prescale_factor, postscale_factor).
Arguments = tuple[Any, ...]
# request(engine, sources, targets, name, number of the process set, wait, arguments): the handle, 0 with `wait`.
Request = Callable[["Engine", Any, Any, str | None, int, bool, Arguments], int]


@dataclass(eq=False)
class Operation:
    """A collective: which tensors it takes, where its results go, and how the engine is called.

    Attributes:
        name: the engine's; names of requests begin with it.
        types: of the tensors that it takes.
        request: submits to the engine.
        outputs: makes the tensors for the results of a call that is not in place, or None: the engine allocates them.
        values: the arguments of a call as the engine takes them; None: as they are.
        waits: the engine's call can wait for the result of a single tensor, which spares a handle.
        has_root: the first argument is the rank whose tensors alone are read.
        grouped_name: what names of requests for groups begin with.
    """

    name: str
    types: frozenset[torch.dtype]
    request: Request
    outputs: Callable[[list[Any], ProcessSet], list[Any] | None] = lambda tensors, process_set: None
    values: Callable[[Arguments], Arguments] | None = None
    waits: bool = False
    has_root: bool = False
    grouped_name: str = field(init=False)

    def __post_init__(self) -> None:
        self.grouped_name = f"grouped_{self.name}"


def _alike(tensors: list[Any], process_set: ProcessSet) -> list[Any]:
    return [empty_like(tensor) for tensor in tensors]


def _own_rows(tensors: list[Any], process_set: ProcessSet) -> list[Any]:
    """New tensors for this rank's rows of a reducescatter."""
    for tensor in tensors:
        check(tensor, REDUCIBLE, process_set)  # before it is asked for its rows
        if not tensor.dim():
            raise ValueError("Reducescatter does not support scalar inputs")
    set_id: Any = process_set.process_set_id
    core = engine()
    return [t.new_empty((core.scattered_rows(t.shape[0], set_id), *t.shape[1:])) for t in tensors]


def _of_allreduce(arguments: Arguments) -> Arguments:
    op, prescale, postscale = arguments
    return _number_of(Average if op is None else op), prescale, postscale


def _of_reducescatter(arguments: Arguments) -> Arguments:
    op, prescale, postscale = arguments
    if op == Adasum:
        raise UnsupportedOpError("Reducescatter has no op Adasum. Use hvd.Average, Sum, Min, Max or Product.")
    return _number_of(op), prescale, postscale


def _number_of(op: Any) -> int:
    """The engine's number of a reduce op. Raises UnsupportedOpError if `op` is no reduce op."""
    try:
        return engine_number(op)
    except ValueError as error:
        raise UnsupportedOpError(str(error)) from None


def _of_alltoall(arguments: Arguments) -> Arguments:
    """The splits as a list in a list, an empty one for equal parts; type and device of the received splits."""
    splits = arguments[0]
    if splits is None:
        return [], (torch.int32, None)
    if not isinstance(splits, torch.Tensor):
        return [row_counts(splits)], (torch.int32, None)
    if splits.dim() != 1:
        raise ValueError(f"alltoall expects a 1D splits tensor, not one of shape {tuple(splits.shape)}.")
    if splits.is_floating_point() or splits.is_complex() or splits.dtype is torch.bool:
        raise ValueError(f"alltoall expects splits to contain 32-bit integer elements, not {splits.dtype}.")
    return [splits.tolist()], (splits.dtype, splits.device)


# Arguments: op, prescale_factor, postscale_factor.
ALLREDUCE = Operation(
    "allreduce",
    REDUCIBLE,
    lambda core, sources, targets, name, set_id, wait, values: core.allreduce(
        sources, targets, name, values[0], values[1], values[2], set_id, wait
    ),
    outputs=_alike,
    values=_of_allreduce,
    waits=True,
)
# No arguments.
ALLGATHER = Operation(
    "allgather",
    MOVABLE,
    lambda core, sources, targets, name, set_id, wait, values: core.allgather(sources, name, set_id),
)
# Argument: root_rank.
BROADCAST = Operation(
    "broadcast",
    MOVABLE,
    lambda core, sources, targets, name, set_id, wait, values: core.broadcast(
        sources, targets, values[0], name, set_id, wait
    ),
    outputs=_alike,
    waits=True,
    has_root=True,
)
# Argument: splits. The result is a pair: the received rows, and how many came from each rank.
ALLTOALL = Operation(
    "alltoall",
    MOVABLE,
    lambda core, sources, targets, name, set_id, wait, values: core.alltoall(
        sources, values[0], name, set_id
    ),
    values=_of_alltoall,
)
# Arguments: op, prescale_factor, postscale_factor.
REDUCESCATTER = Operation(
    "reducescatter",
    REDUCIBLE,
    lambda core, sources, targets, name, set_id, wait, values: core.reducescatter(
        sources, targets, name, values[0], values[1], values[2], set_id
    ),
    outputs=_own_rows,
    values=_of_reducescatter,
)

# --------------------------------------------------------------------------------------------------------- calling


def _plain_output(tensor: Any) -> torch.Tensor | None:
    """A new tensor for the result of start_plain(); None if `tensor` is not one in host memory."""
    try:
        if tensor.is_cpu and tensor.layout is torch.strided:
            return torch.empty_like(tensor, requires_grad=False)
    except Exception:  # no tensor, or no memory; the long way fails too, and reports it
        pass
    return None


def start_plain(
    tensor: Any, output: Any, name: Any, process_set: Any, arguments: Arguments, wait: bool
) -> int | None:
    """Submit an allreduce of `tensor` into `output` if neither they nor the arguments need a conversion, as mostly.

    Returns:
        The handle, 0 with `wait`; None if the call is another one, and nothing has been done.
    """
    op, prescale, postscale = arguments
    if op is None:
        op = Average
    if BY_ADDRESS or output is None or op.__class__ is not int or op not in ENGINE_NUMBERS:
        return None
    if process_set.__class__ is not ProcessSet:
        return None
    set_id: Any = process_set.process_set_id
    # The engine says whether it takes the tensors, the name, the factors and the set unchanged.
    handle = engine().try_allreduce(
        tensor, output, name, ENGINE_NUMBERS[op], prescale, postscale, set_id, wait
    )
    if handle:
        _handle_map[handle] = output
    return handle


def submit(
    operation: Operation,
    tensors: Any,
    name: Any,
    process_set: Any,
    arguments: Arguments = (),
    grouped: bool = False,
    in_place: bool = False,
    wait: bool = False,
) -> Any:
    """Submit an operation. Returns its handle for poll() and synchronize(); with `wait` its result: a tensor, a list for
    a group, a pair for an alltoall.

    Args:
        operation: of the table.
        tensors: a tensor, or with `grouped` a list of them, not empty: one all-or-nothing operation.
        name: the caller's; None numbers the call.
        process_set: the ranks that take part.
        arguments: those of the operation's row.
        in_place: the results replace the tensors.

    Raises:
        ValueError: Horovod is not initialized, or the tensors or arguments do not fit. The other ranks' calls fail too.
        HorovodInternalError: with `wait`: the operation failed, here or on another rank.
    """
    if operation is ALLREDUCE and not grouped:
        output = tensors if in_place else _plain_output(tensors)
        handle = start_plain(tensors, output, name, process_set, arguments, wait)
        if handle is not None:
            return output if wait else handle
    core = engine()  # fails before init()
    prefix = operation.grouped_name if grouped else operation.name
    try:
        full_name = None if name is None else f"{prefix}.{name}"
        given = operations.some_members_of(tensors, torch.Tensor) if grouped else [tensors]
        if not in_place:
            given = [dense(tensor) for tensor in given]
        outputs = given if in_place else operation.outputs(given, process_set)
        plain = not BY_ADDRESS and are_plain(given, operation.types, process_set)
        operand = None
        if not plain or outputs is None:
            root_rank = arguments[0] if operation.has_root else None
            operand = Operand(given, outputs, operation.types, process_set, grouped, plain, root_rank)
        values = arguments if operation.values is None else operation.values(arguments)
        set_id = process_set.process_set_id
    except BaseException as error:  # as report_failure, which would cost more
        send_failure(operation.name, name, process_set, error, prefix)
        raise
    output = outputs if grouped or outputs is None else outputs[0]
    if operand is None:  # the engine takes the tensors unchanged, and nothing is left to do afterwards
        sources, targets, is_staged = given if grouped else given[0], output, False
    else:
        sources, targets, is_staged = operand.sources, operand.targets, operand.is_staged
    engine_waits = wait and operation.waits and not grouped and not is_staged
    handle = operation.request(core, sources, targets, full_name, set_id, engine_waits, values)
    if not handle:
        return output
    _handle_map[handle] = operand if operand is not None and operand.needs_finish else output
    if operand is not None:
        if operation is ALLTOALL:
            operand.splits = values[1]
        operand.begin(core, handle, wait)
    return synchronize(handle) if wait else handle


# --------------------------------------------------------------------------------------------------------- handles

# handle -> output, or an Operand that makes it. The engine holds on to the tensors while it reads and writes their
# memory. The output itself and no tuple with it: Python's garbage collector would run more often.
_handle_map: dict[int, Any] = {}
_UNKNOWN = object()

call_after_the_job(_handle_map.clear)


def poll(handle: int) -> bool:
    """Whether an asynchronous operation is complete, so that `synchronize` would not block.

        handle = hvd.allreduce_async(tensor)
        while not hvd.poll(handle):
            compute_something_else()
        result = hvd.synchronize(handle)

    Args:
        handle: the result of an ``..._async`` function.

    Raises:
        ValueError: there is no such operation, or it has been synchronized already.
    """
    if handle not in _handle_map:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    output = _handle_map[handle]
    return output.poll(engine(), handle) if output.__class__ is Operand else engine().poll(handle)


def synchronize(handle: Any) -> Any:
    """Wait for an asynchronous operation and return its output. A handle can be synchronized once.

    The GIL is released while waiting, and Ctrl-C works. On a device the output is ready for work that is given to the
    current stream from now on; poll() says whether the work itself is done.

        handles = [hvd.allreduce_async(t, name=f"t.{i}") for i, t in enumerate(tensors)]
        results = [hvd.synchronize(handle) for handle in handles]

    Args:
        handle: the result of an ``..._async`` function, sparse_allreduce_async included.

    Returns:
        The output tensor, a list of tensors for a grouped operation, None for an unknown handle.

    Raises:
        HorovodInternalError: the operation failed, here or on another rank, or the job was shut down.
    """
    output = _handle_map.get(handle, _UNKNOWN)
    if output is _UNKNOWN:
        return handle() if callable(handle) else None
    core = engine()
    if output.__class__ is not Operand:
        core.finish(handle, _handle_map)
        return output
    # Not in a finally clause: after Ctrl-C the operation is still pending.
    try:
        core.wait(handle)
        output = output.finish(core, handle)
    except HorovodInternalError:
        forget(core, handle)
        raise
    forget(core, handle)
    return output


def settle_each(core: Engine, handles: list[int]) -> None:
    """Wait for operations, and let the current stream wait for those on devices. Results that are copied by the host are
    copied back while later operations are carried out.

    Raises:
        HorovodInternalError: an operation has failed. All of them have ended nevertheless.
    """
    failure = None
    for handle in handles:
        try:
            core.wait(handle)
            output = _handle_map[handle]
            if isinstance(output, Operand):
                output.finish(core, handle)
        except HorovodInternalError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def forget(core: Engine, handle: int) -> None:
    """Delete a finished handle and the references to its tensors."""
    if _handle_map.pop(handle, _UNKNOWN) is not _UNKNOWN:
        core.release(handle)


def forget_each(core: Engine, handles: list[int]) -> None:
    """forget() for each of the handles. The engine first: after Ctrl-C between the two, the rest is found and deleted."""
    core.release_each(handles)
    for handle in handles:
        _handle_map.pop(handle, None)


def forget_finished(handles: Iterable[int]) -> None:
    """Delete those of the handles that are finished. The engine still uses the tensors of the others."""
    core = engine()
    for handle in handles:
        if handle in _handle_map and core.poll(handle):
            forget(core, handle)


# -------------------------------------------------------------------------------------------------- sparse tensors


def start_sparse(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> SparseReduction:
    """Submit the reduction of a sparse tensor: two allgathers, of the indices and of the values. See mpi_ops."""
    engine()  # fails before init()
    first_name, second_name = (None, None) if name is None else (f"{name}.indices", f"{name}.values")
    with (
        report_failure("allgather", second_name, process_set, "allgather"),
        report_failure("allgather", first_name, process_set, "allgather"),
    ):
        if op not in (Average, Sum):
            raise NotImplementedError("Sparse tensors can be reduced with hvd.Average and hvd.Sum only.")
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
            found = getattr(tensor, "layout", type(tensor))
            raise ValueError(f"A sparse COO tensor is required, but found {found}.")
        shape = tensor.shape
        tensor = tensor.detach().coalesce()
        indices = tensor.indices().transpose(0, 1).contiguous()
        values = tensor.values().contiguous()
        check(values, REDUCIBLE, process_set)
        divisor = (process_set.size() or 1) if op == Average else 1
    with report_failure("allgather", second_name, process_set, "allgather"):
        first = submit(ALLGATHER, indices, first_name, process_set)  # reports its own failure
    return SparseReduction((first, submit(ALLGATHER, values, second_name, process_set)), shape, divisor)


class SparseReduction:
    """A pending sparse allreduce; calling it waits and returns the sparse tensor."""

    def __init__(self, handles: tuple[int, int], shape: torch.Size, divisor: int):
        self.handles = handles
        self._shape = shape
        self._divisor = divisor

    def __call__(self) -> torch.Tensor:
        # Wait for both, also when the first has failed: every rank submits both or fails both.
        gathered: list[torch.Tensor] = []
        failure = None
        for handle in self.handles:
            try:
                gathered.append(synchronize(handle))
            except HorovodInternalError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        indices, values = gathered
        if self._divisor > 1:
            rounding = None if values.is_floating_point() else "trunc"
            values = torch.div(values, self._divisor, rounding_mode=rounding)
        return torch.sparse_coo_tensor(indices.transpose(0, 1), values, self._shape, check_invariants=False)
