"""Gradients of the synchronous operations, as torch.autograd.Functions.

The gradient of a named operation is communicated under ``NAME.grad``, that of an unnamed operation without a name. All
ranks must run the backwards of unnamed operations in the same order. Called on autograd's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Any, Final

import torch
from torch.autograd import Function

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
    resolve_op,
    submit,
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
        operation, name, process_set, arguments, grouped: as for `_operations.submit`.
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
    handle = submit(ALLGATHER, mine, gradient_name(call.name, "grad.sizes"), call.process_set)
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
    result = submit(
        call.operation, given, call.name, call.process_set, call.arguments, call.grouped, wait=True
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


class _Differentiable(Function):
    """Any operation."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> Any:
        return _forward(ctx, call, *tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        return None, *gradients(ctx.call, grad_outputs)


def _function(name: str, operation: Operation, parameters: str, grouped: bool = False) -> type[Function]:
    """A Function with Horovod's name and parameters, for programs that import it. The tensor comes before the other
    parameters, the tensors of a group after them."""
    names = parameters.split()

    def forward(ctx: Any, *values: Any) -> Any:
        tensors, others = (values[len(names) :], values) if grouped else (values[:1], values[1:])
        given = dict(zip(names, others))
        request, process_set = given.pop("name"), given.pop("process_set")
        if "average" in given:
            average = given.pop("average")
            prefix = operation.grouped_name if grouped else operation.name
            given["op"] = resolve_op(given["op"], average, prefix, request, process_set)
        return _forward(ctx, Call(operation, request, process_set, tuple(given.values()), grouped), *tensors)

    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        nothing, found = [None] * len(names), gradients(ctx.call, grad_outputs)
        return (*nothing, *found) if grouped else (*found, *nothing)

    order = ["ctx", *names, "*tensors"] if grouped else ["ctx", "tensor", *names]
    kinds = {True: Parameter.VAR_POSITIONAL, False: Parameter.POSITIONAL_OR_KEYWORD}
    shown = [Parameter(each.strip("*"), kinds[each.startswith("*")]) for each in order]
    forward.__signature__ = Signature(shown)  # type: ignore[attr-defined]  # inspect reads it
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    document = f"{name.removeprefix('Horovod')} with its gradient, as the public function."
    return type(name, (Function,), {"__doc__": document, "__module__": "horovod.torch.mpi_ops", **members})


_REDUCTION = "op prescale_factor postscale_factor process_set"
_SCATTER = "name op process_set prescale_factor postscale_factor"
HorovodAllreduce: Final = _function("HorovodAllreduce", ALLREDUCE, f"average name {_REDUCTION}")
HorovodGroupedAllreduce: Final = _function(
    "HorovodGroupedAllreduce", ALLREDUCE, f"average name {_REDUCTION}", grouped=True
)
HorovodAllgather: Final = _function("HorovodAllgather", ALLGATHER, "name process_set")
HorovodGroupedAllgather: Final = _function(
    "HorovodGroupedAllgather", ALLGATHER, "name process_set", grouped=True
)
HorovodBroadcast: Final = _function("HorovodBroadcast", BROADCAST, "root_rank name process_set")
HorovodAlltoall: Final = _function("HorovodAlltoall", ALLTOALL, "splits name process_set")
HorovodReducescatter: Final = _function("HorovodReducescatter", REDUCESCATTER, _SCATTER)
HorovodGroupedReducescatter: Final = _function(
    "HorovodGroupedReducescatter", REDUCESCATTER, _SCATTER, grouped=True
)
