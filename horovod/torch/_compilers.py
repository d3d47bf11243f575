"""Settings that we make in PyTorch's compilers, once a program has loaded them. Loading a compiler takes seconds, so we
never load one. Both functions are cheap when there is nothing to set. Any thread that holds the GIL.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any

# Modules with functions that programs may give to torch.compile.
_COMPILED = {"horovod.common.compression"} | {
    f"horovod.torch.{name}" for name in ("_sync_ops", "_sync_scatter", "compression", "sync_batch_norm")
}
# Modules that run while an operation is submitted.
_OURS = ("horovod.torch.", "horovod.common.", "hvd_core._frontend.", "hvd_core._runtime.current_job")
_left_alone: set[str] = set()
_ordered = False


def leave_alone() -> None:
    """Ask Dynamo not to compile our functions that run outside of graphs.

    A graph ends where the engine is called, and at a backward, whose hooks are ours. Dynamo would go on compiling the
    functions that are called there: in vain, and once more for each parameter. A function of ours that Dynamo meets
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


def keep_order(ops: Iterable[Any]) -> None:
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


def _in_order(make_call: Callable) -> Callable:
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
