"""The operations under torch.compile: custom ops of PyTorch, ``torch.ops.horovod.*``, which replace the calls in a graph.

The synchronous operations ask `tracing()` first; Dynamo knows the answer while it compiles, so that it costs nothing in
the graph. traced() is traced, never run, and leaves one custom op in the graph. An operation in place becomes one that
returns a new tensor, and a copy.

The ops are registered from Python; nothing is compiled against PyTorch. A graph holds the caller's arguments (name or
None, reduce op, id of the process set) and nothing that differs between ranks or that the engine decides: unnamed
operations are numbered, and members and sizes looked up, when the graph runs. So a rank that compiles again, or not at
all, still meets the others, and ranks may share a cache of compiled graphs. If the size of a result depends on other
ranks, the graph has an unknown size; if it depends on this rank (reducescatter), the caller passes it.

All ops are marked effectful: compilers neither remove, merge nor reorder them. The ops run on the thread that runs the
graph, those of gradients on autograd's threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any

import torch

from horovod.common.arguments import Average
from horovod.common.exports import _basics
from horovod.common.process_sets import ProcessSet, _temp_process_set_object, global_process_set
from horovod.torch._autograd import Call, gradients, rows_of
from horovod.torch._operations import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
    Operation,
    submit,
)
from horovod.torch.compression import Compression, Compressor
from hvd_core._frontend.operations import gradient_name, scattered_rows

# Whether ops can be marked effectful: effects in backward graphs do not work before PyTorch 2.11.
HAS_EFFECTS = tuple(int(number) for number in torch.__version__.split(".")[:2]) >= (2, 11)

_library: Any = None
_overloads: list[Any] = []

Tensors = torch.Tensor | Sequence[torch.Tensor]


def process_set_of(number: int) -> ProcessSet:
    """The process set with this id; -1 is that of a set that is not registered."""
    if number == 0:
        return global_process_set
    process_set = _temp_process_set_object(None if number < 0 else number)
    if number > 0 and _basics.is_initialized():
        process_set.ranks = _basics._get_process_set_ids_and_ranks().get(number)
    return process_set


# ------------------------------------------------------------------------------------------ what the ops do in a graph


def _runs(operation: Operation, grouped: bool) -> Callable[..., Any]:
    """The op of an operation: op(tensor or tensors, [rows,] *arguments, name, process set)."""

    def run(tensors: Any, *arguments: Any) -> Any:
        *arguments_only, name, number = arguments[1:] if operation is REDUCESCATTER else arguments
        # A compiler chooses the strides of the tensors that it computes, so the caller cannot answer for them.
        given = [each.contiguous() for each in tensors] if grouped else tensors.contiguous()
        process_set = process_set_of(number)
        result = submit(operation, given, name, process_set, tuple(arguments_only), grouped, wait=True)
        # A list, not a pair: inductor (2.13) loses unknown sizes of effectful ops that return several tensors.
        return list(result) if grouped or operation is ALLTOALL else result

    return run


def _allgather_known(tensor: torch.Tensor, rows: int, name: str | None, number: int) -> Any:
    # For layers whose ranks contribute equal shares: the known number of `rows` spares the graph an unknown size.
    return submit(ALLGATHER, tensor.contiguous(), name, process_set_of(number), wait=True)


def _runs_gradient(operation: Operation, grouped: bool) -> Callable[..., Any]:
    """The op of an operation's gradient: op(grad or grads, rows, received, *arguments, name, process set)."""

    def run(grads: Any, rows: Any, received: torch.Tensor | None, *arguments: Any) -> Any:
        *own, name, number = arguments
        each = list(rows) if grouped else [rows]
        call = Call(operation, name, process_set_of(number), tuple(own), grouped, each, received)
        with torch.no_grad():
            found = gradients(call, grads if grouped else [grads])
        # Copies: the result of an op must not be a view of memory that the graph does not know.
        copies = [grad.clone() for grad in found]
        return copies if grouped else copies[0]

    return run


# ---------------------------------------------------------------------------------- the shapes of their results


def _seen() -> None:
    """A compiler is at work on our ops: make our settings in it."""
    leave_alone()
    if HAS_EFFECTS:
        _keep_order(_overloads)


def _same_shape(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    _seen()
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _unknown_rows(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    _seen()
    return tensor.new_empty((torch.library.get_ctx().new_dynamic_size(), *tensor.shape[1:]))


def _unknown_rows_and_splits(
    tensor: torch.Tensor, splits: torch.Tensor | None, *_: Any
) -> list[torch.Tensor]:
    rows = _unknown_rows(tensor)
    if splits is not None:
        return [rows, torch.empty_like(splits)]
    entries = torch.library.get_ctx().new_dynamic_size()
    return [rows, torch.empty(entries, dtype=torch.int32, device="cpu")]


def _given_rows(grad: torch.Tensor, rows: int, *_: Any) -> torch.Tensor:
    _seen()
    return grad.new_empty((rows, *grad.shape[1:]))


def _of_each(shape: Callable[..., torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
    """The shapes of a group's results."""

    def shapes(tensors: Sequence[torch.Tensor], *arguments: Any) -> list[torch.Tensor]:
        if shape is _given_rows:
            return [_given_rows(*pair) for pair in zip(tensors, arguments[0])]
        return [shape(tensor) for tensor in tensors]

    return shapes


# ------------------------------------------------------------------------------------------------------ gradients


def _saves(operation: Operation) -> Callable[..., None]:
    """Keeps what the gradient of an op needs."""

    def save(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        tensors, *rest = inputs
        ctx.others = len(rest)
        if operation in (REDUCESCATTER, ALLTOALL):
            del rest[0]  # rows, or splits
        if operation is ALLTOALL:
            ctx.save_for_backward(output[1])
        if isinstance(tensors, torch.Tensor):
            (ctx.rows,) = rows_of([tensors])
        else:
            ctx.rows = rows_of(tensors)
        ctx.arguments = rest

    return save


def _backward_of(operation: Operation, grouped: bool) -> Callable[..., Any]:
    """The gradient of an op, by another op. Ops that run an eager gradient inside leave its name to it."""
    op = operation.grouped_name if grouped else operation.name

    def backward(ctx: Any, grads: Any) -> Any:
        if operation is ALLREDUCE:
            *settings, name, number = ctx.arguments
            found = getattr(torch.ops.horovod, op)(grads, *settings, gradient_name(name), number)
        else:
            grads = grads[0] if operation is ALLTOALL else grads
            received = ctx.saved_tensors[0] if operation is ALLTOALL else None
            found = getattr(torch.ops.horovod, f"{op}_grad")(grads, ctx.rows, received, *ctx.arguments)
        return found, *[None] * ctx.others

    return backward


# --------------------------------------------------------------------------------------------------- registration

_REDUCTION = "int op, float prescale_factor, float postscale_factor, "
_CALL = "str? name, int process_set"


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
    run: Callable[..., Any],
    shapes: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    save: Callable[..., Any] | None = None,
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


def _define_both(operation: Operation, arguments: str, shape: Callable[..., Any], grouped: bool) -> None:
    """The op of an operation, and that of its gradient."""
    name = operation.grouped_name if grouped else operation.name
    tensors, result = ("Tensor[] tensors", "Tensor[]") if grouped else ("Tensor tensor", "Tensor")
    returned = "Tensor[]" if operation is ALLTOALL else result
    schema = f"({tensors}, {arguments}{_CALL}) -> {returned}"
    backward, save = _backward_of(operation, grouped), _saves(operation)
    shapes = _of_each(shape) if grouped else shape
    _define(name, schema, _runs(operation, grouped), shapes, backward, save)
    if operation is ALLREDUCE:
        return  # its gradient is the op itself
    own = "" if operation is ALLTOALL else arguments  # its splits are those that were received
    rows = "SymInt[] rows" if grouped else "SymInt rows"
    schema = f"({tensors}, {rows}, Tensor? received, {own.removeprefix(rows + ', ')}{_CALL}) -> {result}"
    if shape is not _same_shape:
        shapes = _of_each(_given_rows) if grouped else _given_rows
    _define(f"{name}_grad", schema, _runs_gradient(operation, grouped), shapes)


# (operation, its arguments in a schema, the shape of a result, may be grouped)
_OPS: list[tuple[Operation, str, Callable[..., Any], bool]] = [
    (ALLREDUCE, _REDUCTION, _same_shape, True),
    (ALLGATHER, "", _unknown_rows, True),
    (REDUCESCATTER, f"SymInt rows, {_REDUCTION}", _given_rows, True),
    (BROADCAST, "int root_rank, ", _same_shape, False),
    (ALLTOALL, "Tensor? splits, ", _unknown_rows_and_splits, False),
]


def _register() -> None:
    """Register the ops with PyTorch."""
    global _library
    _library = torch.library.Library("horovod", "DEF")  # type: ignore[no-untyped-call]  # of PyTorch
    for operation, arguments, shape, may_be_grouped in _OPS:
        _define_both(operation, arguments, shape, grouped=False)
        if may_be_grouped:
            _define_both(operation, arguments.replace("SymInt rows", "SymInt[] rows"), shape, grouped=True)
    _define(
        "allgather_known", f"(Tensor tensor, SymInt rows, {_CALL}) -> Tensor", _allgather_known, _given_rows
    )


# ----------------------------------------------------------------------------------------------------------- tracing


_register()
tracing: Callable[[], bool] = torch.compiler.is_dynamo_compiling  # whether Dynamo traces the caller


def _number(process_set: ProcessSet) -> int:
    # A set that is not registered is refused when the graph runs, with the message of the eager operation.
    return -1 if process_set.process_set_id is None else process_set.process_set_id


def traced(
    operation: str,
    tensors: Any,
    name: str | None,
    process_set: ProcessSet,
    arguments: tuple[Any, ...],
    compression: type[Compressor] = Compression.none,
    grouped: bool = False,
    in_place: bool = False,
) -> Any:
    """The result of a public operation on tensors that a compiler traces.

    Args:
        operation: its name; Dynamo compares texts in every version.
        tensors, name, process_set, arguments, grouped, in_place: as for `_operations.submit`.
        compression: of the public operation.
    """
    given = list(tensors) if grouped else [tensors]
    if not given:
        return []
    number = _number(process_set)
    if in_place:
        with torch.no_grad():
            for tensor, result in zip(given, _calls(operation, given, name, number, arguments, grouped)):
                tensor.copy_(result)
        return given if grouped else tensors
    if operation == "alltoall":
        return _traced_alltoall(tensors, arguments[0], name, number)
    if operation == "reducescatter":
        rows = [_own_rows(tensor, process_set) for tensor in given]
        arguments = (rows if grouped else rows[0], *arguments)
    pairs = [compression.compress(tensor) for tensor in given]
    sent = [tensor for tensor, _ in pairs]
    received = _calls(operation, sent, name, number, arguments, grouped)
    results = [compression.decompress(result, context) for result, (_, context) in zip(received, pairs)]
    return results if grouped else results[0]


def _calls(
    operation: str,
    tensors: list[torch.Tensor],
    name: str | None,
    number: int,
    arguments: tuple[Any, ...],
    grouped: bool,
) -> list[torch.Tensor]:
    """The results of the op of an operation."""
    if operation == "allreduce" and arguments[0] is None:
        arguments = (Average, *arguments[1:])
    if grouped:
        op = getattr(torch.ops.horovod, f"grouped_{operation}")
        return list(op(tensors, *arguments, name, number))
    return [getattr(torch.ops.horovod, operation)(tensors[0], *arguments, name, number)]


def _traced_alltoall(tensor: torch.Tensor, splits: Any, name: str | None, number: int) -> Any:
    as_tensor = splits if splits is None or isinstance(splits, torch.Tensor) else torch.tensor(splits)
    output, received = torch.ops.horovod.alltoall(tensor, as_tensor, name, number)
    if splits is None:
        return output
    return output, received if as_tensor is splits else received.to(torch.int32)


def allgather_known(
    tensor: torch.Tensor, rows: int, name: str | None, process_set: ProcessSet
) -> torch.Tensor:
    """A traced allgather whose result has `rows` rows; it has no gradient."""
    result: torch.Tensor = torch.ops.horovod.allgather_known(tensor, rows, name, _number(process_set))
    return result


def _own_rows(tensor: torch.Tensor, process_set: ProcessSet) -> int:
    """How many rows of a reducescatter this rank gets; 0 also where the call will be refused. The number becomes part of
    the graph, and Dynamo compiles again when rank or size have changed."""
    size, rank = process_set.size(), process_set.rank()
    if not size or rank is None or not process_set.included() or not tensor.dim():
        return 0
    return scattered_rows(tensor.shape[0], size, rank)


# ------------------------------------------------------------------------------------- settings in PyTorch's compilers

# Made once a program has loaded the compilers. Loading one takes seconds, so we never load one. Both functions are cheap
# when there is nothing to set. Any thread that holds the GIL.

# Modules with functions that programs may give to torch.compile.
_COMPILED = {
    "horovod.common.compression",
    *(f"horovod.torch.{name}" for name in ("compression", "mpi_ops", "sync_batch_norm")),
}
# Modules that run while an operation is submitted.
_OURS = ("horovod.torch.", "horovod.common.", "hvd_core._frontend.", "hvd_core._runtime.current_job")
_left_alone: set[str] = set()
_ordered = False


def leave_alone() -> None:
    """Ask Dynamo not to compile our functions that run outside of graphs.

    A graph ends where the engine is called, and at a backward, whose hooks are ours. Dynamo would go on compiling the
    functions that are called there: it fails, once more for each parameter. A function of ours that Dynamo meets
    while it traces a caller is traced nevertheless.
    """
    skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    if skip is None:
        return
    ours = {name for name in sys.modules if name.startswith(_OURS)}
    for name in ours - _COMPILED - _left_alone:
        _left_alone.add(name)
        for code in _codes_of(sys.modules[name]):
            skip(code)


def _codes_of(module: ModuleType) -> Iterator[CodeType]:
    """The code of the functions and methods that a module defines, nested ones included."""
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    for value in own:
        for member in vars(value).values() if isinstance(value, type) else (value,):
            member = getattr(member, "__func__", getattr(member, "fget", member))
            yield from _nested(getattr(member, "__code__", None))


def _nested(code: Any) -> Iterator[CodeType]:
    if isinstance(code, CodeType):
        yield code
        for constant in code.co_consts:
            yield from _nested(constant)


def _keep_order(ops: Iterable[Any]) -> None:
    """Have inductor call `ops` (OpOverloads, marked effectful) in the order of the program.

    Every part of torch.compile honours the mark but one: inductor (seen in PyTorch 2.13) records which operation must
    follow which under the names of buffers, looks the records up under the names of operations, does not find them, and
    moves calls to save memory. Ranks with equal graphs still agree; a rank that has compiled another graph, for other
    shapes say, may not. So we make the records once more, under the other names. With another inductor this does
    nothing, or changes nothing.
    """
    global _ordered
    lowering = sys.modules.get("torch._inductor.lowering")
    if _ordered or lowering is None:
        return
    _ordered = True
    try:
        for op in ops:
            lowering.lowerings[op] = _in_order(lowering.fallback_handler(op, add_to_fallback_set=False))
    except (AttributeError, TypeError):
        pass  # another inductor


def _in_order(make_call: Callable[..., Any]) -> Callable[..., Any]:
    def lower(*args: Any, **kwargs: Any) -> Any:
        from torch._inductor.virtualized import V

        graph = V.graph
        begin = len(graph.operations)
        result = make_call(*args, **kwargs)
        records = getattr(graph, "additional_star_deps", None)
        last = list(getattr(graph, "effectful_ops", {}).values())
        if records is not None and last:
            for operation in graph.operations[begin:]:
                records[operation.get_operation_name()].add(last[-1].get_name())
        return result

    return lower
