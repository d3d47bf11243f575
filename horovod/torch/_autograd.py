"""Gradients of the synchronous operations, as torch.autograd.Functions.

The gradient of a named operation is communicated under ``NAME.grad``, that of an unnamed operation without a name. All
ranks must run the backwards of unnamed operations in the same order. Called on autograd's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from horovod.common.arguments import Average, Sum
from horovod.common.exports import _basics
from horovod.common.process_sets import ProcessSet
from horovod.torch._operations import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
    Operation,
    complete,
    resolve_op,
    start,
    synchronize,
)
from hvd_core._frontend.operations import gradient_name

__all__ = [
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
]


@dataclass
class Call:
    """A call whose gradients may be asked for.

    Attributes:
        operation, name, process_set, arguments, grouped: as for `_operations.start`.
        rows: dimension 0 of each tensor.
        received: of an alltoall, how many rows came from each rank.
    """

    operation: Operation
    name: str | None
    process_set: ProcessSet
    arguments: tuple[Any, ...] = ()
    grouped: bool = False
    rows: list[int] = field(default_factory=list)
    received: torch.Tensor | None = None


def differentiable(call: Call, tensors: Sequence[torch.Tensor]) -> Any:
    """Carry out a call so that it has gradients. Returns what the operation returns; a group's result is a tuple."""
    apply: Callable[..., Any] = _Differentiable.apply
    return apply(call, *tensors)


def gradients(call: Call, grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of the tensors of a call, from those of its results. They are communicated, and differentiable."""
    if call.operation is ALLTOALL:
        grads = grads[:1]  # the second result is a tensor of integers
    return _GRADIENTS[call.operation](call, [grad.contiguous() for grad in grads])


# ------------------------------------------------------------------------------------- the gradient of each operation


def _like(call: Call, operation: Operation, grads: list[torch.Tensor], *arguments: Any) -> list[torch.Tensor]:
    """Another operation on the gradients of a call, under the gradient's name."""
    name = gradient_name(call.name)
    found = differentiable(Call(operation, name, call.process_set, arguments, call.grouped), grads)
    return list(found) if call.grouped else [found]


def _of_allreduce(call: Call, grads: list[torch.Tensor]) -> list[torch.Tensor]:
    return _like(call, ALLREDUCE, grads, *call.arguments)


def _of_allgather(call: Call, grads: list[torch.Tensor]) -> list[torch.Tensor]:
    """This rank's rows of the AVERAGE over ranks of the incoming gradients."""
    mine = torch.tensor([call.rows], dtype=torch.int64)
    handle = start(ALLGATHER, mine, gradient_name(call.name, "grad.sizes"), call.process_set)
    averaged = _like(call, ALLREDUCE, grads, Average, 1.0, 1.0)
    sizes = synchronize(handle)
    return [_own_rows(grad, sizes[:, i], call.process_set) for i, grad in enumerate(averaged)]


def _own_rows(gathered: torch.Tensor, sizes: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    """The rows of `gathered` that this rank has contributed; `sizes` holds dimension 0 of every rank."""
    me = process_set.rank() or 0
    rows = gathered.narrow(0, int(sizes[:me].sum()), int(sizes[me]))
    # A view would keep the rows of all ranks alive. If the program differentiates again, the graph keeps them anyway.
    return rows if torch.is_grad_enabled() else rows.clone()


def _of_broadcast(call: Call, grads: list[torch.Tensor]) -> list[torch.Tensor]:
    """The AVERAGE over ranks at the root, and zero elsewhere."""
    averaged = _like(call, ALLREDUCE, grads, Average, 1.0, 1.0)
    return averaged if _basics.rank() == call.arguments[0] else [grad * 0 for grad in averaged]


def _of_alltoall(call: Call, grads: list[torch.Tensor]) -> list[torch.Tensor]:
    """Each row of the incoming gradient goes back to the rank that it came from; rows that were not sent get zeros."""
    ((grad, _),) = _like(call, ALLTOALL, grads, call.received)
    unsent = call.rows[0] - grad.shape[0]
    if unsent:
        grad = torch.cat([grad, grad.new_zeros((unsent, *grad.shape[1:]))])
    return [grad]


def _of_reducescatter(call: Call, grads: list[torch.Tensor]) -> list[torch.Tensor]:
    """The allgather of the incoming gradients, times the factors, and times the number of ranks for Sum."""
    op, prescale_factor, postscale_factor = call.arguments
    if op not in (Average, Sum):
        raise NotImplementedError("Reducescatter is differentiable with hvd.Average and hvd.Sum only.")
    scale = prescale_factor * postscale_factor * ((call.process_set.size() or 1) if op == Sum else 1)
    gathered = _like(call, ALLGATHER, grads)
    return gathered if scale == 1 else [grad * scale for grad in gathered]


_GRADIENTS: dict[Operation, Callable[[Call, list[torch.Tensor]], list[torch.Tensor]]] = {
    ALLREDUCE: _of_allreduce,
    ALLGATHER: _of_allgather,
    BROADCAST: _of_broadcast,
    ALLTOALL: _of_alltoall,
    REDUCESCATTER: _of_reducescatter,
}


# --------------------------------------------------------------------------------------------------- the Functions


def rows_of(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Dimension 0 of each tensor, 0 for a number."""
    return [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]


def _forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> Any:
    given = tensors if call.grouped else tensors[0]
    result = complete(
        call.operation, given, call.name, call.process_set, call.arguments, grouped=call.grouped
    )
    call.rows = rows_of(tensors)
    ctx.call = call
    if call.grouped:
        return tuple(result)
    if call.operation is ALLTOALL:
        output, call.received = result
        if call.arguments[0] is None:
            return output
        ctx.mark_non_differentiable(call.received)
    return result


def _backward(ctx: Any, grads: Sequence[torch.Tensor], others: int) -> tuple[torch.Tensor | None, ...]:
    """The gradients for a Function that has `others` arguments beside its tensors."""
    nothing = [None] * others
    found = gradients(ctx.call, grads)
    return (*nothing, *found) if ctx.call.grouped else (*found, *nothing)


class _Differentiable(torch.autograd.Function):
    """Any operation."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> Any:
        return _forward(ctx, call, *tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        return None, *gradients(ctx.call, grad_outputs)


# For programs that import them, with Horovod's signatures.


class HorovodAllreduce(torch.autograd.Function):
    """Allreduce; its gradient is the same allreduce of the incoming gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        average: Any,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        op = resolve_op(op, average, "allreduce", name, process_set)
        arguments = (op, prescale_factor, postscale_factor)
        result: torch.Tensor = _forward(ctx, Call(ALLREDUCE, name, process_set, arguments), tensor)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        return _backward(ctx, [grad_output], 6)


class HorovodGroupedAllreduce(torch.autograd.Function):
    """Grouped allreduce; its gradient is the same grouped allreduce of the incoming gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        average: Any,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> Any:
        op = resolve_op(op, average, "grouped_allreduce", name, process_set)
        arguments = (op, prescale_factor, postscale_factor)
        return _forward(ctx, Call(ALLREDUCE, name, process_set, arguments, grouped=True), *tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        return _backward(ctx, grad_outputs, 6)


class HorovodAllgather(torch.autograd.Function):
    """Allgather; its gradient is this rank's rows of the AVERAGE over ranks of the incoming gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        result: torch.Tensor = _forward(ctx, Call(ALLGATHER, name, process_set), tensor)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        return _backward(ctx, [grad_output], 2)


class HorovodGroupedAllgather(torch.autograd.Function):
    """Grouped allgather; its gradient is as that of HorovodAllgather, with one grouped allreduce."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        return _forward(ctx, Call(ALLGATHER, name, process_set, grouped=True), *tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        return _backward(ctx, grad_outputs, 2)


class HorovodBroadcast(torch.autograd.Function):
    """Broadcast; its gradient is the AVERAGE over ranks at the root and zero elsewhere."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        result: torch.Tensor = _forward(ctx, Call(BROADCAST, name, process_set, (root_rank,)), tensor)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        return _backward(ctx, [grad_output], 3)


class HorovodAlltoall(torch.autograd.Function):
    """Alltoall; its gradient is the alltoall that sends each row of the incoming gradient back to the rank it came from.

    Returns the output without `splits`, else the pair (output, received splits), as the public function does.
    """

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> Any:
        return _forward(ctx, Call(ALLTOALL, name, process_set, (splits,)), tensor)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor, *_: Any) -> Any:
        return _backward(ctx, [grad_output], 3)


class HorovodReducescatter(torch.autograd.Function):
    """Reducescatter; its gradient is the allgather of the incoming gradient, times the number of ranks for Sum."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> torch.Tensor:
        arguments = (op, prescale_factor, postscale_factor)
        result: torch.Tensor = _forward(ctx, Call(REDUCESCATTER, name, process_set, arguments), tensor)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        return _backward(ctx, [grad_output], 5)


class HorovodGroupedReducescatter(torch.autograd.Function):
    """Grouped reducescatter; its gradient is as that of HorovodReducescatter, with one grouped allgather."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> Any:
        arguments = (op, prescale_factor, postscale_factor)
        return _forward(ctx, Call(REDUCESCATTER, name, process_set, arguments, grouped=True), *tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        return _backward(ctx, grad_outputs, 5)
