"""The operations as custom ops of PyTorch, ``torch.ops.horovod.*``: they stand for the calls in a compiled graph.

Registered from Python; nothing is compiled against PyTorch. A graph holds the caller's arguments (name or None, reduce
op, number of the process set) and nothing that differs between ranks or that the engine decides: unnamed operations are
numbered, and members and sizes looked up, when the graph runs. So a rank that compiles again, or not at all, still
meets the others, and ranks may share a cache of compiled graphs. If the size of a result depends on other ranks, the
graph has an unknown size; if it depends on this rank (reducescatter), the caller passes it.

All ops are marked effectful: compilers neither remove, merge nor reorder them. Used by `_compile`. The functions run on
the thread that runs the graph, those of gradients on autograd's threads.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from horovod.common.exports import _basics
from horovod.common.process_sets import ProcessSet, _temp_process_set_object, global_process_set
from horovod.torch import _async_gather as gather
from horovod.torch import _async_ops as ops
from horovod.torch import _async_scatter as scatter
from horovod.torch import _autograd as eager
from horovod.torch import _compilers
from horovod.torch._submit import synchronize

# Before PyTorch 2.4 gradients and shapes cannot be registered this way. There a call ends the graph.
SUPPORTED = hasattr(getattr(torch, "library", None), "register_autograd")
# Whether ops can be marked effectful: effects in backward graphs do not work before PyTorch 2.11.
HAS_EFFECTS = hasattr(getattr(torch, "library", None), "_register_effectful_op") and tuple(
    int(number) for number in torch.__version__.split(".")[:2]
) >= (2, 11)

_library: Any = None
_overloads: list[Any] = []


def process_set_of(number: int) -> ProcessSet:
    """A process set with this number; -1 stands for a set that is not registered."""
    if number == 0:
        return global_process_set
    process_set = _temp_process_set_object(None if number < 0 else number)
    if number > 0 and _basics.is_initialized():
        process_set.ranks = _basics._get_process_set_ids_and_ranks().get(number)
    return process_set


def _contiguous(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    # A compiler chooses the strides of the tensors that it computes, so the caller cannot answer for them.
    return [tensor.contiguous() for tensor in tensors]


def _rows(tensor: torch.Tensor) -> Any:
    return tensor.shape[0] if tensor.dim() else 0


def _gradients(function: type, grads: Sequence[torch.Tensor], count: int, **context: Any) -> list:
    """The gradients that the backward of an eager operation returns for its `count` tensors. They are the last ones that
    it returns, or, for a single tensor, the first one."""
    with torch.no_grad():
        found = function.backward(SimpleNamespace(**context), *grads)
    # Copies: the result of an op must not be a view of memory that the graph does not know.
    return [grad.clone() for grad in (found[:1] if count == 1 else found[-count:])]


# --------------------------------------------------------------------------------------------- the ops


def _allreduce(tensor, op, prescale_factor, postscale_factor, name, process_set):
    tensor = tensor.contiguous()
    output = ops.empty_like(tensor)
    chosen = process_set_of(process_set)
    ops.reduce_into(tensor, output, name, op, prescale_factor, postscale_factor, chosen, True)
    return output


def _grouped_allreduce(tensors, op, prescale_factor, postscale_factor, name, process_set):
    arguments = (None, name, op, prescale_factor, postscale_factor, process_set_of(process_set))
    return list(synchronize(ops.grouped_allreduce_async(_contiguous(tensors), *arguments)))


def _allgather(tensor, name, process_set):
    return synchronize(gather.allgather_async(tensor.contiguous(), name, process_set_of(process_set)))


def _allgather_known(tensor, rows, name, process_set):
    # For layers whose ranks contribute equal shares: the known number of `rows` spares the graph an unknown size.
    return _allgather(tensor, name, process_set)


def _grouped_allgather(tensors, name, process_set):
    chosen = process_set_of(process_set)
    return list(synchronize(gather.grouped_allgather_async(_contiguous(tensors), name, chosen)))


def _broadcast(tensor, root_rank, name, process_set):
    tensor = tensor.contiguous()
    output = ops.empty_like(tensor)
    ops.broadcast_into(tensor, output, root_rank, name, process_set_of(process_set), True)
    return output


def _alltoall(tensor, splits, name, process_set):
    # A list, not a pair: inductor (2.13) loses unknown sizes of effectful ops that return several tensors.
    handle = scatter.alltoall_async(tensor.contiguous(), splits, name, process_set_of(process_set))
    return list(synchronize(handle))


def _reducescatter(tensor, rows, op, prescale_factor, postscale_factor, name, process_set):
    arguments = (name, op, process_set_of(process_set), prescale_factor, postscale_factor)
    return synchronize(scatter.reducescatter_async(tensor.contiguous(), *arguments))


def _grouped_reducescatter(tensors, rows, op, prescale_factor, postscale_factor, name, process_set):
    arguments = (name, op, process_set_of(process_set), prescale_factor, postscale_factor)
    return list(synchronize(scatter.grouped_reducescatter_async(_contiguous(tensors), *arguments)))


def _allgather_grad(grad, rows, name, process_set):
    chosen = process_set_of(process_set)
    return _gradients(eager.HorovodAllgather, [grad], 1, rows=rows, name=name, process_set=chosen)[0]


def _grouped_allgather_grad(grads, rows, name, process_set):
    chosen = process_set_of(process_set)
    function = eager.HorovodGroupedAllgather
    return _gradients(function, grads, len(grads), rows=list(rows), name=name, process_set=chosen)


def _broadcast_grad(grad, root_rank, name, process_set):
    context = {"root_rank": root_rank, "name": name, "process_set": process_set_of(process_set)}
    return _gradients(eager.HorovodBroadcast, [grad], 1, **context)[0]


def _alltoall_grad(grad, rows, received, name, process_set):
    context = {"rows": rows, "received": received, "name": name, "process_set": process_set_of(process_set)}
    return _gradients(eager.HorovodAlltoall, [grad], 1, **context)[0]


def _reducescatter_grad(grad, rows, op, prescale_factor, postscale_factor, name, process_set):
    made = eager._Scattered(name, op, process_set_of(process_set), prescale_factor, postscale_factor)
    return _gradients(eager.HorovodReducescatter, [grad], 1, made=made)[0]


def _grouped_reducescatter_grad(grads, rows, op, prescale_factor, postscale_factor, name, process_set):
    made = eager._Scattered(name, op, process_set_of(process_set), prescale_factor, postscale_factor)
    return _gradients(eager.HorovodGroupedReducescatter, grads, len(grads), made=made)


# ---------------------------------------------------------------------------------- the shapes of their results


def _seen() -> None:
    """A compiler is at work on our ops: make our settings in it."""
    _compilers.leave_alone()
    if HAS_EFFECTS:
        _compilers.keep_order(_overloads)


def _same_shape(tensor, *_):
    _seen()
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _same_shapes(tensors, *_):
    return [_same_shape(tensor) for tensor in tensors]


def _unknown_rows(tensor, *_):
    _seen()
    return tensor.new_empty((torch.library.get_ctx().new_dynamic_size(), *tensor.shape[1:]))


def _unknown_rows_each(tensors, *_):
    return [_unknown_rows(tensor) for tensor in tensors]


def _unknown_rows_and_splits(tensor, splits, *_):
    rows = _unknown_rows(tensor)
    if splits is not None:
        return [rows, torch.empty_like(splits)]
    entries = torch.library.get_ctx().new_dynamic_size()
    return [rows, torch.empty(entries, dtype=torch.int32, device="cpu")]


def _given_rows(grad, rows, *_):
    _seen()
    return grad.new_empty((rows, *grad.shape[1:]))


def _given_rows_each(grads, rows, *_):
    return [_given_rows(*pair) for pair in zip(grads, rows)]


# ------------------------------------------------------------------------------------------------------ gradients


# Ops that run an eager backward inside leave the name of the gradient to it.


def _save_allreduce(ctx, inputs, output):
    _, *ctx.arguments, ctx.name, ctx.process_set = inputs


def _allreduce_backward(op: str) -> Callable:
    def backward(ctx, grad):
        name = None if ctx.name is None else f"{ctx.name}.grad"
        arguments = (*ctx.arguments, name, ctx.process_set)
        return getattr(torch.ops.horovod, op)(grad, *arguments), *[None] * len(arguments)

    return backward


def _save_rows(ctx, inputs, output):
    tensors, *ctx.arguments = inputs
    ctx.rows = _rows(tensors) if isinstance(tensors, torch.Tensor) else [_rows(tensor) for tensor in tensors]


def _save_shares(ctx, inputs, output):
    tensors, _, *arguments = inputs
    _save_rows(ctx, (tensors, *arguments), output)


def _shares_backward(op: str) -> Callable:
    def backward(ctx, grad):
        gradient, *others = _rows_backward(op)(ctx, grad)
        # One None more, for the argument `rows`.
        return gradient, None, *others

    return backward


def _rows_backward(op: str) -> Callable:
    def backward(ctx, grad):
        gradient = getattr(torch.ops.horovod, op)(grad, ctx.rows, *ctx.arguments)
        return gradient, *[None] * len(ctx.arguments)

    return backward


def _save_broadcast(ctx, inputs, output):
    _, *ctx.arguments = inputs


def _broadcast_backward(ctx, grad):
    return torch.ops.horovod.broadcast_grad(grad, *ctx.arguments), None, None, None


def _save_alltoall(ctx, inputs, output):
    tensor, _, ctx.name, ctx.process_set = inputs
    ctx.rows = _rows(tensor)
    ctx.save_for_backward(output[1])


def _alltoall_backward(ctx, grads):
    (received,) = ctx.saved_tensors
    gradient = torch.ops.horovod.alltoall_grad(grads[0], ctx.rows, received, ctx.name, ctx.process_set)
    return gradient, None, None, None


# --------------------------------------------------------------------------------------------------- registration

_REDUCE = "int op, float prescale_factor, float postscale_factor, str? name, int process_set"
_GATHER = "str? name, int process_set"
_BROADCAST = "int root_rank, str? name, int process_set"


def _mark_effectful(name: str) -> None:
    if HAS_EFFECTS:
        from torch._library.effects import EffectType

        torch.library._register_effectful_op(f"horovod::{name}", EffectType.ORDERED, lib=_library)
    else:
        # Effects in backward graphs did not work yet. This mark at least keeps the op from being removed. Merging and
        # order follow from the graph, and ranks with equal graphs agree.
        torch.fx.node.has_side_effect(getattr(torch.ops.horovod, name).default)


def _define(
    name: str,
    schema: str,
    run: Callable,
    shapes: Callable,
    backward: Callable | None = None,
    save: Callable | None = None,
) -> None:
    # An operation communicates whenever it runs: it cannot be recorded once and replayed.
    tag = getattr(torch.Tag, "cudagraph_unsafe", None)
    _library.define(name + schema, tags=() if tag is None else (tag,))
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"horovod::{name}", shapes, lib=_library)
    if backward is not None:
        torch.library.register_autograd(f"horovod::{name}", backward, setup_context=save, lib=_library)
    _mark_effectful(name)
    _overloads.append(getattr(torch.ops.horovod, name).default)


def register() -> None:
    """Register the ops with PyTorch. Once; later calls do nothing."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("horovod", "DEF")
    one, several = "(Tensor tensor, ", "(Tensor[] tensors, "
    for name, schema, run, shapes in (
        ("allreduce", f"{one}{_REDUCE}) -> Tensor", _allreduce, _same_shape),
        ("grouped_allreduce", f"{several}{_REDUCE}) -> Tensor[]", _grouped_allreduce, _same_shapes),
    ):
        _define(name, schema, run, shapes, _allreduce_backward(name), _save_allreduce)
    for name, schema, run, shapes in (
        ("allgather", f"{one}{_GATHER}) -> Tensor", _allgather, _unknown_rows),
        ("grouped_allgather", f"{several}{_GATHER}) -> Tensor[]", _grouped_allgather, _unknown_rows_each),
    ):
        _define(name, schema, run, shapes, _rows_backward(f"{name}_grad"), _save_rows)
    one, several = (
        f"{one}SymInt rows, {_REDUCE}) -> Tensor",
        f"{several}SymInt[] rows, {_REDUCE}) -> Tensor[]",
    )
    for name, schema, run, shapes in (
        ("reducescatter", one, _reducescatter, _given_rows),
        ("grouped_reducescatter", several, _grouped_reducescatter, _given_rows_each),
    ):
        _define(name, schema, run, shapes, _shares_backward(f"{name}_grad"), _save_shares)
    schema = f"(Tensor tensor, {_BROADCAST}) -> Tensor"
    _define("broadcast", schema, _broadcast, _same_shape, _broadcast_backward, _save_broadcast)
    schema = f"(Tensor tensor, Tensor? splits, {_GATHER}) -> Tensor[]"
    _define("alltoall", schema, _alltoall, _unknown_rows_and_splits, _alltoall_backward, _save_alltoall)
    one, several = "(Tensor grad, SymInt rows, ", "(Tensor[] grads, SymInt[] rows, "
    for name, schema, run, shapes in (
        ("allgather_known", f"{one}{_GATHER}) -> Tensor", _allgather_known, _given_rows),
        ("allgather_grad", f"{one}{_GATHER}) -> Tensor", _allgather_grad, _given_rows),
        (
            "grouped_allgather_grad",
            f"{several}{_GATHER}) -> Tensor[]",
            _grouped_allgather_grad,
            _given_rows_each,
        ),
        ("reducescatter_grad", f"{one}{_REDUCE}) -> Tensor", _reducescatter_grad, _given_rows),
        (
            "grouped_reducescatter_grad",
            f"{several}{_REDUCE}) -> Tensor[]",
            _grouped_reducescatter_grad,
            _given_rows_each,
        ),
        ("broadcast_grad", f"(Tensor grad, {_BROADCAST}) -> Tensor", _broadcast_grad, _same_shape),
        ("alltoall_grad", f"{one}Tensor received, {_GATHER}) -> Tensor", _alltoall_grad, _given_rows),
    ):
        _define(name, schema, run, shapes)
