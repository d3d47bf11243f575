"""What PyTorch's compilers are told about us, each once it is loaded: loading them takes seconds, which programs that
compile nothing need not spend. Both calls are cheap when there is nothing to tell. Any thread that holds the GIL.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any

# Modules with functions that programs may give to torch.compile.
_COMPILED = {
    f"horovod.torch.{name}" for name in ("_sync_ops", "_sync_scatter", "compression", "sync_batch_norm")
}
_left_alone: set[str] = set()
_ordered = False


def leave_alone() -> None:
    """Ask Dynamo not to compile what we do outside of graphs.

    A graph ends where the engine is called, and at a backward, whose hooks are ours. Dynamo would go on compiling inside
    of what is called there: to no use, and once more for each parameter. What it meets while it traces a caller is
    traced as ever.
    """
    skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    if skip is None:
        return
    ours = {name for name in sys.modules if name.startswith("horovod.torch.") or name == "hvd_core.runtime"}
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

    Every part of torch.compile honours the mark but one: inductor (seen in PyTorch 2.13) notes which operation is to
    follow which under the names of buffers, looks the notes up under the names of operations, finds none, and moves
    calls to save memory. Ranks whose graphs are the same still agree; a rank that has compiled another one, for other
    shapes say, may not. So the notes are made once more, under the other names. Where inductor is different nothing is
    done, or nothing changes.
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
        notes = getattr(graph, "additional_star_deps", None)
        last = list(getattr(graph, "effectful_ops", {}).values())
        if notes is not None and last:
            for operation in graph.operations[begin:]:
                notes[operation.get_operation_name()].add(last[-1].get_name())
        return result

    return lower
